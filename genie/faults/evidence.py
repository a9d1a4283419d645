"""Did the fault really happen? Pure rules over what was read: counters, queue samples, read-backs. Never does I/O.

`genie.faults.session` gathers an `Observed`; each rule that a mechanism names turns it into checks of (what, expected,
found, ok). A counter that was not recorded is not zero: its check fails and says so. The state of the whole is
"in_effect", "not_exercised" (in place, but the traffic never met it, so the run shows nothing) or "not_in_effect";
a run whose faults are not all in effect is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.faults import readback
from genie.faults.change import State, differences
from genie.faults.parameters import PPB
from genie.faults.plan import Change, FaultPlan
from genie.units import format_rate

# On a busy machine a sample's clock and its counters lie up to some 50 ms apart: over a second that is little.
RATE_WINDOW_NS = 1_000_000_000
LEAST_SPAN_NS = 100_000_000
RATE_SLACK = 1.1
MANY_PORTS = 4
UNKNOWN_COUNT = 2**64 - 1
OBSERVED = ("linux", "netns")
"""Platforms whose ports are sampled and counted. On others what was not seen says nothing against the change."""
# A true drop rate fails the binomial check once in a million runs.
BINOMIAL_ALPHA = 1e-6


@dataclass(frozen=True, slots=True)
class Check:
    """One line of evidence. ``kind`` is "in_place" (the change is there) or "exercised" (the traffic met it).

    ``port`` is the one port that ``what`` names; "" where it is about all, or many.
    """

    what: str
    expected: str
    found: str
    ok: bool
    kind: str = "in_place"
    port: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceRecord:
    """What one fault's evidence comes to. ``facts`` are numbers for a later comparison with a healthy twin."""

    fault: str
    state: str
    checks: tuple[Check, ...]
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the run's numbers may be read as those of this fault."""
        return self.state == "in_effect"

    def summary(self) -> str:
        """One sentence: the state and, where it failed, the first check that says why."""
        if self.valid:
            return f"fault {self.fault}: in effect ({len(self.checks)} checks)"
        word = "not exercised" if self.state == "not_exercised" else "not in effect"
        why = next(check for check in self.checks if not check.ok)
        return f"fault {self.fault}: {word}: {why.what}: expected {why.expected}, found {why.found}"


