"""The doubles of tools nobody here has behave as their sources say: traps, refusals and failures above all."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "standins"))
import cumulus
import eos
import infiniband
import mlx5_link
import mlx5_sysfs
import pci
import sonic
from standin import Failed, State, call, install

CONNECTX = "ens1f0np0"


def run(state: State, line: str) -> str:
    tool, *argv = shlex.split(line)
    return call(state, tool, argv)


def failing(state: State, line: str) -> Failed:
    with pytest.raises(Failed) as caught:
        run(state, line)
    return caught.value


def own(state: State) -> dict[str, Any]:
    return state["devices"][CONNECTX]


# ---- mlnx_qos and dcb ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [f"mlnx_qos -i {CONNECTX} --pfc 0,0,0,0,0,0,0,0", f"dcb pfc set dev {CONNECTX} prio-pfc 3:off"],
    ids=["mlnx_qos", "dcb"],
)
def test_pfc_off_shows_in_both_tools_and_toggles_the_link(command: str) -> None:
    state = mlx5_link.host()
    run(state, command)
    assert json.loads(run(state, f"dcb -j pfc show dev {CONNECTX}"))["prio_pfc"] == [False] * 8
    assert re.search(r"enabled( +0){8}", run(state, f"mlnx_qos -i {CONNECTX}"))
    assert own(state)["link_down_events_phy"] == 1
    assert "rx_prio3_pause" not in run(state, f"ethtool -S {CONNECTX}"), "the counters of a priority go with its PFC"


def test_firmware_dcbx_takes_the_write_and_keeps_its_own() -> None:
    state = mlx5_link.host()
    run(state, f"mlnx_qos -i {CONNECTX} -d fw")
    shown = run(state, f"mlnx_qos -i {CONNECTX} --pfc 0,0,0,0,0,0,0,0")
    assert "DCBX mode: Firmware controlled" in shown
    assert own(state)["dcb"]["pfc"][3] == 1


def test_trust_pcp_and_back_loses_the_operators_dscp_map() -> None:
    state = mlx5_link.host()
    run(state, f"mlnx_qos -i {CONNECTX} --dscp2prio set,26,5")
    run(state, f"mlnx_qos -i {CONNECTX} --trust pcp")
    assert "trust state: pcp" in run(state, f"mlnx_qos -i {CONNECTX}")
    run(state, f"mlnx_qos -i {CONNECTX} --trust dscp")
    assert own(state)["dcb"]["dscp_prio"]["26"] == 3
    run(state, f"mlnx_qos -i {CONNECTX} --dscp2prio set,26,5")
    assert own(state)["dcb"]["dscp_prio"]["26"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--pfc 0,0,0", "must have 8 items"),
        ("--pfc 0,0,0,2,0,0,0,0", "Bad value for PFC"),
        ("-r 0,0,0,10", "must have 8 items"),
        ("-r 0,0,0,2.5,0,0,0,0", "Bad value for ratelimit"),
        ("--trust cos", "Invalid trust state"),
        ("--trust pcp --dscp2prio set,1,1", "at the same time"),
        ("--buffer_size 130944,20000,0,0,0,0,0,0", "Buffers commands error"),
        ("--buffer_size 900000,900000", "Buffers commands error"),
        ("surplus", "Bad arguments"),
    ],
)
def test_mlnx_qos_refuses_on_standard_output(arguments: str, said: str) -> None:
    failed = failing(mlx5_link.host(), f"mlnx_qos -i {CONNECTX} {arguments}")
    assert (failed.code, said in failed.out) == (1, True)


@pytest.mark.parametrize(
    ("fixed", "asked", "kbps"),
    [
        (True, "10Gbit", 10_000_000),
        (True, "1550Mbit", 1_500_000),
        (True, "30500Mbit", 30_000_000),
        (False, "100Mbit", 12_500_000),
    ],
    ids=["as asked", "in steps of 100 Mb/s", "in steps of 1 Gb/s", "125 times too fast before iproute2 v6.18"],
)
def test_a_rate_is_what_the_hardware_can(fixed: bool, asked: str, kbps: int) -> None:
    state = mlx5_link.host() | {"iproute2_dcb_units_fixed": fixed}
    run(state, f"dcb maxrate set dev {CONNECTX} tc-maxrate 3:{asked}")
    assert own(state)["dcb"]["maxrate_kbps"][3] == kbps
    assert json.loads(run(state, f"dcb -j maxrate show dev {CONNECTX}"))["tc_maxrate"][3] == kbps * 125


def test_mlnx_qos_limits_in_gigabits_and_zero_is_none() -> None:
    state = mlx5_link.host()
    assert "tc: 3 ratelimit: 10.0 Gbps, tsa: vendor" in run(state, f"mlnx_qos -i {CONNECTX} -r 0,0,0,10,0,0,0,0")
    assert "tc: 3 ratelimit: unlimited" in run(state, f"mlnx_qos -i {CONNECTX} -r 0,0,0,0,0,0,0,0")


def test_buffer_sizes_come_back_in_whole_cells() -> None:
    state = mlx5_link.host()
    run(state, f"dcb buffer set dev {CONNECTX} buffer-size 1:70001")
    assert json.loads(run(state, f"dcb -j buffer show dev {CONNECTX}"))["buffer_size"][1] == 69_888


# ---- links --------------------------------------------------------------------------------------------------------


def test_a_forced_speed_flaps_and_a_peer_without_it_gives_no_link() -> None:
    state = mlx5_link.host()
    run(state, f"ethtool -s {CONNECTX} speed 100000 autoneg off")
    assert "Speed: 100000Mb/s" in run(state, f"ethtool {CONNECTX}")
    assert own(state)["link_down_events_phy"] == 1
    own(state)["peer_speeds"] = [200_000]
    run(state, f"ethtool -s {CONNECTX} speed 50000 autoneg off")
    shown = run(state, f"ethtool {CONNECTX}")
    assert ("Speed: Unknown!" in shown, "Link detected: no" in shown) == (True, True)


def test_a_peer_with_autonegotiation_only_leaves_a_forced_end_dark() -> None:
    state = mlx5_link.host(peer_needs_autoneg=True)
    run(state, f"ethtool -s {CONNECTX} speed 200000 autoneg off")
    assert not own(state)["carrier"]


def test_autoneg_on_without_a_mask_advertises_more_than_was_advertised() -> None:
    state = mlx5_link.host(advertised=[100_000], speed=100_000)
    run(state, f"ethtool -s {CONNECTX} speed 50000 autoneg off")
    run(state, f"ethtool -s {CONNECTX} autoneg on")
    assert own(state)["advertised"] == own(state)["supported"]
    run(state, f"ethtool -s {CONNECTX} autoneg on advertise {1 << 59:x}")
    assert own(state)["advertised"] == [100_000]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (f"-s {CONNECTX} speed 400000 autoneg off", 75),
        (f"-G {CONNECTX} rx 99999", 1),
        (f"-A {CONNECTX} rx on", 1),
        (f"-A {CONNECTX} rx off", 78),
        ("eth9", 1),
    ],
    ids=["no such speed", "ring too large", "pause beside PFC", "nothing modified", "no device"],
)
def test_ethtool_refuses(arguments: str, code: int) -> None:
    assert failing(mlx5_link.host(), f"ethtool {arguments}").code == code


def test_mlxlink_cannot_take_a_port_down_that_is_kept_up() -> None:
    state = mlx5_link.host(keep_link_up=True)
    failed = failing(state, "mlxlink -d mlx5_0 --json --port_state DN")
    assert json.loads(failed.out)["status"]["code"] == 1
    run(state, f"ip link set dev {CONNECTX} down")
    assert own(state)["carrier"], "the switch does not see this link go down"


def test_mlxlink_takes_the_port_down_and_up_and_says_so() -> None:
    state = mlx5_link.host()
    shown = json.loads(run(state, "mlxlink -d mlx5_0 --json --port_state DN"))
    assert shown["result"]["output"]["Operational Info"]["State"] == "Disable"
    shown = json.loads(run(state, "mlxlink -d mlx5_0 --json --port_state UP"))
    assert (
        shown["result"]["output"]["Operational Info"] | {"Speed": "200G", "State": "Active"}
        == shown["result"]["output"]["Operational Info"]
    )


def test_devlink_shows_no_limit_of_zero_and_wants_whole_megabits() -> None:
    state = mlx5_link.host() | {"rates": {"pci/0000:17:00.0/1": {}}}
    run(state, "devlink port function rate set pci/0000:17:00.0/1 tx_max 10gbit")
    shown = json.loads(run(state, "devlink -j port function rate show pci/0000:17:00.0/1"))
    assert shown["rate"]["pci/0000:17:00.0/1"]["tx_max"] == 1_250_000_000
    run(state, "devlink port function rate set pci/0000:17:00.0/1 tx_max 0")
    shown = json.loads(run(state, "devlink -j port function rate show pci/0000:17:00.0/1"))
    assert "tx_max" not in shown["rate"]["pci/0000:17:00.0/1"]
    assert failing(state, "devlink port function rate set pci/0000:17:00.0/1 tx_max 1000bps").code == 1


# ---- PCI ----------------------------------------------------------------------------------------------------------


def test_a_pci_link_retrains_to_the_target_only_when_told() -> None:
    state = {"platform": "mlx5", "sysfs": "", "devices": {}, "pci": {"0000:17:00.0": pci.slot()}}
    assert run(state, "setpci -s 0000:16:01.0 CAP_EXP+30.w") == "0005\n"
    run(state, "setpci -s 16:01.0 CAP_EXP+30.w=0003:000f")
    assert run(state, "setpci -s 16:01.0 CAP_EXP+12.w") == "2105\n"
    run(state, "setpci -s 16:01.0 CAP_EXP+10.w=20:20")
    assert run(state, "setpci -s 16:01.0 CAP_EXP+12.w") == "2103\n"
    assert run(state, "setpci -s 16:01.0 CAP_EXP+10.w") == "0040\n", "the bit that retrains reads as 0"
    assert run(state, "setpci -s 0000:99:00.0 CAP_EXP+30.w") == "", "no device: nothing printed, exit code 0"


def test_a_stuck_pci_link_stays_where_it_is() -> None:
    state = {"platform": "mlx5", "sysfs": "", "devices": {}, "pci": {"0000:17:00.0": pci.slot(stuck=True)}}
    run(state, "setpci -s 16:01.0 CAP_EXP+30.w=0001:000f")
    run(state, "setpci -s 16:01.0 CAP_EXP+10.w=20:20")
    assert state["pci"]["0000:17:00.0"]["speed"] == 5


# ---- the fake sysfs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        ("ofed", f"class/net/{CONNECTX}/ecn/roce_rp/enable/3"),
        ("ofed-old", f"class/net/{CONNECTX}/roce_rp/ecn_roce_rp_enable"),
        ("upstream", "kernel/debug/mlx5/0000:17:00.0/cc_params/np_cnp_dscp"),
    ],
)
def test_each_driver_has_its_own_paths(layout: str, path: str, tmp_path: Path) -> None:
    trees = {name: mlx5_sysfs.build(tmp_path / name, mlx5_link.host(), name) for name in mlx5_sysfs.LAYOUTS}
    assert [name for name, tree in trees.items() if (tree / path).exists()] == [layout]


def in_sysfs(tree: Path, bin_dir: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``script`` by sh in a mount namespace whose /sys is ``tree``."""
    entered = 'mount --bind "$0" /sys && exec sh -c "$@"'
    return subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", entered, str(tree), script, *words],
        env={"PATH": f"{bin_dir}:{os.environ['PATH']}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("host")
    state = mlx5_link.host()
    tree = mlx5_sysfs.build(folder, state)
    bin_dir = install(folder, state)

    def enter(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        return in_sysfs(tree, bin_dir, script, *words)

    if enter("true").returncode != 0:
        pytest.skip("no mount namespace can be had")
    return enter


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("ecn/roce_rp/enable/3", "0", ""),
        ("ecn/roce_rp/enable/3", "2", "Invalid argument"),
        ("ecn/roce_np/cnp_dscp", "20", ""),
        ("ecn/roce_np/cnp_dscp", "64", "Invalid argument"),
        ("ecn/roce_np/cnp_802p_prio", "eight", "Invalid argument"),
        ("speed", "10", "Permission denied"),
        ("ecn/roce_xx/enable/3", "0", "No such file or directory"),
    ],
)
def test_sysfs_takes_what_the_driver_takes(
    mounted: Callable[..., subprocess.CompletedProcess[str]], path: str, value: str, said: str
) -> None:
    full = f"/sys/class/net/{CONNECTX}/{path}"
    done = mounted(
        'before=$(cat "$2" 2>/dev/null); printf %s "$1" | tee "$2" >/dev/null && cat "$2"', "sh", value, full
    )
    if said:
        assert done.returncode != 0
        assert said in done.stderr
    else:
        assert done.stdout == f"{value}\n", done.stderr


