"""``transport=ofi``: what its configuration refuses, and what its native half is told."""

import pytest

from genie.errors import ConfigError, EnvironmentUnfit, PlanError
from genie.rdma.model import RdmaDevice, RdmaHost
from genie.transport import TRANSPORTS, OfiTransport, RankPlace


@pytest.mark.parametrize(
    ("wrong", "key", "said"),
    [
        ({"provider": "Infini Band"}, "provider", "libfabric provider"),
        ({"provider": ""}, "provider", "libfabric provider"),
        ({"provider": "tcp;ofi_mrail"}, "provider", "libfabric provider"),
        ({"domain": "mlx5_0\nslots=1"}, "domain", "name of a device"),
        ({"slots": 0}, "slots", "between 1 and 1024"),
        ({"slots": 1025}, "slots", "between 1 and 1024"),
        ({"spin": "soon"}, "spin", "soon"),
        ({"connect_timeout": "10ms"}, "connect_timeout", "at least 1s"),
    ],
)
def test_what_cannot_be_is_refused_by_key(wrong, key, said):
    with pytest.raises(ConfigError) as refused:
        OfiTransport(**wrong)
    assert refused.value.key == key
    assert said in refused.value.message


@pytest.mark.parametrize("provider", ["tcp", "verbs", "efa", "cxi", "shm", "tcp;ofi_rxm"])
def test_every_rank_is_told_the_provider_the_device_and_the_slots(provider):
    transport = OfiTransport(provider=provider, domain="mlx5_0", slots=4)
    told = transport.settings(RankPlace(3, "h3"))
    assert told == {"provider": provider, "domain": "mlx5_0", "slots": "4"}


def test_shared_memory_may_not_go_round_the_network():
    shared = OfiTransport(provider="shm")
    with pytest.raises(PlanError, match="on 2") as refused:
        shared.check(["h0", "h0", "h1"], "netns")
    assert "place all ranks on one host" in refused.value.hint
    shared.check(["h0", "h0"], "netns")
    shared.check(["h0", "h1"], "loopback")  # all hosts are this machine
    OfiTransport(provider="tcp").check(["h0", "h1"], "netns")


@pytest.mark.parametrize("provider", ["verbs", "verbs;ofi_rxm", "efa", "cxi"])
def test_a_namespace_has_no_device_for_a_provider(provider):
    with pytest.raises(EnvironmentUnfit, match="namespaces without"):
        OfiTransport(provider=provider).check(["h0", "h1"], "netns")
    OfiTransport(provider=provider).check(["h0", "h1"], "inventory")


@pytest.mark.parametrize(
    ("provider", "found", "said", "do"),
    [
        ("tcp", RdmaHost("host h0", libraries=frozenset()), "host h0 has no libfabric.so.1", "install libfabric1"),
        ("verbs", RdmaHost("host h0"), "host h0 has no RDMA device", "rdma link add rxe0"),
        (
            "efa",
            RdmaHost("host h0", providers=("tcp;ofi_rxm", "shm")),
            "no provider 'efa'; it offers tcp;ofi_rxm",
            "fi_",
        ),
    ],
    ids=["no-library", "no-device", "no-provider"],
)
def test_a_host_without_what_it_takes_is_unfit_with_what_to_do(provider, found, said, do):
    with pytest.raises(EnvironmentUnfit) as refused:
        OfiTransport(provider=provider).require(RankPlace(0, "h0"), "10.0.0.1", found)
    assert said in refused.value.message
    assert do in refused.value.hint


@pytest.mark.parametrize(
    ("provider", "found"),
    [
        ("tcp", RdmaHost("host h0", providers=("tcp;ofi_rxm",), libraries=frozenset({"libfabric.so.1"}))),
        ("verbs", RdmaHost("host h0", (RdmaDevice("rxe0", ()),))),
        ("efa", RdmaHost("host h0")),
    ],
    ids=["offered", "device", "nobody-knows"],
)
def test_a_host_that_has_it_is_no_trouble(provider, found):
    OfiTransport(provider=provider).require(RankPlace(0, "h0"), "10.0.0.1", found)


def test_it_is_registered_with_the_agent_that_can_load_libraries():
    kind, _ = TRANSPORTS["ofi"]
    assert kind is OfiTransport
    assert kind.agent == "genie-agent-dl"


@pytest.mark.parametrize("fabric", ["netns", "loopback"])
def test_a_device_where_the_address_decides_is_refused_in_the_plan(fabric: str) -> None:
    with pytest.raises(
        PlanError, match=f"domain=lo: with provider tcp a host of fabric={fabric} has the device of its"
    ):
        OfiTransport(domain="lo").check(["h0", "h1"], fabric)
    OfiTransport(domain="eth0").check(["h0", "h1"], "inventory")
