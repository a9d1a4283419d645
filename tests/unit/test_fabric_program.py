"""The commands that build a fabric: a golden text for the smallest one, and the rules behind the numbers."""

from pathlib import Path

import pytest

from genie.fabric.program import Settings, burst_bytes, emulated_rate_bps, fabric_program, node_sysctls
from genie.topology import LeafSpineConfig, PortModel, SingleSwitchConfig, address_plan, build

GOLDEN = Path(__file__).parents[1] / "golden" / "fabric_program.txt"


def program(config, **changes):
    settings = {
        "packets": "exact", "time_dilation": 1.0, "congestion": "cubic", "mtu": 1500, "seed": 1,
        "marker": "bpf", "cpus": 2,
    } | changes  # fmt: skip
    topology = build(config)
    return fabric_program(topology, address_plan(topology), Settings(**settings), "/pinned/marker")


def _text(made) -> str:
    parts = ["# links\n", made.links]
    for node in made.nodes:
        parts += [f"# {node.name} sysctl\n", *(f"{key} = {value}\n" for key, value in node.sysctls)]
        for kind in ("ip", "tc", "nft"):
            parts += [f"# {node.name} {kind}\n", getattr(node, kind)]
    parts += ["# markers\n", *(f"{port}\n" for port in made.markers)]
    return "".join(parts)


def test_two_hosts_on_a_switch_that_loses_packets():
    assert _text(program(SingleSwitchConfig(hosts=2, loss=0.001))) == GOLDEN.read_text()


def test_several_paths_become_one_route_with_next_hops():
    leaf = next(node for node in program(LeafSpineConfig()).nodes if node.name == "leaf0")
    assert (
        "route add 10.0.0.5/32 nexthop via 10.128.0.17 dev spine0 weight 1 "
        "nexthop via 10.128.0.19 dev spine1 weight 1\n" in leaf.ip
    )


def test_sch_red_marks_where_the_kernel_has_it():
    made = program(SingleSwitchConfig(hosts=1), marker="red")
    assert (
        "qdisc add dev h0 parent 7e1e:1 handle 7e1f: red limit 128000 min 25000 max 75000 avpkt 1500 burst 28 "
        "bandwidth 100000000bit probability 0.1 ecn nodrop\n"
    ) in made.nodes[1].tc
    assert made.markers == ()
    assert "clsact" not in made.nodes[1].tc


@pytest.mark.parametrize("config", [SingleSwitchConfig(hosts=2, ecn=False), SingleSwitchConfig(hosts=2)])
def test_ports_without_marking_are_only_shaped(config):
    made = program(config, marker="bpf" if not config.ecn else "none")
    assert made.markers == ()
    assert all(line.split()[:2] == ["qdisc", "add"] and " tbf " in line for line in made.nodes[0].tc.splitlines())


def test_bulk_mode_leaves_super_packets_whole():
    assert "gso_max_segs" in program(SingleSwitchConfig(hosts=1)).links
    assert "gso_max_segs" not in program(SingleSwitchConfig(hosts=1), packets="bulk").links


@pytest.mark.parametrize(
    ("rate_bps", "mtu", "packets", "expected"),
    [
        pytest.param(100_000_000, 1500, "exact", 6_250, id="exact: half a millisecond of the rate"),
        pytest.param(1_000_000, 1500, "exact", 6_056, id="exact: four packets at least"),
        pytest.param(100_000_000, 9000, "exact", 36_056, id="exact: of whatever size"),
        pytest.param(1_000_000_000, 1500, "bulk", 131_250, id="bulk: 128 KB at 1 Gb/s"),
        pytest.param(100_000_000, 1500, "bulk", 81_920, id="bulk: a super-packet at least"),
    ],
)
def test_bursts_are_small_but_keep_the_rate(rate_bps, mtu, packets, expected):
    assert burst_bytes(rate_bps, mtu, packets) == expected


def test_dilation_divides_rates_and_leaves_buffers():
    model = PortModel(400_000_000_000, 12_000_000)
    assert emulated_rate_bps(model, 4000) == 100_000_000
    made = program(SingleSwitchConfig(hosts=1, host_rate="40Gbps"), time_dilation=400)
    assert "rate 100000000bit burst 6250b limit 128000b" in made.nodes[0].tc
    assert {port.rate_bytes_per_s for port in made.markers} == {12_500_000}


def test_nodes_hash_flows_differently_and_seeds_decide_how():
    def seed_of(node, seed):
        settings = Settings("exact", 1.0, "cubic", 1500, seed, "none", 2)
        return dict(node_sysctls(node, settings))["net/ipv4/fib_multipath_hash_seed"]

    assert seed_of("leaf0", 1) == seed_of("leaf0", 1) != seed_of("leaf1", 1)
    assert seed_of("leaf0", 1) != seed_of("leaf0", 2)
    assert 0 < int(seed_of("leaf0", 1)) < 2**32


@pytest.mark.parametrize(("cpus", "mask"), [(1, "00000001"), (2, "00000003"), (33, "00000001,ffffffff")])
def test_cpu_masks_are_written_as_the_kernel_reads_them(cpus, mask):
    settings = Settings("exact", 1.0, "cubic", 1500, 1, "none", cpus)
    assert dict(node_sysctls("h0", settings))["net/core/rps_default_mask"] == mask