# ---- InfiniBand ---------------------------------------------------------------------------------------------------


def test_a_speed_waits_for_the_reset_and_flaps_the_link() -> None:
    state = infiniband.subnet()
    run(state, "ibportstate 5 1 espeed 2")
    assert "LinkSpeedExtActive:..............53.125 Gbps" in run(state, "ibportstate 5 1 query")
    run(state, "ibportstate 5 1 reset")
    shown = run(state, "ibportstate 5 1")
    assert "LinkSpeedExtActive:..............25.78125 Gbps" in shown.split("Peer PortInfo:")[0]
    assert "LinkDownedCounter:...............1" in run(state, "perfquery -x 5 1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("5 1 espeed 8", "smp set portinfo failed"),
        ("5 1 espeed 32", "invalid extended speed value 32"),
        ("5 1 width 16", "smp set portinfo failed"),
        ("5 1 flap", "invalid operation: flap"),
        ("9 1 query", "nodeinfo failed"),
    ],
)
def test_ibportstate_refuses(arguments: str, said: str) -> None:
    failed = failing(infiniband.subnet(), f"ibportstate {arguments}")
    assert (failed.code, said in failed.err) == (255, True)


def test_old_tools_only_touch_switch_ports() -> None:
    state = infiniband.subnet() | {"switch_ports_only": True}
    assert "switch port" in failing(state, "ibportstate -C mlx5_0 -P 1 2 1 disable").err
    run(state, "ibportstate 5 2 disable")


