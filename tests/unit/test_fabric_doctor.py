"""The doctor's answers: each no has a remedy, and nothing is asked twice."""

import pytest

from genie import doctor
from genie.doctor import Finding, examine, render
from genie.errors import EnvironmentUnfit
from genie.fabric.probe import Probe

NO_RED = "kernel without sch_red: Specified qdisc kind is unknown"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(Probe("", "", False, (), {}), id="everything"),
        pytest.param(Probe("", "", True, ("a note",), {"red": NO_RED, "bpf": "needs root"}), id="rootless"),
        pytest.param(Probe("no private network here", "run as root", False, (), {}), id="no namespaces"),
    ],
)
def test_every_no_says_what_to_do(monkeypatch, found):
    monkeypatch.setattr(doctor, "probe", lambda: found)
    findings = examine()
    assert [finding.name for finding in findings if not finding.ok and not finding.remedy] == []
    assert [finding.name for finding in findings if finding.ok and finding.remedy] == []
    assert all(finding.detail for finding in findings)
    assert len({finding.name for finding in findings}) == len(findings)


def test_rootless_without_sch_red_cannot_mark(monkeypatch):
    monkeypatch.setattr(doctor, "probe", lambda: Probe("", "", True, (), {"red": NO_RED, "bpf": "needs root"}))
    answers = {finding.name: finding for finding in examine()}
    assert answers["private networks"].detail == "rootless, through a user namespace"
    assert answers["qdisc red"].detail.startswith(NO_RED)
    assert (answers["ECN marking"].ok, answers["ECN marking"].remedy) == (
        False,
        "run as root, or on a kernel with sch_red",
    )


def test_every_program_that_faults_need_is_asked_for_and_said_what_for(monkeypatch):
    monkeypatch.setattr(doctor, "probe", lambda: Probe("", "", False, (), {"detour": "no ifb", "nft": "no nft here"}))
    answers = {finding.name: finding for finding in examine()}
    assert "takes them back" in answers["program genie-warden"].detail
    assert "another tenant" in answers["program genie-load"].detail
    assert (answers["delay on arrival"].ok, answers["delay on arrival"].detail) == (False, "no ifb")
    assert answers["nft rules"].detail.startswith("no nft here (loses packets")
    assert answers["qdisc netem"].detail == "delays packets, for latency faults"
    assert "faults" in answers["Ansible"].detail


def test_what_is_missing_costs_what_it_is_for(monkeypatch):
    def nowhere(name):
        raise EnvironmentUnfit(f"{name} was not found", hint="build it")

    monkeypatch.setattr(doctor, "find_binary", nowhere)
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path: None)
    answers = {finding.name: finding for finding in examine()}
    warden, client = answers["program genie-warden"], answers["program ssh"]
    assert (warden.ok, warden.remedy) == (False, "build it")
    assert warden.detail.startswith("genie-warden was not found (opens and ends faults")
    assert (client.ok, "openssh-client" in client.remedy) == (False, True)
    assert "inventory" in client.detail


def test_it_is_printed_in_columns_with_remedies_below():
    findings = [Finding("cores", True, "2 usable"), Finding("qdisc red", False, "missing", "modprobe sch_red")]
    assert render(findings).splitlines() == [
        "yes  cores      2 usable",
        "no   qdisc red  missing",
        "                → modprobe sch_red",
    ]
