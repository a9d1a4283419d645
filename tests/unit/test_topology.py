"""Shapes, names, addresses, routes and placement of topologies, for any size."""

from dataclasses import replace

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import ConfigError, PlanError
from genie.topology import (
    TOPOLOGIES,
    Ecn,
    LeafSpineConfig,
    PortModel,
    RingConfig,
    SingleSwitchConfig,
    address_plan,
    build,
    from_graph,
    paths,
    place,
)
from genie.topology.routes import forwards

leaf_spines = st.builds(
    lambda hosts, leaves, spines: LeafSpineConfig(hosts=max(hosts, leaves), leaves=leaves, spines=spines),
    st.integers(1, 24), st.integers(1, 5), st.integers(1, 4),
)  # fmt: skip
topologies = st.one_of(
    leaf_spines,
    st.builds(SingleSwitchConfig, hosts=st.integers(1, 20)),
    st.builds(RingConfig, hosts=st.integers(2, 12)),
).map(build)


def test_the_default_is_eight_hosts_under_two_leaves_and_two_spines():
    topology = build(LeafSpineConfig())
    assert [node.name for node in topology.nodes] == [
        *(f"h{number}" for number in range(8)), "leaf0", "leaf1", "spine0", "spine1"
    ]  # fmt: skip
    assert [link.name for link in topology.links][:5] == ["h0-leaf0", "h1-leaf0", "h2-leaf0", "h3-leaf0", "h4-leaf1"]
    assert [link.name for link in topology.links][8:] == [
        "leaf0-spine0", "leaf0-spine1", "leaf1-spine0", "leaf1-spine1"
    ]  # fmt: skip
    assert topology.links[0].b.model == PortModel(100_000_000, 128_000, Ecn(25_000, 75_000, 0.1), 0.0)
    assert topology.links[0].a.model == PortModel(100_000_000, 128_000, None, 0.0)  # hosts do not mark
    assert topology.links[8].a.name == "leaf0/spine0"
    assert {link.tier for link in topology.links[:8]} == {"host"}
    assert {link.tier for link in topology.links[8:]} == {"fabric"}


@pytest.mark.parametrize(
    ("config", "expected_bps"),
    [
        pytest.param(LeafSpineConfig(), 200_000_000, id="four hosts a leaf over two spines"),
        pytest.param(LeafSpineConfig(oversubscription=4), 50_000_000, id="oversubscribed four times"),
        pytest.param(LeafSpineConfig(hosts=9), 250_000_000, id="the fullest leaf counts"),
        pytest.param(LeafSpineConfig(fabric_rate="1Gbps"), 1_000_000_000, id="said outright"),
        pytest.param(LeafSpineConfig(hosts=8, spines=3), 133_333_334, id="rounded up, so never short"),
    ],
)
def test_spines_carry_all_hosts_of_a_leaf_unless_told_otherwise(config, expected_bps):
    fabric = [link for link in build(config).links if link.tier == "fabric"]
    assert {port.model.rate_bps for link in fabric for port in link.ports} == {expected_bps}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LeafSpineConfig(hosts=0), "topology.hosts: expected 1 to 4096 hosts, found 0"),
        (LeafSpineConfig(leaves=9), "topology.leaves: expected 1 to 8 leaves (one a host at most), found 9"),
        (LeafSpineConfig(spines=0), "topology.spines: expected at least 1 spine"),
        (LeafSpineConfig(oversubscription=0), "topology.oversubscription: expected a ratio above 0, found 0"),
        (LeafSpineConfig(host_rate="fast"), "topology.host_rate: expected a rate such as '100Mbps', found 'fast'"),
        (LeafSpineConfig(host_rate="1"), "topology.host_rate: a port needs at least 8 kbps, found '1'"),
        (LeafSpineConfig(fabric_rate="0"), "topology.fabric_rate: a port needs at least 8 kbps, found '0'"),
        (LeafSpineConfig(queue="2KB"), "topology.queue: a queue of 2000 bytes holds less than two packets"),
        (LeafSpineConfig(ecn_kmin="80KB"), "topology.ecn_kmin: marking needs 0 < ecn_kmin < ecn_kmax <= queue"),
        (LeafSpineConfig(ecn_kmax="1MB"), "topology.ecn_kmin: marking needs 0 < ecn_kmin < ecn_kmax <= queue"),
        (LeafSpineConfig(ecn_pmax=1.5), "topology.ecn_pmax: a ratio lies between 0 and 1"),
        (LeafSpineConfig(loss=-0.1), "topology.loss: expected a ratio such as 0.1 or '10%', found '-0.1'"),
        (LeafSpineConfig(loss=1), "topology.loss: expected 0, or a chance from one in a billion up to below 1, found"),
        (LeafSpineConfig(loss=1e-10), "topology.loss: expected 0, or a chance from one in a billion"),
        (LeafSpineConfig(mtu=100), "topology.mtu: expected 576 to 65521 bytes, found 100"),
        (LeafSpineConfig(placement="blocks"), "topology.placement: no placement 'blocks', did you mean 'block'?"),
        (RingConfig(hosts=1), "topology.hosts: expected 2 to 4096 hosts, found 1"),
    ],
)
def test_what_makes_no_topology_is_said_with_its_key(config, message):
    with pytest.raises(ConfigError) as caught:
        build(config)
    assert message in str(caught.value)