def test_after_its_own_port_is_off_a_host_reaches_nothing_in_band() -> None:
    state = infiniband.subnet()
    assert "may be irreversible" in run(state, "ibportstate 2 1 disable")
    assert "nodeinfo failed" in failing(state, "ibportstate 5 1 query").err
    run(state, "ibportstate 2 1 enable")
    assert "Active" in run(state, "ibportstate 5 1 query")


def test_without_a_subnet_manager_a_link_comes_up_but_not_active() -> None:
    state = infiniband.subnet() | {"subnet_manager": False}
    run(state, "ibportstate 5 1 reset")
    assert "LinkState:.......................Initialize" in run(state, "ibportstate 5 1 query")


# ---- SONiC --------------------------------------------------------------------------------------------------------


def profiles(state: State) -> dict[str, str]:
    return {port: state["config"][f"QUEUE|{port}|3"].get("wred_profile", "") for port in sonic.ports_of(state)}


def test_trap_1_off_takes_the_profile_from_every_port_with_a_neighbour() -> None:
    state = sonic.switch()
    run(state, "ecnconfig -q 3 off")
    assert profiles(state) == {"Ethernet0": "", "Ethernet4": "", "Ethernet8": "AZURE_LOSSLESS"}


def test_trap_2_on_binds_a_name_of_its_own() -> None:
    state = sonic.switch()
    run(state, "ecnconfig -q 3 off")
    run(state, "ecnconfig -q 3 on")
    assert profiles(state)["Ethernet0"] == "AZURE_LOSSLESS", "it was CUSTOM_400G"


