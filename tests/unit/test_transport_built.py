"""A transport that this build lacks is refused in the plan, with what to install."""

import pytest

from genie.engine.binaries import BIN_PATH_VARIABLE
from genie.errors import EnvironmentUnfit
from genie.transport import TRANSPORTS, GlooTransport, OfiTransport, TcpTransport, VerbsTransport, built


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
