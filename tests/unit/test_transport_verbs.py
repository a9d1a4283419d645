"""``transport=verbs``: what its configuration refuses, and what its native half is told."""

from ipaddress import IPv6Address
from pathlib import Path

import pytest
import yaml

from genie.errors import ConfigError, EnvironmentUnfit
from genie.rdma.model import ETHERNET, INFINIBAND, ROCE_V2, Gid, RdmaDevice, RdmaHost, RdmaPort
from genie.schema import build
from genie.transport import TRANSPORTS, RankPlace, VerbsTransport

NATIVE = Path(__file__).parents[2] / "native" / "src" / "verbs_settings.cpp"


@pytest.mark.parametrize(
    ("wrong", "key", "said"),
    [
        ({"timeout": 32}, "timeout", "between 0 and 31"),
        ({"retry_cnt": 8}, "retry_cnt", "between 0 and 7"),
        ({"gid_index": -2}, "gid_index", "between -1 and 255"),
        ({"hop_limit": 0}, "hop_limit", "between 1 and 255"),
        ({"qps_per_connection": 0}, "qps_per_connection", "between 1 and 128"),
        ({"qps_per_connection": 129}, "qps_per_connection", "between 1 and 128"),
        ({"slots": 4, "credit_every": 5}, "credit_every", "between 1 and 4"),
        ({"mtu": "9000"}, "mtu", "auto, 256"),
        ({"completion": "events", "spin": "20us"}, "spin", "never spins"),
        ({"devices": ("mlx5 0",)}, "transport.devices", "expected an RDMA device"),
        ({"connect_timeout": "10ms"}, "connect_timeout", "at least 1s"),
        ({"adaptive_routing": "yes"}, "adaptive_routing", "auto, true or false"),
        ({"adaptive_routing": "true", "operation": "send"}, "adaptive_routing", "expected write"),
        ({"ar_threshold_bytes": -1}, "ar_threshold_bytes", "between 0 and"),
        ({"pci_relaxed_ordering": "2"}, "pci_relaxed_ordering", "auto, true or false"),
    ],
)
def test_what_cannot_be_is_refused_by_key(wrong, key, said):
    with pytest.raises(ConfigError) as refused:
        VerbsTransport(**wrong)
    assert refused.value.key == key
    assert said in refused.value.message


@pytest.mark.parametrize("key", ["adaptive_routing", "pci_relaxed_ordering"])
@pytest.mark.parametrize(
    ("said", "told"),
    [(True, "true"), (False, "false"), ("true", "true"), ("auto", "auto")],
    ids=["true as YAML has it", "false as YAML has it", "text", "auto"],
)
def test_true_and_false_of_the_command_line_are_taken(key, said, told):
    transport = build(VerbsTransport, {key: said}, "transport")
    assert transport.settings(RankPlace(0, "h0"))[key] == told


def test_the_defaults_are_those_of_nccl():
    told = VerbsTransport().settings(RankPlace(0, "h0"))
    nccl = {"timeout": 20, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 12, "traffic_class": 0, "hop_limit": 255}
    nccl |= {"service_level": 0, "pkey_index": 0, "qps_per_connection": 1, "split": 0, "gid_index": -1}
    nccl |= {"slots": 8, "credit_every": 1, "ar_threshold_bytes": 8192}
    assert {key: int(told[key]) for key in nccl} == nccl
    assert (told["device"], told["mtu"], told["mode"], told["completion"]) == ("", "auto", "write", "adaptive")
    assert (told["adaptive_routing"], told["pci_relaxed_ordering"]) == ("auto", "auto")


def test_the_native_half_reads_every_key_and_no_other():
    text = NATIVE.read_text()
    text = text[text.index("VerbsSettings::parse") : text.index("given.done()")]
    read = {line.split('"')[1] for line in text.splitlines() if "given" in line and '"' in line}
    assert read - {"verbs"} == set(VerbsTransport().settings(RankPlace(0, "h0")))


@pytest.mark.parametrize(
    ("local_rank", "devices", "attributes", "device", "port"),
    [
        (0, (), {}, "", "1"),
        (1, ("mlx5_0", "mlx5_1:2"), {}, "mlx5_1", "2"),
        (2, ("mlx5_0", "mlx5_1:2"), {}, "mlx5_0", "1"),
        (1, (), {"rdma_devices": "rxe0,rxe1"}, "rxe1", "1"),
        (0, ("mlx5_0",), {"rdma_devices": "rxe0"}, "mlx5_0", "1"),
    ],
)
def test_each_rank_of_a_host_has_its_rail(local_rank, devices, attributes, device, port):
    told = VerbsTransport(devices=devices).settings(RankPlace(7, "h0", local_rank, attributes))
    assert (told["device"], told["port"]) == (device, port)


def test_events_never_spin_and_say_so_to_the_plan():
    assert VerbsTransport(completion="events").spin == "0"
    assert VerbsTransport(completion="busy").spin == "auto"


def test_namespaces_have_no_rdma():
    with pytest.raises(EnvironmentUnfit, match="namespaces without") as refused:
        VerbsTransport().check(["h0", "h1"], "netns")
    assert "make lab" in refused.value.hint
    VerbsTransport().check(["h0", "h1"], "inventory")
    VerbsTransport().check(["h0", "h1"], "loopback")