def test_trap_3_the_status_is_of_the_first_port_and_one_profile() -> None:
    state = sonic.switch()
    assert run(state, "ecnconfig -q 3") == "ECN status:\nqueue 3: off\n", "though all ports mark"
    state["config"]["QUEUE|Ethernet0|3"]["wred_profile"] = "AZURE_LOSSLESS"
    state["config"]["QUEUE|Ethernet4|3"].pop("wred_profile")
    assert run(state, "ecnconfig -q 3") == "ECN status:\nqueue 3: on\n"


def test_without_neighbours_ecnconfig_does_nothing() -> None:
    state = sonic.switch()
    for key in [key for key in state["config"] if key.startswith("DEVICE_NEIGHBOR|")]:
        del state["config"][key]
    assert "No active ports detected" in failing(state, "ecnconfig -q 3 off").err


def test_a_database_prints_dictionaries_and_drops_empty_keys() -> None:
    state = sonic.switch()
    shown = run(state, "sonic-db-cli CONFIG_DB HGETALL 'QUEUE|Ethernet0|3'")
    assert ast.literal_eval(shown) == {"scheduler": "scheduler.1", "wred_profile": "CUSTOM_400G"}
    assert run(state, "sonic-db-cli CONFIG_DB HGETALL 'QUEUE|Ethernet0|7'") == "{}\n"
    assert run(state, "sonic-db-cli CONFIG_DB HGET 'QUEUE|Ethernet0|7' wred_profile") == "\n"
    assert run(state, "sonic-db-cli CONFIG_DB HDEL 'QUEUE|Ethernet0|3' wred_profile scheduler") == "2\n"
    assert run(state, "sonic-db-cli CONFIG_DB EXISTS 'QUEUE|Ethernet0|3'") == "0\n"
    assert run(state, "sonic-db-cli CONFIG_DB KEYS 'QUEUE|Ethernet0|*'") == "QUEUE|Ethernet0|4\n"


