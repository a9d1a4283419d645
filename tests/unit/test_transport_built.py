"""A transport that this build, this machine or a host lacks is refused in the plan, with what to do about it."""

import contextlib
import json

import pytest

from genie.cli import main
from genie.engine.binaries import BIN_PATH_VARIABLE
from genie.errors import EXIT_OK, EXIT_UNFIT, EnvironmentUnfit
from genie.rdma.model import RdmaHost
from genie.transport import TRANSPORTS, GlooTransport, OfiTransport, RankPlace, TcpTransport, VerbsTransport, built


def _agent(folder, name, text, code=0):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\nexit {code}\n")
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(BIN_PATH_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("transport", "package"),
    [(OfiTransport(), "libfabric-dev"), (VerbsTransport(), "libibverbs-dev"), (GlooTransport(), "libgloo-dev")],
    ids=lambda value: getattr(value, "name", value),
)
def test_an_agent_without_it_is_named_with_what_to_install(folder, transport, package):
    _agent(folder, transport.agent, "echo 'genie-agent 1, control protocol 2, transports tcp, pigeon'")
    with pytest.raises(EnvironmentUnfit, match="has tcp, pigeon") as refused:
        built.refuse_missing(transport)
    assert package in refused.value.hint


def test_an_agent_that_was_not_built_is_named_with_what_to_install(monkeypatch):
    def none(name):
        raise EnvironmentUnfit(f"no {name}")

    monkeypatch.setattr(built, "find_binary", none)
    with pytest.raises(EnvironmentUnfit, match="there is no genie-agent-gloo") as refused:
        built.refuse_missing(GlooTransport())
    assert "apt-get install libgloo-dev" in refused.value.hint


def test_an_agent_whose_library_is_gone_says_so(folder):
    _agent(folder, "genie-agent-gloo", "echo 'libgloo.so.0: cannot open shared object file' >&2", code=127)
    with pytest.raises(EnvironmentUnfit, match=r"libgloo\.so\.0: cannot open") as refused:
        built.refuse_missing(GlooTransport())
    assert "linked with may be gone" in refused.value.hint


def test_an_agent_that_has_it_is_no_trouble(folder):
    _agent(folder, "genie-agent-dl", "echo 'genie-agent 1, control protocol 2, transports tcp, ofi, verbs'")
    built.refuse_missing(OfiTransport())
    built.refuse_missing(VerbsTransport())
    built.refuse_missing(TcpTransport())  # always there


def test_every_other_transport_has_a_package():
    assert set(built.PACKAGES) == set(TRANSPORTS) - {"tcp"}


PLACES = [RankPlace(rank, f"h{rank}") for rank in range(10)]


def test_an_agent_that_finds_no_library_is_heard(folder):
    _agent(folder, "genie-agent-dl", "echo 'genie-agent: transport verbs needs libibverbs.so.1 on this host' >&2", 1)
    with pytest.raises(EnvironmentUnfit, match="this machine cannot have transport=verbs: transport verbs needs libib"):
        built.refuse_unfit_hosts(VerbsTransport(), PLACES, lambda host: "127.0.0.1", None)


def test_this_machine_is_asked_once_and_its_want_said_once(folder, tmp_path):
    _agent(folder, "genie-agent-dl", f"echo asked >> {tmp_path}/asked; echo '{{\"devices\": []}}'")
    with pytest.raises(EnvironmentUnfit) as refused:
        built.refuse_unfit_hosts(VerbsTransport(), PLACES, lambda host: "127.0.0.1", None)
    assert refused.value.message == "this machine has no RDMA device, which transport=verbs needs"
    assert (tmp_path / "asked").read_text().splitlines() == ["asked"]


def test_providers_are_those_of_this_machines_libfabric(folder):
    _agent(folder, "genie-agent-dl", 'echo \'{"version": "1.17", "providers": [{"provider": "shm", "domains": []}]}\'')
    built.refuse_unfit_hosts(OfiTransport(provider="shm"), PLACES, lambda host: "127.0.0.1", None)
    with pytest.raises(EnvironmentUnfit, match="no provider 'tcp'; it offers shm"):
        built.refuse_unfit_hosts(OfiTransport(), PLACES, lambda host: "127.0.0.1", None)


