"""``transport=verbs``: what its configuration refuses, and what its native half is told."""

from pathlib import Path

import pytest
import yaml

from genie.errors import ConfigError, PlanError
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
    ],
)
def test_what_cannot_be_is_refused_by_key(wrong, key, said):
    with pytest.raises(ConfigError) as refused:
        VerbsTransport(**wrong)
    assert refused.value.key == key
    assert said in refused.value.message


def test_the_defaults_are_those_of_nccl():
    told = VerbsTransport().settings(RankPlace(0, "h0"))
    nccl = {"timeout": 20, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 12, "traffic_class": 0, "hop_limit": 255}
    nccl |= {"service_level": 0, "pkey_index": 0, "qps_per_connection": 1, "split": 0, "gid_index": -1}
    nccl |= {"slots": 8, "credit_every": 1}
    assert {key: int(told[key]) for key in nccl} == nccl
    assert (told["device"], told["mtu"], told["mode"], told["completion"]) == ("", "auto", "write", "adaptive")


def test_the_native_half_reads_every_key_and_no_other():
    read = {line.split('"')[1] for line in NATIVE.read_text().splitlines() if "given" in line and '"' in line}
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
    with pytest.raises(PlanError, match="namespaces without") as refused:
        VerbsTransport().check(["h0", "h1"], "netns")
    assert "make lab" in refused.value.hint
    VerbsTransport().check(["h0", "h1"], "inventory")
    VerbsTransport().check(["h0", "h1"], "loopback")


def test_the_configuration_file_shows_every_default():
    conf = Path(__file__).parents[2] / "conf" / "transport" / "verbs.yaml"
    shown = yaml.safe_load(conf.read_text())
    assert VerbsTransport(**{**shown, "devices": tuple(shown["devices"])}) == VerbsTransport()
    assert TRANSPORTS["verbs"][0].agent == "genie-agent-dl"