def test_the_asic_shows_whether_a_queue_marks() -> None:
    state = sonic.switch()
    oid = run(state, "sonic-db-cli COUNTERS_DB HGET COUNTERS_QUEUE_NAME_MAP Ethernet0:3").strip()
    key = f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{oid}"
    assert run(state, f"sonic-db-cli ASIC_DB HGET {key} SAI_QUEUE_ATTR_WRED_PROFILE_ID") != "oid:0x0\n"
    run(state, "sonic-db-cli CONFIG_DB HDEL 'QUEUE|Ethernet0|3' wred_profile")
    assert run(state, f"sonic-db-cli ASIC_DB HGET {key} SAI_QUEUE_ATTR_WRED_PROFILE_ID") == "oid:0x0\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("config interface shutdown Ethernet99", 2, "Interface name is invalid"),
        ("config interface mtu Ethernet0 10000", 2, "not in the range"),
        ("config interface speed Ethernet0 25000", 1, "Invalid speed specified"),
        ("config interface fec Ethernet0 fc", 1, "is not in"),
        ("config rollback nothing", 2, "does not exist"),
        ("ecnconfig -p AZURE_LOSSLESS -gmin 3000000", 1, "Invalid WRED profile parameters"),
        ("ecnconfig -p NONE -gmin 1", 1, "Invalid WRED profile NONE"),
        ("pfcwd start --action drop Ethernet99 200", 1, "invalid options"),
        ("pfcwd start --action drop Ethernet0 50", 2, "not in the range"),
        ("sonic-db-cli NO_DB KEYS *", 1, "Invalid database name"),
    ],
)
def test_sonic_refuses(line: str, code: int, said: str) -> None:
    failed = failing(sonic.switch(), line)
    assert (failed.code, said in failed.err + failed.out) == (code, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config interface pfc priority Ethernet99 3 off", "Cannot find interface"),
        ("config interface pfc priority Ethernet0 5 off", "is not enabled"),
        ("config interface pfc priority Ethernet0 3 on", "already been enabled"),
        ("pfcwd start --action drop Ethernet0 200", "SKIPPED"),
    ],
)
def test_some_refusals_of_sonic_end_with_success(line: str, said: str) -> None:
    state = sonic.switch()
    if said == "SKIPPED":
        del state["config"]["PORT_QOS_MAP|Ethernet0"]["pfc_enable"]
    before = json.dumps(state["config"])
    assert said in run(state, line)
    assert json.dumps(state["config"]) == before