def test_marking_thresholds_are_not_looked_at_when_marking_is_off():
    topology = build(LeafSpineConfig(ecn=False, ecn_kmin="1MB", queue="50KB"))
    assert all(port.model.ecn is None for port in topology.ports)


def test_every_topology_is_registered_under_its_own_name():
    assert {name: kind().name for name, (kind, _) in TOPOLOGIES.items()} == {name: name for name in TOPOLOGIES}


@settings(max_examples=60, deadline=None)
@given(topologies)
def test_names_indexes_and_addresses_are_unique(topology):
    plan = address_plan(topology)
    interfaces = [interface for node in plan.nodes.values() for interface in node.interfaces]
    assert len(interfaces) == len(topology.ports)
    for attribute in ("ifindex", "mac", "address"):
        assert len({getattr(interface, attribute) for interface in interfaces}) == len(interfaces)
    assert len({port.name for port in topology.ports}) == len(topology.ports)
    assert all(len(port.interface) <= 15 for port in topology.ports)
    hosts = [plan.address(node.name) for node in topology.hosts]
    assert len({*hosts, *(interface.address for interface in interfaces)}) == len(hosts) + len(interfaces)
    by_mac = {interface.mac: interface for interface in interfaces}
    for interface in interfaces:
        other = by_mac[interface.peer_mac]
        assert (other.address, other.peer_address) == (interface.peer_address, interface.address)


def _follow(topology, plan, source, target):
    """Every way a packet can take by the routes, as node lists; fails on a loop or a missing route."""
    neighbour = {
        (node, interface.port.interface): interface.port.peer
        for node, entry in plan.nodes.items() for interface in entry.interfaces
    }  # fmt: skip
    ways = []
    trail = [[source]]
    while trail:
        way = trail.pop()
        if way[-1] == target:
            ways.append(way)
            continue
        assert len(way) <= len(topology.nodes), f"a loop: {way}"
        routes = {route.destination: route for route in plan.nodes[way[-1]].routes}
        route = routes.get(f"{plan.address(target)}/32") or routes.get("default")
        assert route is not None, f"{way[-1]} has no route to {target}"
        trail += [[*way, neighbour[way[-1], hop.interface]] for hop in route.next_hops]
    return ways


@settings(max_examples=40, deadline=None)
@given(topologies, st.randoms(use_true_random=False))
def test_routes_take_exactly_the_shortest_paths(topology, random):
    plan = address_plan(topology)
    hosts = [node.name for node in topology.hosts]
    source, target = random.choice(hosts), random.choice(hosts)
    ways = _follow(topology, plan, source, target)
    graph = networkx.Graph([(link.a.node, link.b.node) for link in topology.links])
    silent = {node.name for node in topology.nodes if not forwards(node)} - {source, target}
    graph.remove_nodes_from(silent)
    expected = sorted(networkx.all_shortest_paths(graph, source, target)) if source != target else [[source]]
    assert sorted(ways) == expected
    listed = []
    for links in paths(topology, source, target):
        nodes = [source]
        for link in links:
            nodes.append(link.b.node if link.a.node == nodes[-1] else link.a.node)
        listed.append(nodes)
    assert sorted(listed) == (expected if source != target else [])


def test_hosts_with_one_cable_have_one_default_route():
    plan = address_plan(build(LeafSpineConfig(hosts=64, leaves=8, spines=4)))
    assert [route.destination for route in plan.nodes["h63"].routes] == ["default"]
    assert len(plan.nodes["leaf0"].routes) == 64
    assert len(plan.nodes["leaf0"].routes[-1].next_hops) == 4