def test_every_host_that_is_unfit_is_named_up_to_eight():
    with pytest.raises(EnvironmentUnfit) as refused:
        built.refuse_unfit_hosts(
            VerbsTransport(), PLACES, lambda host: "10.0.0.1", lambda name: RdmaHost(f"host {name}")
        )
    assert "host h0 has no RDMA device" in refused.value.message
    assert "host h7 has no RDMA device" in refused.value.message
    assert refused.value.message.endswith("; and 2 more")


def test_a_transport_of_sockets_asks_no_host():
    built.refuse_unfit_hosts(TcpTransport(), PLACES, lambda host: "10.0.0.1", lambda name: pytest.fail("asked"))


@pytest.mark.parametrize(
    ("libraries", "said"),
    [
        (frozenset(), "host h0 has no libgloo.so.0, which transport=gloo is linked with"),
        (frozenset({"libgloo.so.0"}), ""),
        (None, ""),
    ],
    ids=["without", "with", "nobody could ask"],
)
def test_gloo_needs_its_library_on_every_host(libraries, said):
    def look(name: str) -> RdmaHost:
        return RdmaHost(f"host {name}", libraries=libraries)

    with pytest.raises(EnvironmentUnfit) if said else contextlib.nullcontext() as refused:
        built.refuse_unfit_hosts(GlooTransport(), PLACES, lambda host: "10.0.0.1", look)
    if said:
        assert said in refused.value.message
        assert refused.value.hint == "apt-get install libgloo0"


def test_gloo_asks_nothing_of_this_machine_whose_agent_has_begun(folder):
    built.refuse_unfit_hosts(GlooTransport(), PLACES, lambda host: "10.0.0.1", None)  # there is no agent in the folder


# -- by the command line ------------------------------------------------------------------------------------------

JOB = ("workload=collective", "workload.ranks=2", "workload.sizes=[1KiB]", "tracking.mlflow.enabled=false")
ACTIVE_PORT = {
    "port": 1,
    "state": "ACTIVE",
    "link_layer": "Ethernet",
    "active_mtu_bytes": 4096,
    "gids": [{"index": 1, "gid": "::ffff:10.9.0.1", "type": "RoCE v2", "interface": "wire"}],
}


def _verbs_agent(folder, ports=None):
    """An agent with verbs on a machine with one device of these ports; without any device where there are none."""
    devices = [{"name": "rxe0", "ports": ports}] if ports is not None else []
    words = "genie-agent 1, control protocol 3, transports tcp, verbs"
    said = f'if [ "$1" = --version ]; then echo "{words}"; else echo \'{json.dumps({"devices": devices})}\'; fi'
    _agent(folder, "genie-agent-dl", said)


@pytest.mark.parametrize(
    ("ports", "words", "said", "do"),
    [
        (None, ("fabric=loopback",), "this machine has no RDMA device", "rdma link add"),
        (None, ("fabric=netns",), "those of fabric=netns are namespaces without", "make lab"),
        ([{**ACTIVE_PORT, "state": "DOWN"}], ("fabric=loopback",), "port 1 of rxe0 is DOWN", "interface up"),
        ([{**ACTIVE_PORT, "gids": []}], ("fabric=loopback",), "the port has no GID", "ip address add"),
        (
            [ACTIVE_PORT],
            ("fabric=loopback", "transport.devices=[rxe1]"),
            "no RDMA device 'rxe1'",
            "did you mean 'rxe0'",
        ),
    ],
    ids=["no-device", "namespaces", "down", "no-gid", "another-device"],
)
def test_an_unfit_machine_ends_with_3_before_anything_is_made(folder, tmp_path, capsys, ports, words, said, do):
    _verbs_agent(folder, ports)
    out = tmp_path / "out"
    assert main([*JOB, "transport=verbs", f"out={out}", *words]) == EXIT_UNFIT
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert do in shown
    assert not out.exists()


def test_a_plan_over_verbs_says_that_a_dead_path_is_a_stall(folder, tmp_path, capsys):
    _verbs_agent(folder, [ACTIVE_PORT])
    assert main([*JOB, "transport=verbs", "fabric=loopback", f"out={tmp_path}/out", "dry_run=true"]) == EXIT_OK
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "note: a dead path ends the run by timeout (30 s without progress) before the device gives up (34.36 s" in shown
    )
    assert main([*JOB, "transport=verbs", "fabric=loopback", f"out={tmp_path}/out", "dry_run=true", "timeout=40s"]) == 0
    assert "a dead path" not in capsys.readouterr().out