def test_pfc_off_and_on_sorts_the_operators_list() -> None:
    state = sonic.switch()
    state["config"]["PORT_QOS_MAP|Ethernet0"]["pfc_enable"] = "4,3"
    run(state, "config interface pfc priority Ethernet0 3 off")
    assert state["config"]["PORT_QOS_MAP|Ethernet0"]["pfc_enable"] == "4"
    run(state, "config interface pfc priority Ethernet0 3 on")
    assert state["config"]["PORT_QOS_MAP|Ethernet0"]["pfc_enable"] == "3,4"


def test_the_watchdog_stops_everywhere_and_starts_with_more_than_it_had() -> None:
    state = sonic.switch()
    run(state, "pfcwd stop")
    assert not [key for key in state["config"] if key.startswith("PFC_WD|Eth")]
    run(state, "pfcwd start --action drop Ethernet0 200 --restoration-time 200")
    assert state["config"]["PFC_WD|Ethernet0"]["pfc_stat_history"] == "disable", "which it did not have before"


def test_the_watchdog_takes_a_marked_queue_for_a_storm_and_lets_go_after_it() -> None:
    state = sonic.switch(watchdog_polls=1)
    oid = run(state, "sonic-db-cli COUNTERS_DB HGET COUNTERS_QUEUE_NAME_MAP Ethernet0:3").strip()
    status = f"sonic-db-cli COUNTERS_DB HGET COUNTERS:{oid} PFC_WD_STATUS"
    for verb, then in (("HSET", "stormed"), ("HDEL", "operational")):
        run(state, f"sonic-db-cli COUNTERS_DB {verb} COUNTERS:{oid} DEBUG_STORM {'enabled' if verb == 'HSET' else ''}")
        assert [run(state, status).strip() for _ in range(2)][-1] == then
    assert run(state, "sonic-db-cli COUNTERS_DB HGET COUNTERS_QUEUE_NAME_MAP Ethernet0:0").strip() != oid


def test_a_save_is_never_forgotten() -> None:
    state = sonic.switch()
    run(state, "config save -y")
    assert state["saved"]


# ---- Cumulus ------------------------------------------------------------------------------------------------------


def test_a_setting_is_pending_until_it_is_applied_and_is_saved_then() -> None:
    state = cumulus.switch()
    run(state, "nv set interface swp1 link state down")
    link = "nv show interface swp1 link -o json"
    assert json.loads(run(state, link))["state"] == {"up": {}}
    assert json.loads(run(state, "nv config diff -o json")) == ["interface swp1 link state: None -> down"]
    run(state, "nv config apply -y")
    assert json.loads(run(state, link))["state"] == {"down": {}}
    assert state["startup"] == state["revision"] == 2, "from 5.9 on a reboot does not take it back"


def test_apply_takes_what_somebody_else_left_pending() -> None:
    state = cumulus.switch()
    run(state, "nv set interface swp2 link mtu 1500")
    run(state, "nv set interface swp1 link state down")
    run(state, "nv config apply -y")
    assert cumulus.applied(state)["interface"]["swp2"]["link"]["mtu"] == "1500"


def test_an_older_revision_comes_back_whole() -> None:
    state = cumulus.switch()
    before = json.dumps(cumulus.applied(state))
    run(state, "nv set qos congestion-control default-global traffic-class 3 ecn disable")
    run(state, "nv config apply -y")
    run(state, "nv config apply 1 -y")
    assert json.dumps(cumulus.applied(state)) == before
    assert failing(state, "nv config apply 77 -y").code == 1