# -- what a host must have ----------------------------------------------------------------------------------------

ADDRESS = "10.0.0.1"


def port(number=1, *, address=ADDRESS, state="ACTIVE", layer=ETHERNET, mtu=0):
    gids = (Gid(3, IPv6Address(f"::ffff:{address}"), ROCE_V2),) if address else ()
    return RdmaPort(number, state, layer, gids, active_mtu_bytes=mtu)


def host(*devices, **more):
    return RdmaHost("host h0", devices, **more)


def nic(name, *ports, **more):
    return RdmaDevice(name, ports or (port(),), **more)


@pytest.mark.parametrize(
    ("transport", "found", "said", "do"),
    [
        ({}, host(nic("rxe0"), libraries=frozenset()), "host h0 has no libibverbs.so.1", "install libibverbs1"),
        ({}, host(), "host h0 has no RDMA device", "rdma link add rxe0"),
        ({"devices": ("mlx5_0",)}, host(), "host h0 has no RDMA device", "rdma link add rxe0"),
        ({"devices": ("mlx5_1",)}, host(nic("mlx5_0")), "host h0 has no RDMA device 'mlx5_1'", "did you mean 'mlx5_0'"),
        ({"devices": ("mlx5_0:2",)}, host(nic("mlx5_0")), "mlx5_0 has no port 2; its ports: 1", ""),
        ({}, host(nic("rxe0", port(state="DOWN"))), "host h0: port 1 of rxe0 is DOWN, expected ACTIVE", "interface up"),
        (
            {},
            host(nic("mlx5_0", port(state="INIT", layer=INFINIBAND))),
            "port 1 of mlx5_0 is INIT",
            "subnet manager",
        ),
        ({}, host(nic("rxe0", port(address=""))), "rxe0 cannot be reached: the port has no GID", "ip address add"),
        ({"gid_index": 5}, host(nic("rxe0")), "has no GID at index 5; it has 3 (RoCE v2 10.0.0.1)", "gid_index"),
        (
            {},
            host(nic("a0", port(address="10.0.0.8")), nic("a1", port(address="10.0.0.9"))),
            "no RDMA device has the address 10.0.0.1; devices there: a0, a1",
            "transport.devices=[NAME]",
        ),
        ({}, host(nic("rxe0", is_open_to_programs=False)), "no program open RDMA device rxe0", "modprobe ib_uverbs"),
        ({"mtu": "4096"}, host(nic("rxe0", port(mtu=1024))), "active MTU of 1024 bytes, found transport.mtu=4096", ""),
    ],
    ids=[
        "no-library", "no-device", "no-device-of-a-name", "another-device", "no-port", "down", "no-subnet-manager",
        "no-gid", "no-such-gid", "none-has-the-address", "no-uverbs", "mtu",
    ],
)  # fmt: skip
def test_a_host_without_what_it_takes_is_unfit_with_what_to_do(transport, found, said, do):
    with pytest.raises(EnvironmentUnfit) as refused:
        VerbsTransport(**transport).require(RankPlace(0, "h0"), ADDRESS, found)
    assert said in refused.value.message
    assert do in refused.value.hint
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("transport", "found"),
    [
        ({}, host(nic("rxe0"))),
        ({}, host(nic("rxe0"), libraries=frozenset({"libibverbs.so.1"}))),
        ({}, host(nic("rxe0", port(address="192.0.2.9")))),
        ({}, host(nic("down0", port(address="192.0.2.9", state="DOWN")), nic("rxe0"))),
        ({"devices": ("mlx5_0:2",)}, host(nic("mlx5_0", port(state="DOWN"), port(2)))),
        ({"gid_index": 3, "mtu": "4096"}, host(nic("rxe0"))),
        ({"mtu": "1024"}, host(nic("rxe0", port(mtu=1024)))),
    ],
    ids=["its-address", "library", "only-one", "another-is-down", "second-port", "gid-and-unknown-mtu", "mtu"],
)
def test_a_host_that_has_it_is_no_trouble(transport, found):
    VerbsTransport(**transport).require(RankPlace(0, "h0"), ADDRESS, found)


# -- how long a dead path takes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "stall_ns", "said"),
    [
        ({}, 30 * 10**9, "before the device gives up (34.36 s at the earliest)"),
        ({}, 40 * 10**9, ""),
        ({"timeout": 14}, 30 * 10**9, ""),
        ({"timeout": 0}, 30 * 10**9, "the device waits for acknowledgements without end"),
    ],
    ids=["defaults", "longer-stall", "shorter-timeout", "no-timeout"],
)
def test_the_plan_says_where_a_dead_path_is_a_stall(transport, stall_ns, said):
    notes = VerbsTransport(**transport).notes(stall_ns)
    assert len(notes) == bool(said)
    assert said in "".join(notes)


def test_the_configuration_file_shows_every_default():
    conf = Path(__file__).parents[2] / "conf" / "transport" / "verbs.yaml"
    shown = yaml.safe_load(conf.read_text())
    assert VerbsTransport(**{**shown, "devices": tuple(shown["devices"])}) == VerbsTransport()
    assert TRANSPORTS["verbs"][0].agent == "genie-agent-dl"
