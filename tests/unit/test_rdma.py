"""What RDMA hardware is there, which address a run takes and why, what counters mean, who gets which rail."""

import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path

import pytest
import rdma_devices as standin

from genie import doctor
from genie.errors import ConfigError, EnvironmentUnfit, GenieError, PlanError
from genie.rdma import counters, discovery, remote
from genie.rdma.model import (
    ETHERNET,
    INFINIBAND,
    Gid,
    RdmaDevice,
    RdmaPort,
    choose_gid,
    nccl_gid_index,
    pkeys_of,
    read_verbs_list,
)
from genie.rdma.rails import Rail, check_rails, parse_rail, rail_of, rails_by_interface, rails_of

LOCAL, GLOBAL = standin.LINK_LOCAL, "2001:db8::7"


def table(*entries: tuple[str, str]) -> list[Gid]:
    return [Gid(index, IPv6Address(address), f"RoCE {kind}") for index, (address, kind) in enumerate(entries)]


V4, OTHER_V4 = "::ffff:10.0.0.1", "::ffff:10.0.0.2"
TABLES = {
    "what mlx5 makes": (table((LOCAL, "v1"), (LOCAL, "v2"), (V4, "v1"), (V4, "v2")), 3, 3, "IPv4 address, as NCCL"),
    "what rxe makes": (table((LOCAL, "v2"), (V4, "v2")), 1, 1, "IPv4 address, as NCCL"),
    "version 2 before version 1": (table((LOCAL, "v2"), (V4, "v2"), (V4, "v1")), 1, 1, "IPv4 address"),
    "two addresses, the first": (table((V4, "v1"), (V4, "v2"), (OTHER_V4, "v1"), (OTHER_V4, "v2")), 1, 1, "first"),
    "IPv4 at index 0": (table((V4, "v2"), (LOCAL, "v2")), 0, 0, "IPv4 address"),
    "IPv6 only": (table((LOCAL, "v1"), (LOCAL, "v2"), (GLOBAL, "v1"), (GLOBAL, "v2")), 3, 0, "routable IPv6"),
    "link-local only": (table((LOCAL, "v1"), (LOCAL, "v2")), 1, 0, "reaches only this link"),
    "version 1 with IPv4": (table((LOCAL, "v1"), (V4, "v1")), 1, 1, "RoCE v1 with an IPv4"),
    "version 1 only": (table((LOCAL, "v1")), 0, 0, "the first one; it is not routed"),
    "nothing": ([], -1, 0, "interface is down"),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_gid_is_chosen_as_nccl_does_with_the_reason_in_words(name) -> None:
    gids, index, nccl, why = TABLES[name]
    choice = choose_gid(ETHERNET, gids)
    assert choice.index == index
    assert why in choice.why
    assert nccl_gid_index(gids) == nccl


def test_infiniband_goes_by_lid() -> None:
    gids = [Gid(0, IPv6Address("fe80::e41d:2d03:aa:1"), INFINIBAND)]
    assert choose_gid(INFINIBAND, gids).index == choose_gid(INFINIBAND, []).index == 0
    assert "LID" in choose_gid(INFINIBAND, gids).why


VERBS_LIST = {
    "devices": [
        {
            "name": "rxe0", "node_guid": "5054:00ff:fe12:3456", "firmware": "", "max_qp": 1048560, "max_qp_wr": 1048576,
            "max_cqe": 32767, "max_mr": 524287,
            "ports": [{
                "port": 1, "state": "ACTIVE", "link_layer": "Ethernet", "active_mtu_bytes": 4096,
                "max_mtu_bytes": 4096, "max_message_bytes": 8388608, "lid": 0,
                "gids": [{"index": 0, "gid": LOCAL, "type": "RoCE v2", "interface": "wire"},
                         {"index": 1, "gid": "::ffff:10.9.0.1", "type": "RoCE v2", "interface": "wire"}],
                "chosen_gid": {"index": 1, "why": "the first RoCE v2 GID with an IPv4 address, as NCCL takes"},
            }],
        }
    ]
}  # fmt: skip
"""As `genie-agent-dl verbs list` prints it (native/src/verbs_device.cpp)."""


def test_what_the_agent_lists_of_another_host_is_read() -> None:
    (device,) = read_verbs_list(json.dumps(VERBS_LIST))
    (port,) = device.ports
    assert (device.name, device.limits["max_qp_wr"], port.active_mtu_bytes) == ("rxe0", 1048576, 4096)
    assert (port.interfaces, port.gids[1].text, port.is_routed) == (("wire",), "10.9.0.1", True)
    told = VERBS_LIST["devices"][0]["ports"][0]["chosen_gid"]
    assert (port.chosen.index, port.chosen.why) == (told["index"], told["why"])


@pytest.mark.parametrize("text", ["", "{}", '{"devices": [{"name": "x"}]}', "[1]", "command not found"])
def test_anything_else_is_refused(text) -> None:
    with pytest.raises(GenieError, match="expected a list of RDMA devices"):
        read_verbs_list(text)


# -- this machine -------------------------------------------------------------------------------------------------


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    root = tmp_path / "infiniband"
    down = standin.Port(standin.four_gids("10.0.1.1", "eth1"), state="1: DOWN", pkeys=(0xFFFF, 0, 0x8001, 0))
    ports = [standin.Port([*standin.four_gids("10.0.0.1", "eth0"), None], counters={"out_of_sequence": 7})]
    standin.add_device(root, "mlx5_0", ports, module="mlx5_core")
    standin.add_device(root, "mlx5_1", [down], module="mlx5_core")
    rxe = standin.Port([(LOCAL, "RoCE v2", "wire"), ("::ffff:10.9.0.1", "RoCE v2", "wire")], rate="2.5 Gb/sec (1X SDR)")
    standin.add_device(root, "rxe0", [rxe])
    return root


def test_the_kernel_alone_tells_devices_ports_and_addresses(sysfs) -> None:
    first, second, soft = discovery.sysfs_devices(sysfs)
    assert [(d.name, d.driver) for d in (first, second, soft)] == [
        ("mlx5_0", "mlx5"), ("mlx5_1", "mlx5"), ("rxe0", "rxe"),
    ]  # fmt: skip
    (port,) = first.ports
    assert (port.state, port.link_layer, port.rate_bps, port.active_mtu_bytes) == ("ACTIVE", ETHERNET, 10**11, 0)
    assert [(gid.index, gid.type, gid.interface) for gid in port.gids] == [
        (0, "RoCE v1", "eth0"), (1, "RoCE v2", "eth0"), (2, "RoCE v1", "eth0"), (3, "RoCE v2", "eth0"),
    ]  # fmt: skip
    assert (port.chosen.index, port.gids[3].text) == (3, "10.0.0.1")
    assert (second.ports[0].state, second.ports[0].pkeys) == ("DOWN", {0: 0xFFFF, 2: 0x8001})
    assert port.pkeys == {0: 0xFFFF}
    assert soft.ports[0].rate_bps == 2_500_000_000


def test_pyverbs_tells_the_same_and_mtu_and_limits_besides(sysfs, monkeypatch) -> None:
    port = standin.Port(standin.four_gids("10.0.0.1", "eth0"), mtu=5)
    for name, module in standin.pyverbs({"mlx5_0": [port]}).items():
        monkeypatch.setitem(sys.modules, name, module)
    (device,) = discovery.pyverbs_devices(sysfs=sysfs)
    by_kernel = discovery.sysfs_devices(sysfs)[0]
    assert (device.ports[0].gids, device.ports[0].pkeys) == (by_kernel.ports[0].gids, {0: 0xFFFF})
    assert (device.driver, device.firmware) == (by_kernel.driver, by_kernel.firmware)
    assert (device.ports[0].active_mtu_bytes, device.ports[0].rate_bps) == (4096, 10**11)
    assert device.limits["max_qp_wr"] == 8192
    assert discovery.local_devices(sysfs=sysfs) == (device,)


def test_a_device_that_cannot_be_opened_says_what_to_look_at(sysfs, monkeypatch) -> None:
    modules = standin.pyverbs({})
    modules["pyverbs.device"].get_device_list = lambda: [type("Device", (), {"name": b"mlx5_0"})()]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(EnvironmentUnfit, match="cannot be asked: Failed to open device mlx5_0") as caught:
        discovery.pyverbs_devices(sysfs=sysfs)
    assert "ib_uverbs" in caught.value.hint
    assert len(discovery.local_devices(sysfs=sysfs)) == 3  # what the kernel shows is there all the same


def without_pyverbs(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(discovery.importlib, "import_module", refuse)
    monkeypatch.setattr(discovery.importlib.util, "find_spec", lambda name: None)


def refuse(name: str):
    raise ImportError(f"No module named {name!r}")


def test_where_pyverbs_is_missing_one_sentence_says_how_to_get_it(monkeypatch, tmp_path) -> None:
    without_pyverbs(monkeypatch)
    assert discovery.find_pyverbs([tmp_path]) == ""
    with pytest.raises(EnvironmentUnfit, match="pyverbs is not installed") as caught:
        discovery.import_pyverbs([tmp_path])
    assert "apt-get install python3-pyverbs" in caught.value.hint
    assert "cython==3.0.12" in caught.value.hint


def test_the_distributions_pyverbs_is_found_without_its_folder_on_the_path(monkeypatch, tmp_path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").write_text("MARK = 1\n")
    (package / "device.py").write_text("MARK = 2\n")
    (tmp_path / "stranger.py").write_text("")
    assert discovery.find_pyverbs([tmp_path]) != str(package)  # no extension module fits this interpreter
    monkeypatch.setattr(discovery.sysconfig, "get_config_var", lambda name: ".py")
    monkeypatch.setattr(discovery.importlib.util, "find_spec", lambda name: None)
    before = list(sys.path)
    real = discovery.importlib.import_module
    monkeypatch.setattr(
        discovery.importlib, "import_module", lambda name: refuse(name) if name == "pyverbs" else real(name)
    )
    assert discovery.find_pyverbs([tmp_path]) == str(package)
    try:
        assert discovery.import_pyverbs([tmp_path]).MARK == 1
        assert real("pyverbs.device").MARK == 2
        assert sys.path == before
        with pytest.raises(ImportError):
            real("stranger")
    finally:
        for name in ("pyverbs", "pyverbs.device"):
            sys.modules.pop(name, None)


# -- counters -----------------------------------------------------------------------------------------------------


def test_counters_are_read_as_integers_by_the_drivers_names(sysfs) -> None:
    found = counters.read_counters("mlx5_0", sysfs=sysfs)
    assert (found["out_of_sequence"], found["np_cnp_sent"]) == (7, 0)
    assert "lifespan" not in found  # how often the kernel asks the hardware, and no count
    assert set(standin.RXE_COUNTERS) - set(counters.read_counters("rxe0", sysfs=sysfs)) == {"lifespan"}


def test_a_port_that_is_not_there_is_named(sysfs) -> None:
    with pytest.raises(EnvironmentUnfit, match="port 2 of RDMA device 'mlx5_0'") as caught:
        counters.read_counters("mlx5_0", 2, sysfs)
    assert caught.value.hint == "devices here: mlx5_0, mlx5_1, rxe0"


def test_the_command_for_other_hosts_gives_the_same() -> None:
    folder = "/sys/class/infiniband/rxe0/ports/1/hw_counters"
    text = f"{folder}/out_of_seq_request:12\n{folder}/sent_pkts:99\n{folder}/lifespan:10\ngrep: {folder}/x: Invalid"
    assert counters.counters_argv("rxe0")[-1] == folder
    assert counters.parse_counters(text) == {"out_of_seq_request": 12, "sent_pkts": 99}


@pytest.mark.parametrize(
    ("driver", "counted", "kinds"),
    [
        (
            "rxe",
            {"sent_pkts": 900, "completer_retry_err": 3, "out_of_seq_request": 5, "retry_exceeded_err": 1},
            [("out_of_seq_request", "loss"), ("completer_retry_err", "retry"), ("retry_exceeded_err", "given up")],
        ),
        (
            "mlx5",
            {"local_ack_timeout_err": 2, "np_cnp_sent": 40, "out_of_buffer": 1, "rx_write_requests": 9},
            [("local_ack_timeout_err", "timeout"), ("out_of_buffer", "receiver not ready"),
             ("np_cnp_sent", "congestion")],
        ),
        ("irdma", {"cnpSent": 4, "RetransSegs": 2}, [("RetransSegs", "retry"), ("cnpSent", "congestion")]),
        ("bnxt_re", {"to_retransmits": 2, "seq_err_naks_rcvd": 1},
         [("seq_err_naks_rcvd", "loss"), ("to_retransmits", "timeout")]),
        ("efa", {"rx_drops": 2, "unresponsive_remote_events": 1},
         [("unresponsive_remote_events", "given up"), ("rx_drops", "drop")]),
        ("other", {"out_of_sequence": 5}, []),
    ],
    ids=["rxe", "mlx5", "irdma", "bnxt_re", "efa", "unknown"],
)  # fmt: skip
def test_counts_are_explained_by_driver_the_worst_kind_first(driver, counted, kinds) -> None:
    assert [(count.name, count.kind) for count in counters.explain(counted, driver)] == kinds


def test_every_meaning_has_a_kind_and_a_name_that_its_driver_has() -> None:
    for driver, names in counters.DRIVERS.items():
        assert {meaning.kind for meaning in names.values()} <= set(counters.KINDS), driver
    assert set(counters.DRIVERS["rxe"]) < set(standin.RXE_COUNTERS)
    assert set(counters.DRIVERS["mlx5"]) < set(standin.MLX5_COUNTERS)


@pytest.mark.parametrize(
    ("names", "driver"),
    [
        (standin.RXE_COUNTERS, "rxe"),
        (standin.MLX5_COUNTERS, "mlx5"),
        (["ip4InDiscards", "cnpSent", "RxUDP"], "irdma"),
        (["to_retransmits", "seq_err_naks_rcvd", "rx_pkts"], "bnxt_re"),
        (["rx_drops", "retrans_pkts", "tx_pkts"], "efa"),
        (["port_xmit_data"], ""),
    ],
    ids=["rxe", "mlx5", "irdma", "bnxt_re", "efa", "none"],
)
def test_a_driver_is_known_by_the_names_of_its_counters(names, driver) -> None:
    assert counters.driver_by_names(names) == driver


def test_only_what_moved_and_was_there_before_is_a_difference() -> None:
    assert counters.difference({"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 2, "d": 9}) == {"a": 3}


# -- rails --------------------------------------------------------------------------------------------------------


def device(name: str, *ports: RdmaPort) -> RdmaDevice:
    return RdmaDevice(name, ports)


def port(number: int = 1, *, state: str = "ACTIVE", layer: str = ETHERNET, interface: str = "", gids=None) -> RdmaPort:
    made = table((V4, "v2")) if gids is None else gids
    return RdmaPort(number, state, layer, tuple(Gid(g.index, g.address, g.type, interface) for g in made))


@pytest.mark.parametrize(
    ("text", "rail"),
    [("mlx5_0", Rail("mlx5_0", 1)), ("mlx5_0:2", Rail("mlx5_0", 2)), (" rdmap0s31 ", Rail("rdmap0s31", 1))],
)
def test_a_rail_is_a_device_and_its_port(text, rail) -> None:
    assert parse_rail(text) == rail
    assert parse_rail(str(rail)) == rail


@pytest.mark.parametrize("text", ["", "mlx5_0:0", "mlx5_0:x", "a b", "../x", ":1"])
def test_what_is_no_rail_is_refused(text) -> None:
    with pytest.raises(ConfigError, match=r"transport\.devices: expected an RDMA device"):
        parse_rail(text)


def test_the_user_is_asked_before_the_inventory_and_ranks_go_round() -> None:
    attributes = {"rdma_devices": "mlx5_0,mlx5_1:2"}
    rails = rails_of("h0", attributes)
    assert [str(rail) for rail in rails] == ["mlx5_0", "mlx5_1:2"]
    assert [str(rail_of(rank, rails)) for rank in range(4)] == ["mlx5_0", "mlx5_1:2"] * 2
    assert [str(rail) for rail in rails_of("h0", attributes, ["rxe0"])] == ["rxe0"]
    assert rails_of("h0", {}) == ()
    assert rail_of(3, ()) is None


def test_a_rail_named_twice_is_refused_with_its_host() -> None:
    with pytest.raises(PlanError, match="host h3: genie_rdma_devices names mlx5_0 twice"):
        rails_of("h3", {"rdma_devices": "mlx5_0,mlx5_1,mlx5_0:1"})
    with pytest.raises(ConfigError, match="host h3: genie_rdma_devices: expected an RDMA device"):
        rails_of("h3", {"rdma_devices": "mlx5_0,"})


def test_cables_name_rails_by_the_interface_behind_the_port() -> None:
    devices = [device("mlx5_0", port(interface="eth0")), device("mlx5_1", port(1), port(2, interface="eth1"))]
    assert rails_by_interface(devices, ["eth1", "eth0"]) == (Rail("mlx5_1", 2), Rail("mlx5_0", 1))
    with pytest.raises(PlanError, match=r"behind interface eth9; those that have one: eth0 \(mlx5_0\), eth1"):
        rails_by_interface(devices, ["eth9"])


@pytest.mark.parametrize(
    ("rails", "message"),
    [
        (["mlx5_9"], "host h0 has no RDMA device 'mlx5_9'\n  did you mean"),
        (["mlx5_0:2"], "mlx5_0 has no port 2; its ports: 1"),
        (["mlx5_1"], "port 1 of mlx5_1 is DOWN, expected ACTIVE"),
        (["mlx5_2"], "port 1 of mlx5_2 cannot be reached: the port has no GID"),
        (["mlx5_0", "ib0"], "mlx5_0 is Ethernet and ib0 is InfiniBand"),
    ],
    ids=["no-device", "no-port", "down", "no-address", "two-layers"],
)
def test_rails_that_do_not_fit_are_refused_by_name(rails, message) -> None:
    devices = [device("mlx5_0", port()), device("mlx5_1", port(state="DOWN")), device("mlx5_2", port(gids=[])),
               device("ib0", port(layer=INFINIBAND))]  # fmt: skip
    with pytest.raises(PlanError if len(rails) > 1 else EnvironmentUnfit) as refused:
        check_rails("host h0", [parse_rail(text) for text in rails], devices)
    assert message in str(refused.value)
    check_rails("host h0", [Rail("mlx5_0")], devices)


@pytest.mark.parametrize(
    ("pkeys", "index", "message"),
    [
        ({0: 0xFFFF}, 0, ""),
        ({0: 0xFFFF, 2: 0x8001}, 2, ""),
        ({}, 7, ""),
        ({0: 0xFFFF}, 7, "host h0: port 1 of rxe0 has no partition key at index 7; it has 1: 0 (0xffff)\n  correct"),
        ({0: 0xFFFF, 2: 0x8001}, 1, "at index 1; it has 2: 0 (0xffff), 2 (0x8001)"),
        ({index: 0x8000 + index for index in range(9)}, 9, "it has 9: 0 (0x8000), 1 (0x8001)"),
    ],
    ids=["the first", "one of two", "nobody said", "beyond the table", "an empty place", "of many"],
)
def test_a_partition_key_that_a_port_does_not_have_is_refused(pkeys, index, message) -> None:
    devices = [device("rxe0", replace(port(), pkeys=pkeys))]
    with pytest.raises(EnvironmentUnfit) if message else contextlib.nullcontext() as refused:
        check_rails("host h0", [Rail("rxe0")], devices, pkey_index=index)
    assert not message or message in str(refused.value)


def test_partition_keys_are_found_where_the_agent_tells_none(sysfs) -> None:
    told = [
        replace(one, ports=tuple(replace(p, pkeys={}) for p in one.ports)) for one in discovery.sysfs_devices(sysfs)
    ]
    assert discovery.with_pkeys(told, sysfs) == discovery.sysfs_devices(sysfs)


@pytest.mark.parametrize("text", ["", "ffff", "0x", "0xfffff", "-0x001", "0x0000"])
def test_a_partition_key_that_makes_no_sense_is_passed_over(text) -> None:
    assert pkeys_of({0: "0xffff", 1: text}) == {0: 0xFFFF}


def test_a_shell_tells_of_the_same_devices_as_sysfs(sysfs) -> None:
    (sysfs.parent / "infiniband_verbs" / "uverbs0").mkdir(parents=True)
    (sysfs.parent / "infiniband_verbs" / "uverbs0" / "ibdev").write_text("mlx5_0\n")
    script = remote.LOOK.replace("/sys/class", str(sysfs.parent))
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    told = remote.devices_of(said.replace(str(sysfs.parent), "/sys/class").splitlines())
    by_sysfs = discovery.sysfs_devices(sysfs)
    assert [one.name for one in told] == [one.name for one in by_sysfs]
    for heard, read in zip(told, by_sysfs, strict=True):
        assert heard.is_open_to_programs == (heard.name == "mlx5_0")
        assert [replace(port, rate_bps=0) for port in read.ports] == list(heard.ports)


def test_a_shell_asks_the_loader_for_every_library(tmp_path) -> None:
    cache = "".join(f"\t{name} (libc6,x86-64) => /opt/{name}\n" for name in (*remote.LIBRARIES, "libfabric.so.2"))
    (tmp_path / "ldconfig").write_text(f"#!/bin/sh\nprintf '{cache}'\n")
    (tmp_path / "ldconfig").chmod(0o755)
    script = re.sub(r"for d in /lib .*; do", "for d in; do", remote.LOOK)  # what this machine has is not the question
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": path}).stdout
    assert remote.libraries_of(said.splitlines()) == set(remote.LIBRARIES)


def test_a_shell_on_a_host_without_rdma_tells_of_none(tmp_path) -> None:
    script = remote.LOOK.replace("/sys/class", str(tmp_path))
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert remote.devices_of(said) == ()
    assert all(line.split()[0] in remote.WORDS for line in said)


PORT = "rdmaport mlx5_0 1 Ethernet 4: ACTIVE"
GID_FILE = "rdmafile /sys/class/infiniband/mlx5_0/ports/1/gids/"


@pytest.mark.parametrize(
    ("line", "ports"),
    [
        ("rdmaport mlx5_0 x Ethernet 4: ACTIVE", []),
        ("rdmaport mlx5_0 -1 Ethernet 4: ACTIVE", []),
        (f"rdmaport mlx5_0 {'9' * 5000} Ethernet 4: ACTIVE", []),
        ("rdmaport mlx5_0 \N{SUPERSCRIPT TWO} Ethernet 4: ACTIVE", []),
        ("rdmaport mlx5_0 1", []),
        ("rdmaport mlx5_0 1 4: ACTIVE", [(1, "ACTIVE", "")]),
        (PORT, [(1, "ACTIVE", ETHERNET)]),
    ],
    ids=["no number", "negative", "5000 digits", "a superscript", "cut short", "no link layer", "as it should be"],
)
def test_a_line_of_a_host_that_makes_no_sense_is_passed_over(line, ports):
    said = [(port.number, port.state, port.link_layer) for device in remote.devices_of([line]) for port in device.ports]
    assert said == ports


@pytest.mark.parametrize(
    "entry",
    [f"{'9' * 5000}:fe80::1", "0:no address", "\N{SUPERSCRIPT TWO}:fe80::1"],
    ids=["5000 digits", "text", "a superscript"],
)
def test_a_gid_that_makes_no_sense_is_passed_over(entry):
    (device,) = remote.devices_of([PORT, GID_FILE + entry])
    assert device.ports[0].gids == ()


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ([], None),
        (["libraries known"], frozenset()),
        (["libraries known", "library libfabric.so.1", "if eth0 1"], frozenset({"libfabric.so.1"})),
        (["libraries known", *map("library {}".format, remote.LIBRARIES)], frozenset(remote.LIBRARIES)),
    ],
    ids=["not asked", "none", "one", "all"],
)
def test_what_a_loader_knows_is_told_from_what_nobody_asked(lines, known) -> None:
    assert remote.libraries_of(lines) == known


# -- the doctor ---------------------------------------------------------------------------------------------------


def answers(sysfs: Path) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor._examine_rdma(sysfs)}


def test_the_doctor_says_what_would_be_chosen_and_why(sysfs) -> None:
    (sysfs.parent / "infiniband_verbs").mkdir()
    found = answers(sysfs)
    assert found["RDMA in the kernel"].ok
    assert (
        "mlx5_0 (mlx5): port 1 active, Ethernet, 100 Gb/s; mlx5_1 (mlx5): port 1 down" in found["RDMA devices"].detail
    )
    addresses = found["RDMA addresses"]
    assert addresses.ok
    assert "mlx5_0 port 1: GID 3 (RoCE v2 10.0.0.1): the first RoCE v2 GID with an IPv4" in addresses.detail


def test_the_doctor_says_where_nccl_would_take_another(tmp_path) -> None:
    root = tmp_path / "infiniband"
    standin.add_device(root, "rxe0", [standin.Port([(LOCAL, "IB/RoCE v1", "w"), (GLOBAL, "RoCE v2", "w")])])
    addresses = answers(root)["RDMA addresses"]
    assert not addresses.ok
    assert addresses.detail.endswith("the first with a routable IPv6 address; NCCL would take GID 0")
    assert "ip address add" in addresses.remedy


def test_without_any_of_it_each_no_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "find_pyverbs", lambda: "")
    monkeypatch.setattr(doctor, "_find_program", lambda name: "")
    monkeypatch.setattr(doctor, "_load", lambda library: "not found")

    def find_none(name: str) -> Path:
        raise EnvironmentUnfit(f"native program {name!r} was not found")

    monkeypatch.setattr(doctor, "find_binary", find_none)
    found = answers(tmp_path / "infiniband")
    for name in ("RDMA in the kernel", "RDMA devices", "RDMA addresses", "library libibverbs.so.1",
                 "library libfabric.so.1", "program genie-agent-dl", "program genie-agent-gloo", "pyverbs",
                 "perftest"):  # fmt: skip
        assert not found[name].ok, name
        assert found[name].remedy, name
    assert "rdma link add rxe0" in found["RDMA devices"].remedy
    assert "apt-get install libibverbs1" in found["library libibverbs.so.1"].remedy