@pytest.mark.parametrize(
    "path", ["interface swp1 link speed 123G", "interface swp1 link mtu 20", "fans swp1 speed 1",
             "qos congestion-control default-global traffic-class 3 ecn off"],
)  # fmt: skip
def test_nvue_refuses(path: str) -> None:
    assert failing(cumulus.switch(), f"nv set {path}").code == 1


# ---- EOS ----------------------------------------------------------------------------------------------------------

SHUT = "configure session genie\ninterface Ethernet1\nshutdown\ncommit timer 00:05:00"


def cli(state: State, text: str) -> str:
    return call(state, "FastCli", ["-p", "15", "-c", text])


def status(state: State) -> str:
    return json.loads(cli(state, "show interfaces Ethernet1 | json"))["interfaces"]["Ethernet1"]["interfaceStatus"]


def test_a_commit_timer_takes_the_change_back_by_itself() -> None:
    state = eos.switch(now=1000)
    cli(state, SHUT)
    assert status(state) == "disabled"
    state["now"] = 1299
    assert status(state) == "disabled"
    state["now"] = 1300
    assert status(state) == "connected"


@pytest.mark.parametrize(("end", "then"), [("commit", "disabled"), ("abort", "connected")])
def test_a_pending_commit_is_confirmed_or_taken_back(end: str, then: str) -> None:
    state = eos.switch(now=1000)
    cli(state, SHUT)
    cli(state, f"configure session genie {end}")
    state["now"] = 9999
    assert status(state) == then


def test_a_session_does_nothing_before_its_commit_and_ends_at_an_invalid_line() -> None:
    state = eos.switch()
    cli(state, "configure session s\ninterface Ethernet1\nshutdown")
    assert status(state) == "connected"
    with pytest.raises(Failed, match="Invalid input") as caught:
        cli(state, "configure session t\ninterface Ethernet9\nshutdown\ncommit")
    assert caught.value.code == 1
    assert status(state) == "connected"


def test_while_a_timer_runs_no_other_session_commits() -> None:
    state = eos.switch(now=1)
    cli(state, SHUT)
    with pytest.raises(Failed, match="commit timer"):
        cli(state, "configure session other\ninterface Ethernet2\nshutdown\ncommit")


def test_running_config_shows_the_lines_to_put_back() -> None:
    shown = cli(eos.switch(), "show running-config interfaces Ethernet1")
    assert "   random-detect ecn minimum-threshold 150 kbytes" in shown
    assert "   priority-flow-control priority 3 no-drop" in shown


# ---- the program --------------------------------------------------------------------------------------------------


def test_a_tool_fails_when_it_is_told_to_before_or_after_its_effect() -> None:
    for after in (False, True):
        failure = {"tool": "config", "words": ["shutdown"], "code": 5, "stderr": "redis is gone", "after": after}
        state = sonic.switch() | {"failures": [failure]}
        failed = failing(state, "config interface shutdown Ethernet0")
        assert (failed.code, failed.err) == (5, "redis is gone\n")
        assert state["config"]["PORT|Ethernet0"]["admin_status"] == ("down" if after else "up")
        run(state, "config interface startup Ethernet0")


def test_the_executables_keep_state_between_calls(tmp_path: Path) -> None:
    bin_dir = install(tmp_path, sonic.switch())

    def tool(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([bin_dir / argv[0], *argv[1:]], capture_output=True, text=True, check=False)

    assert tool("config", "interface", "mtu", "Ethernet4", "1500").returncode == 0
    assert tool("sonic-db-cli", "CONFIG_DB", "HGET", "PORT|Ethernet4", "mtu").stdout == "1500\n"
    done = tool("config", "interface", "speed", "Ethernet4", "1")
    assert (done.returncode, "Invalid speed" in done.stdout) == (1, True)
    assert [entry[0] for entry in json.loads((tmp_path / "state.json").read_text())["calls"]] == [
        "config",
        "sonic-db-cli",
        "config",
    ]