@dataclass(frozen=True, slots=True)
class Observed:
    """What was read around and during a run.

    ``before``/``after``: `Fabric.counters` at start and end. ``samples``: the records of ``ports.smp`` within the run
    (structured array with the field names of docs/formats.md §5), or None. ``texts``: what a rule's own read printed
    at the end of the run, by rule and target. ``states``: of each target, as its role reads it, once for each time it
    was read while the fault was in effect; absent where that failed, with the reason in ``failures``. ``windows``:
    (start, end) of each stretch in effect, end 0 where it lasted. ``fired``: nodes whose dead-man's switch undid the
    fault before its time. ``dead``: a sentence for each node whose warden did not live to keep the windows.
    ``rounds``: the number of the window in which each of ``states`` was read. ``words``: what a role's templates may
    name on a node beside their port. ``found``: the state of each target before the fault, as the journal has it.
    """

    before: Mapping[str, Mapping[str, int]]
    after: Mapping[str, Mapping[str, int]]
    samples: npt.NDArray[Any] | None
    texts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    states: Mapping[str, tuple[State, ...]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    windows: tuple[tuple[int, int], ...] = ()
    fired: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    rounds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    found: Mapping[str, State] = field(default_factory=dict)

    def total(self, target: str, counter: str) -> int:
        """A counter of a target's own reading that begins anew in each window, over all of them."""
        states = self.states.get(target, ())
        highest: dict[int, int] = {}
        for number, state in zip(self.rounds.get(target, (0,) * len(states)), states, strict=True):
            highest[number] = max(highest.get(number, 0), int(state.get(counter, 0)))
        return sum(highest.values())

    def risen(self, where: str, counter: str) -> int | None:
        """How far a cumulative counter rose; None where it wasn't recorded at both ends."""
        start, end = self.before.get(where, {}).get(counter), self.after.get(where, {}).get(counter)
        if start is None or end is None or UNKNOWN_COUNT in (start, end):
            return None
        return end - start

    def risen_in_windows(self, index: int | None, counter: str) -> int | None:
        """How far a port's cumulative counter rose within the windows, as its samples saw it; None if they did not."""
        if self.samples is None or index is None:
            return None
        own = self.samples[self.samples["port"] == index]
        rises = []
        for start, end in self.windows:
            within = own[counter][(own["mono_ns"] >= start) & ((own["mono_ns"] <= end) | (end == 0))]
            if len(within) > 1 and UNKNOWN_COUNT not in (int(within[0]), int(within[-1])):
                rises.append(int(within[-1]) - int(within[0]))
        return sum(rises) if rises else None

    def overlaps(self, window: tuple[int, int]) -> bool:
        """Whether a window was open while ports were sampled: not only before the ranks ran, or after."""
        if self.samples is None or not len(self.samples):
            return True
        start, end = window
        first, last = int(self.samples["mono_ns"].min()), int(self.samples["mono_ns"].max())
        return start < last and (not end or end > first)

    def of_port(self, index: int | None) -> npt.NDArray[Any] | None:
        """The samples of one port in time order, within the longest window where there are any; None without."""
        if self.samples is None or index is None:
            return None
        own = self.samples[self.samples["port"] == index]
        if self.windows and len(own):
            last = int(own["mono_ns"][-1])
            start, end = max(((start, end or last) for start, end in self.windows), key=lambda edge: edge[1] - edge[0])
            own = own[(own["mono_ns"] >= start) & (own["mono_ns"] <= end)]
        return own if len(own) else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of evidence.

    ``read`` is an argv run in the change's node at the end of the run, for what the role's own reading does not tell;
    its words are templates as in a platform file; empty where nothing more need be read. That the change is in place is
    checked for every mechanism, by its role.
    """

    read: Callable[[FaultPlan, Change], tuple[str, ...]]
    judge: Callable[[FaultPlan, Observed], tuple[list[Check], dict[str, float]]]


def find_rule(name: str) -> Rule:
    """A rule by the name that a mechanism gives it. Raises KeyError for one that does not exist."""
    from genie.faults import evidence_host, rules

    return (RULES | rules.RULES | evidence_host.RULES)[name]


def judge(plan: FaultPlan, observed: Observed) -> EvidenceRecord:
    """All rules of the plan's mechanism, taken together."""
    checks = in_place(plan, observed)
    facts: dict[str, float] = {}
    for name in plan.mechanism.evidence:
        found, numbers = find_rule(name).judge(plan, observed)
        checks += found
        facts |= numbers
    if all(change.platform.partition(".")[0] not in OBSERVED for change in plan.changes):
        checks = [replace(check, kind="exercised") if _is_unseen(check) else check for check in checks]
    checks = _fold(checks)
    if not checks or any(not check.ok for check in checks if check.kind == "in_place"):
        state = "not_in_effect"
    elif any(not check.ok for check in checks):
        state = "not_exercised"
    else:
        state = "in_effect"
    return EvidenceRecord(plan.name, state, tuple(checks), facts)


def _is_unseen(check: Check) -> bool:
    """Whether a check failed only because nobody looked: gear has no samples of ours, and not our counters."""
    return not check.ok and "recorded" in (check.expected, check.found.removeprefix("not "))


def in_place(plan: FaultPlan, observed: Observed) -> list[Check]:
    """What the roles' own readings say, each time the fault was read while it was in effect."""
    checks = [
        Check("time limit of the fault", "longer than the run", f"{node} put itself back during the run", False)
        for node in observed.fired
    ]
    checks += [Check("warden of the fault", "alive to the end", why, False) for why in observed.dead]
    if plan.config.window.kind != "whole":
        count = sum(map(observed.overlaps, observed.windows))
        found = str(count) if count else f"0 ({len(observed.windows)} when it did not run)" if observed.windows else "0"
        checks.append(Check("windows of the fault within the run", "at least 1", found, count > 0))
    for change in plan.changes:
        what, port = f"{plan.mechanism.changes} of {change.target}", change.target
        told = plan.port_variables(change)
        variables = {"port": {**told, **told["set"]}, **observed.words.get(change.node, {})}
        after = plan.platform(change).after
        states = observed.states.get(change.target)
        if states is None:
            why = observed.failures.get(change.target, "not read")
            checks.append(Check(what, readback.expected(after, variables), why, False, port=port))
            continue
        wrong = [line for state in states for line in differences(after, state, variables)]
        expected, found = (
            readback.difference(after, wrong) if wrong else readback.expected_and_found(after, states[-1], variables)
        )
        checks.append(Check(what, expected, found, not wrong, port=port))
    return checks


def _fold(checks: list[Check]) -> list[Check]:
    """Checks that passed alike on many ports become one line; what failed stays, each by its port."""
    alike: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        if check.ok and check.port:
            alike.setdefault((check.what.replace(check.port, "*"), check.expected, check.found), []).append(check)
    folded = []
    for check in checks:
        group = alike.get((check.what.replace(check.port, "*"), check.expected, check.found)) if check.port else None
        if group is None or not check.ok or len(group) < MANY_PORTS:
            folded.append(check)
        elif check is group[0]:
            folded.append(replace(check, what=check.what.replace(check.port, f"{len(group)} ports"), port=""))
    return folded


def peak_rate_bps(samples: npt.NDArray[Any], window_ns: int = RATE_WINDOW_NS) -> tuple[float, int] | None:
    """Highest mean rate over any stretch of at least ``window_ns``, in bit/s, and that stretch's length in ns.

    Over all of them when they span less; None when they span less than 0.1 s.
    """
    times = samples["mono_ns"].astype(np.int64)
    sent = samples["tx_bytes"].astype(np.int64)
    if len(times) < 2 or times[-1] - times[0] < LEAST_SPAN_NS:
        return None
    window_ns = min(window_ns, int(times[-1] - times[0]))
    ends = np.searchsorted(times, times + window_ns)
    starts = np.flatnonzero(ends < len(times))
    ends = ends[starts]
    spans = times[ends] - times[starts]
    rates = (sent[ends] - sent[starts]) * 8e9 / spans
    best = int(np.argmax(rates))
    return float(rates[best]), int(spans[best])


def risen_in_effect(plan: FaultPlan, observed: Observed, change: Change, counter: str) -> int | None:
    """How far a counter of a faulted port rose while the fault was in effect: what it did at other times says nothing
    of the fault. Of counters that samples do not have, None with windows.
    """
    if plan.config.window.kind == "whole":
        return observed.risen(change.target, counter)
    sampled = observed.samples is not None and counter in (observed.samples.dtype.names or ())
    return observed.risen_in_windows(change.index, counter) if sampled else None


# ---- a shaper at another rate -----------------------------------------------------------------------------------


def _read_nothing(plan: FaultPlan, change: Change) -> tuple[str, ...]:
    return ()


def _judge_rate(plan: FaultPlan, observed: Observed) -> tuple[list[Check], dict[str, float]]:
    checks: list[Check] = []
    facts: dict[str, float] = {}
    limited: list[str] = []
    peaks: list[float] = []
    for change in plan.changes:
        port, wanted = change.target, int(change.values["rate_bps"])
        samples = observed.of_port(change.index)
        peak = peak_rate_bps(samples) if samples is not None else None
        if peak is None:
            checks.append(Check(f"peak rate of {port}", "recorded", "no samples over 0.1 s", False, port=port))
            continue
        state = observed.states.get(port, ({},))[-1]
        ceiling = wanted * RATE_SLACK + int(state.get("burst_bytes", 0)) * 8e9 / peak[1]
        checks.append(
            Check(
                f"peak rate of {port}",
                f"at most {format_rate(ceiling)}",
                format_rate(peak[0]),
                peak[0] <= ceiling,
                port=port,
            )
        )
        facts[f"{port}.peak_bps"] = peak[0]
        peaks.append(peak[0] / wanted)
        over = risen_in_effect(plan, observed, change, "overlimits")
        if over is None and samples is not None:
            over = int(samples["overlimits"][-1]) - int(samples["overlimits"][0])
        if over is not None:
            facts[f"{port}.overlimits"] = over
        if over and peak[0] >= 0.5 * wanted:
            limited.append(port)
    checks.append(
        Check(
            "a faulted port was limiting",
            "overlimits rose, and at least half the rate was carried",
            f"on {', '.join(limited)}"
            if limited
            else f"on none: the busiest carried {max(peaks, default=0.0):.0%} of its rate",
            bool(limited),
            "exercised",
        )
    )
    return checks, facts


# ---- packets lost on the wire -----------------------------------------------------------------------------------


def _judge_drops(plan: FaultPlan, observed: Observed) -> tuple[list[Check], dict[str, float]]:
    checks: list[Check] = []
    facts: dict[str, float] = {}
    packets_in_all = drops_in_all = 0
    for change in plan.changes:
        port, chance = change.target, int(change.values["ratio_ppb"]) / PPB
        packets, drops = observed.total(port, "packets"), observed.total(port, "taken")
        facts |= {f"{port}.packets": packets, f"{port}.lost": drops}
        packets_in_all, drops_in_all = packets_in_all + packets, drops_in_all + drops
        checks.append(
            Check(
                f"losses of {port}",
                f"near {packets * chance:.1f} of {packets} packets",
                str(drops),
                is_plausible_count(drops, packets, chance),
                port=port,
            )
        )
    expected = sum(packets * int(change.values["ratio_ppb"]) / PPB for change, packets in _packets(plan, facts))
    checks.append(
        Check(
            "packets were lost on a faulted port",
            "at least 1",
            f"{drops_in_all} of {packets_in_all} (expected some {expected:.1f})",
            drops_in_all > 0,
            "exercised",
        )
    )
    return checks, facts


def _packets(plan: FaultPlan, facts: Mapping[str, float]) -> list[tuple[Change, float]]:
    return [(change, facts.get(f"{change.target}.packets", 0)) for change in plan.changes]


def is_plausible_count(count: int, trials: int, chance: float, alpha: float = BINOMIAL_ALPHA) -> bool:
    """Whether ``count`` successes of ``trials`` fit a binomial of ``chance``; a true one fails in ``alpha`` of runs.

    Chernoff's bound (Hoeffding 1963, theorem 1): P(as far out as count) ≤ 2·exp(-n·KL(count/n ‖ chance)).
    """
    if trials == 0 or count > trials:
        return count == 0
    seen = count / trials
    divergence = 0.0
    for observed, wanted in ((seen, chance), (1 - seen, 1 - chance)):
        if observed > 0:
            if wanted <= 0:
                return False
            divergence += observed * math.log(observed / wanted)
    return trials * divergence <= math.log(2 / alpha)


# ---- marking off --------------------------------------------------------------------------------------------------


def _judge_marking(plan: FaultPlan, observed: Observed) -> tuple[list[Check], dict[str, float]]:
    checks: list[Check] = []
    facts: dict[str, float] = {}
    would_mark: list[str] = []
    fullest = 0.0
    for change in plan.changes:
        port = change.target
        kmin = change.port.model.ecn.kmin_bytes if change.port and change.port.model.ecn else 0
        if plan.marker != "red":  # without its red a port has no counter of marks, and nothing that could mark
            marked = risen_in_effect(plan, observed, change, "ce_marked")
            found = "not recorded" if marked is None else str(marked)
            checks.append(Check(f"packets marked CE by {port}", "0", found, marked == 0, port=port))
        samples = observed.of_port(change.index)
        if samples is None:
            checks.append(Check(f"queue of {port}", "recorded", "no samples", False, port=port))
            continue
        deepest = int(samples["backlog_bytes"].max())
        due = risen_in_effect(plan, observed, change, "ect_over")
        facts |= {f"{port}.queue_max_bytes": deepest, f"{port}.kmin_bytes": kmin}
        if due is not None:
            facts[f"{port}.would_have_marked"] = due
        fullest = max(fullest, deepest / kmin if kmin else 0.0)
        if due or (due is None and deepest > kmin):
            would_mark.append(port)
    checks.append(
        Check(
            "a faulted port would have marked",
            "its queue above Kmin at some time",
            f"on {', '.join(would_mark)}" if would_mark else f"on none: the fullest reached {fullest:.0%} of Kmin",
            bool(would_mark),
            "exercised",
        )
    )
    arrived = [count for node in observed.after if (count := observed.risen(node, "IpExtInECT0Pkts")) is not None]
    marked_in_all = [count for node in observed.after if (count := observed.risen(node, "IpExtInCEPkts")) is not None]
    facts |= {"ect_packets": sum(arrived), "ce_packets": sum(marked_in_all)}
    checks.append(
        Check(
            "ECN-capable packets arrived",
            "some (TCP negotiated ECN)",
            str(sum(arrived)) if arrived else "not recorded",
            sum(arrived) > 0,
            "exercised",
        )
    )
    return checks, facts


RULES: dict[str, Rule] = {
    "rate_capped": Rule(_read_nothing, _judge_rate),
    "drops_binomial": Rule(_read_nothing, _judge_drops),
    "marking_off": Rule(_read_nothing, _judge_marking),
}