def test_host_addresses_stay_clear_of_0_and_255():
    topology = build(SingleSwitchConfig(hosts=501))
    plan = address_plan(topology)
    assert [plan.address(f"h{number}") for number in (0, 249, 250, 500)] == [
        "10.0.0.1", "10.0.0.250", "10.0.1.1", "10.0.2.1"
    ]  # fmt: skip


def _model(rate_bps):
    return PortModel(rate_bps, 100_000)


def test_a_graph_of_ones_own_keeps_long_and_parallel_names_apart():
    graph = networkx.MultiGraph()
    graph.add_node("a-host-with-a-long-name", role="host", rack="r1")
    graph.add_node("a-host-with-a-long-name-too", role="host")
    graph.add_node("s", role="switch")
    for _ in range(2):
        graph.add_edge("a-host-with-a-long-name", "s", rate_bps=10**8, tier="host")
    graph.add_edge("a-host-with-a-long-name-too", "s", rate_bps=10**8, tier="host")
    topology = from_graph(graph, "mine", _model, {})
    assert [port.interface for port in topology.ports if port.node == "s"] == [
        "a-host-with-a-l", "a-host-with-a.1", "a-host-with-a.2"
    ]  # fmt: skip
    assert [link.name for link in topology.links][:2] == ["a-host-with-a-long-name-s", "a-host-with-a-long-name-s.1"]
    assert topology.nodes[0].attributes == {"rack": "r1"}
    assert len(paths(topology, "a-host-with-a-long-name", "a-host-with-a-long-name-too")) == 2
    hops = next(r for r in address_plan(topology).nodes["s"].routes if r.destination == "10.0.0.1/32").next_hops
    assert len(hops) == 2


@pytest.mark.parametrize(
    ("name", "role", "message"),
    [("a/b", "host", "node 'a/b' is no name"), ("", "host", "node '' is no name"), ("a", "router", "role 'router'")],
)
def test_graphs_with_unusable_nodes_are_refused(name, role, message):
    graph = networkx.Graph()
    graph.add_node(name, role=role)
    with pytest.raises(ConfigError, match=message):
        from_graph(graph, "mine", _model, {})


def test_hosts_that_cannot_reach_each_other_are_named():
    graph = networkx.Graph()
    graph.add_node("a", role="host")
    graph.add_node("b", role="host")
    topology = from_graph(graph, "islands", _model, {})
    with pytest.raises(PlanError, match="hosts 'b' and 'a' of topology 'islands' are not connected"):
        address_plan(topology)
    with pytest.raises(PlanError, match="no path from 'a' to 'b'"):
        paths(topology, "a", "b")


@pytest.mark.parametrize(
    ("world", "placement", "expected"),
    [
        pytest.param(4, "block", "h0 h1 h2 h3", id="block with spare hosts stays together"),
        pytest.param(10, "block", "h0 h0 h1 h1 h2 h3 h4 h5 h6 h7", id="block puts the rest on the first hosts"),
        pytest.param(4, "round_robin", "h0 h4 h1 h5", id="round robin changes leaves"),
        pytest.param(10, "round_robin", "h0 h4 h1 h5 h2 h6 h3 h7 h0 h4", id="round robin starts over"),
    ],
)
def test_ranks_are_placed(world, placement, expected):
    assert place(build(LeafSpineConfig()), world, placement) == expected.split()


@settings(max_examples=40, deadline=None)
@given(topologies, st.integers(1, 60), st.sampled_from(["block", "round_robin"]))
def test_placement_is_even(topology, world, placement):
    placed = place(topology, world, placement)
    assert len(placed) == world
    loads = [placed.count(node.name) for node in topology.hosts]
    assert sum(loads) == world
    assert max(loads) - min(loads) <= 1


def test_placement_refuses_nothing_to_place_and_unknown_ways():
    topology = build(LeafSpineConfig())
    with pytest.raises(PlanError, match="cannot place 0 ranks"):
        place(topology, 0)
    with pytest.raises(ConfigError, match="did you mean 'block'"):
        place(topology, 4, "blok")


def test_the_configuration_is_kept_as_parameters():
    parameters = build(replace(LeafSpineConfig(), mtu=9000)).parameters
    assert (parameters["mtu"], parameters["hosts"], parameters["fabric_rate_bps"]) == (9000, 8, 200_000_000)
