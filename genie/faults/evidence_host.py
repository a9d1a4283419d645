"""Evidence of faults of hosts: compute that was stretched, traffic of another tenant that arrived.

Rules as in `genie.faults.evidence`: pure functions from a plan and what was observed, named in a role's
``mechanism.yml``. That the change is in place is checked for every mechanism by its role's own reading.
"""

from __future__ import annotations

import json

from genie.faults.evidence import Check, Observed, Rule
from genie.faults.plan import Change, FaultPlan

Judged = tuple[list[Check], dict[str, float]]
LEAST_OF_DUE = 0.8
"""A sender that is not let run in time leaves packets out: below this the load was another than the one asked for."""


# ---- compute ------------------------------------------------------------------------------------------------------


def _read_pace(plan: FaultPlan, change: Change) -> tuple[str, ...]:
    return ("{{ genie_agent }}", "pace", "get", "--file", "{{ state }}/pace")


def _judge_compute(plan: FaultPlan, observed: Observed) -> Judged:
    """The ranks count operators that they stretched, from their agent's start on."""
    checks: list[Check] = []
    facts: dict[str, float] = {}
    stretched = 0
    for change in plan.changes:
        host, text = change.target, observed.texts.get(("compute_stretched", change.target), "")
        if not text.strip():
            checks.append(Check(f"pace of {host} at the end", "read", "not read", False, port=host))
            continue
        told = json.loads(text)
        facts |= {f"{host}.stretched_ops": told["stretched_ops"], f"{host}.added_ns": told["added_ns"]}
        stretched += told["stretched_ops"]
    what = "compute operators started while the fault was in effect"
    checks.append(Check(what, "at least 1", str(stretched), stretched > 0, "exercised"))
    return checks, facts


def _read_throttled(plan: FaultPlan, change: Change) -> tuple[str, ...]:
    """Of windows that are over, and of one that is open, under cgroup v1 or v2."""
    script = 'cat "$0" "$1/cpu/$2/cpu.stat" "$1/$2/cpu.stat" 2>/dev/null; true'
    return ("sh", "-c", script, "{{ state }}/work/genie_{{ fault }}.stat", "/sys/fs/cgroup", "genie_{{ fault }}")


def _judge_throttled(plan: FaultPlan, observed: Observed) -> Judged:
    facts: dict[str, float] = {}
    for change in plan.changes:
        lines = [line.split() for line in observed.texts.get(("cpu_throttled", change.target), "").splitlines()]
        facts[f"{change.target}.throttled"] = sum(int(line[1]) for line in lines if line[:1] == ["nr_throttled"])
    most = max(facts.values(), default=0)
    return [Check("periods in which a host was throttled", "at least 1", f"{most:g}", most > 0, "exercised")], facts


# ---- traffic of others --------------------------------------------------------------------------------------------


def _read_nothing(plan: FaultPlan, change: Change) -> tuple[str, ...]:
    return ()


def _due(plan: FaultPlan, observed: Observed, change: Change) -> float:
    """Packets that a sender should have sent within its windows, as far as ports were sampled; 0 if they were not."""
    if observed.samples is None or not len(observed.samples):
        return 0.0
    first, last = int(observed.samples["mono_ns"].min()), int(observed.samples["mono_ns"].max())
    spans = (min(end or last, last) - max(start, first) for start, end in observed.windows)
    packet_bits = plan.facts.mtu * 8
    return sum(max(0, span) for span in spans) * int(change.values["rate_bps"]) / 1e9 / packet_bits


def _judge_load(plan: FaultPlan, observed: Observed) -> Judged:
    """Sent and arrived as the two ends' kernels count it: nobody listens there, so each packet that arrives is one
    for no port.
    """
    facts: dict[str, float] = {}
    checks: list[Check] = []
    for sender in plan.nodes:
        sent = observed.risen(sender, "UdpOutDatagrams")
        due = sum(_due(plan, observed, change) for change in plan.changes if change.node == sender)
        found = f"{'not recorded' if sent is None else sent} of {due:.0f} due"
        expected = f"at least {LEAST_OF_DUE:.0%} of what its rate asks for"
        ok = bool(sent) and (sent or 0) >= LEAST_OF_DUE * due
        checks.append(Check(f"packets that {sender} sent", expected, found, ok, port=sender))
        facts |= {f"{sender}.sent": sent or 0, f"{sender}.due": due}
    for victim in dict.fromkeys(str(change.values["to"]) for change in plan.changes):
        arrived = observed.risen(victim, "UdpNoPorts")
        found = "not recorded" if arrived is None else str(arrived)
        what = f"packets of the other tenant arrived at {victim}"
        checks.append(Check(what, "at least 1", found, bool(arrived), "exercised"))
        facts[f"{victim}.arrived"] = arrived or 0
    return checks, facts


RULES: dict[str, Rule] = {
    "compute_stretched": Rule(_read_pace, _judge_compute),
    "cpu_throttled": Rule(_read_throttled, _judge_throttled),
    "load_arrived": Rule(_read_nothing, _judge_load),
}
