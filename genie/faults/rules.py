"""More kinds of evidence: did the traffic meet the fault? Pure rules over what was read, as in `genie.faults.evidence`.

That a change is in place is checked for every mechanism by its role's own reading. A rule here adds what counters and
queue samples say, one function a kind, named in a role's ``mechanism.yml``.
"""

from __future__ import annotations

import numpy as np

from genie.faults.evidence import Check, Observed, Rule, risen_in_effect
from genie.faults.plan import Change, FaultPlan

Judged = tuple[list[Check], dict[str, float]]
PAUSE_SLACK = 3.0
"""A paused port may send its bucket at once when the pause begins, and a sliver in between."""
DOWN_SLACK = 0.05
NEAR_LIMIT = 0.9
LEAST_SHARE_OF_BUSIEST = 1.25


def _nothing(plan: FaultPlan, change: Change) -> tuple[str, ...]:
    return ()


def _exercised(what: str, expected: str, found: str, ok: bool) -> Check:
    return Check(what, expected, found, ok, "exercised")


# ---- thresholds, buffers ------------------------------------------------------------------------------------------


def _judge_thresholds(plan: FaultPlan, observed: Observed) -> Judged:
    """A queue must have passed the lower of the old and the new Kmin: between them the two mark differently."""
    facts: dict[str, float] = {}
    checks: list[Check] = []
    met: list[str] = []
    fullest = 0.0
    for change in plan.changes:
        port, samples = change.target, observed.of_port(change.index)
        own = change.port.model.ecn.kmin_bytes if change.port and change.port.model.ecn else 0
        kmin = min(own, int(change.values["kmin_bytes"]))
        if samples is None:
            checks.append(Check(f"queue of {port}", "recorded", "no samples", False, port=port))
            continue
        deepest = int(samples["backlog_bytes"].max())
        facts |= {f"{port}.queue_max_bytes": deepest}
        marked = risen_in_effect(plan, observed, change, "ce_marked")
        if marked is not None:
            facts[f"{port}.marked"] = marked
        over = deepest > kmin if marked is None or int(change.values["kmin_bytes"]) > own else bool(marked)
        fullest = max(fullest, deepest / kmin if kmin else 0.0)
        if over:
            met.append(port)
    checks.append(
        _exercised(
            "a faulted port had a queue between the old and the new thresholds",
            "on at least one",
            f"on {', '.join(met)}" if met else f"on none: the fullest reached {fullest:.0%} of the lower Kmin",
            bool(met),
        )
    )
    return checks, facts


def _judge_overflow(plan: FaultPlan, observed: Observed) -> Judged:
    facts: dict[str, float] = {}
    checks: list[Check] = []
    dropping: list[str] = []
    fullest = 0.0
    for change in plan.changes:
        port, limit = change.target, int(change.values.get("limit_bytes", 0))  # PFC off leaves the buffer as it is
        drops, samples = risen_in_effect(plan, observed, change, "drops"), observed.of_port(change.index)
        deepest = int(samples["backlog_bytes"].max()) if samples is not None else 0
        fullest = max(fullest, deepest / limit if limit else 0.0)
        if drops is None:
            checks.append(Check(f"drops of {port}", "recorded", "not recorded", False, port=port))
            continue
        facts |= {f"{port}.drops": drops, f"{port}.queue_max_bytes": deepest}
        if drops:
            dropping.append(port)
    checks.append(
        _exercised(
            "a faulted port dropped packets",
            "at least one",
            f"on {', '.join(dropping)}" if dropping else f"on none: the fullest reached {fullest:.0%} of its limit",
            bool(dropping),
        )
    )
    return checks, facts


# ---- ports that stop ----------------------------------------------------------------------------------------------


def _sent_in_and_out(observed: Observed, index: int | None) -> tuple[float, float, float] | None:
    """Of one port: bytes a second outside its windows and inside, and how long the insides last (s); None unknown."""
    if observed.samples is None or index is None or not observed.windows:
        return None
    own = observed.samples[observed.samples["port"] == index]
    if len(own) < 2:
        return None
    times, sent = own["mono_ns"].astype(np.int64), own["tx_bytes"].astype(np.int64)
    last = int(times[-1])
    inside_bytes = inside_ns = 0.0
    for start, end in observed.windows:
        edges = np.array([start, end or last], dtype=np.int64).clip(times[0], last)
        at = np.interp(edges, times, sent)
        inside_bytes += float(at[1] - at[0])
        inside_ns += float(edges[1] - edges[0])
    outside_ns = float(last - times[0]) - inside_ns
    outside = (float(sent[-1] - sent[0]) - inside_bytes) * 1e9 / outside_ns if outside_ns > 0 else 0.0
    return outside, inside_bytes * 1e9 / inside_ns if inside_ns else 0.0, inside_ns / 1e9


def _judge_paused(plan: FaultPlan, observed: Observed) -> Judged:
    facts: dict[str, float] = {}
    checks: list[Check] = []
    busy: list[str] = []
    for change in plan.changes:
        port, found = change.target, _sent_in_and_out(observed, change.index)
        if found is None:
            checks.append(Check(f"traffic of {port}", "recorded", "no samples or no window", False, port=port))
            continue
        outside, inside, seconds = found
        burst = int(observed.states.get(port, ({},))[-1].get("burst_bytes", 0))
        allowed = PAUSE_SLACK * int(change.values["rate_bps"]) / 8 + 2 * burst / max(seconds, 0.01)
        checks.append(
            Check(
                f"traffic of {port} while paused",
                f"at most {allowed:.0f} B/s",
                f"{inside:.0f} B/s",
                inside <= allowed,
                port=port,
            )
        )  # fmt: skip
        facts |= {f"{port}.outside_bytes_per_s": outside, f"{port}.paused_bytes_per_s": inside}
        if outside > 2 * allowed:
            busy.append(port)
    checks.append(
        _exercised(
            "a paused port had traffic at other times",
            "at least one",
            f"{len(busy)} of {len(plan.changes)}" if busy else "none: the job sent little there",
            bool(busy),
        )
    )
    return checks, facts


def _judge_down(plan: FaultPlan, observed: Observed) -> Judged:
    """A port that is down sends nothing; one that had nothing to send at any time shows nothing."""
    facts: dict[str, float] = {}
    checks: list[Check] = []
    busy: list[str] = []
    for change in plan.changes:
        port, found = change.target, _sent_in_and_out(observed, change.index)
        if found is None:
            checks.append(Check(f"traffic of {port}", "recorded", "no samples or no window", False, port=port))
            continue
        outside, inside, _ = found
        facts |= {f"{port}.outside_bytes_per_s": outside, f"{port}.down_bytes_per_s": inside}
        # What was sent just before an edge is seen at the first sample after it.
        allowed = DOWN_SLACK * max(outside, 1)
        checks.append(
            Check(
                f"traffic of {port} while down",
                f"at most {allowed:.0f} B/s",
                f"{inside:.0f} B/s",
                inside <= allowed,
                port=port,
            )
        )
        if outside > 0:
            busy.append(port)
    checks.append(
        _exercised(
            "a port had traffic before it went down", "at least one", f"{len(busy)} of {len(plan.changes)}", bool(busy)
        )
    )
    return checks, facts


def _judge_node_down(plan: FaultPlan, observed: Observed) -> Judged:
    """A switch that is down forwards nothing; one that forwarded nothing before shows nothing."""
    facts: dict[str, float] = {}
    sent = 0
    for change in plan.changes:
        own = [observed.risen(f"{change.node}/{link.interface}", "tx_bytes") or 0 for link in change.links]
        facts[f"{change.target}.tx_bytes"] = sum(own)
        sent += sum(own)
    return [_exercised("the switch had traffic while it was up", "more than 0 bytes", str(sent), sent > 0)], facts


# ---- packets taken or changed -------------------------------------------------------------------------------------


def _judge_rewritten(plan: FaultPlan, observed: Observed) -> Judged:
    facts: dict[str, float] = {}
    changed = 0
    for change in plan.changes:
        own = observed.total(change.target, "taken")
        facts |= {f"{change.target}.packets": observed.total(change.target, "packets"), f"{change.target}.changed": own}
        changed += own
    return [_exercised("packets were changed on a faulted port", "at least 1", str(changed), changed > 0)], facts


def _judge_oversize(plan: FaultPlan, observed: Observed) -> Judged:
    """The interface's own count of what it dropped, from before the fault to the last reading while it was there."""
    facts: dict[str, float] = {}
    checks: list[Check] = []
    dropped = 0
    for change in plan.changes:
        counts = [int(s["rx_dropped"]) for s in observed.states.get(change.target, ()) if "rx_dropped" in s]
        if not counts:
            checks.append(
                Check(f"oversize drops of {change.target}", "recorded", "not read", False, port=change.target)
            )
            continue
        own = max(counts) - int(observed.found.get(change.target, {}).get("rx_dropped", 0))
        facts[f"{change.target}.dropped"] = own
        dropped += own
    checks.append(_exercised("packets above the MTU were dropped", "at least 1", str(dropped), dropped > 0))
    return checks, facts


# ---- paths --------------------------------------------------------------------------------------------------------


def _judge_uplinks(plan: FaultPlan, observed: Observed) -> Judged:
    """Of what each faulted switch sent over the ports of its multipath routes, the busiest's share."""
    facts: dict[str, float] = {}
    checks: list[Check] = []
    shares: list[float] = []
    for change in plan.changes:
        names = [f"{change.node}/{link.interface}" for link in change.links if link.tier == "fabric"]
        sent = {name: observed.risen(name, "tx_bytes") or 0 for name in names}
        total = sum(sent.values())
        if not total:
            continue
        facts |= {f"{name}.tx_bytes": count for name, count in sent.items()}
        fair = 1 / max(1, len(sent))
        shares.append(max(sent.values()) / total / fair)
    worst = max(shares, default=0.0)
    facts["busiest_over_fair"] = worst
    checks.append(
        _exercised(
            "the busiest uplink of a faulted switch carried more than its fair share",
            f"at least {LEAST_SHARE_OF_BUSIEST:.2f}x",
            f"{worst:.2f}x",
            worst >= LEAST_SHARE_OF_BUSIEST,
        )
    )
    return checks, facts


def _judge_delayed(plan: FaultPlan, observed: Observed) -> Judged:
    """Packets took the detour, and none was lost in it."""
    facts: dict[str, float] = {}
    checks: list[Check] = []
    for change in plan.changes:
        # Each window has its own queue, so its own counters; within one they only rise.
        packets, lost = (observed.total(change.target, key) for key in ("packets", "drops"))
        facts |= {f"{change.target}.delayed": packets, f"{change.target}.delay_ns": int(change.values["delay_ns"])}
        checks.append(Check(f"losses in the detour of {change.target}", "0", str(lost), lost == 0, port=change.target))
    delayed = sum(int(value) for key, value in facts.items() if key.endswith(".delayed"))
    checks.append(_exercised("packets were delayed", "at least 1", str(delayed), delayed > 0))
    return checks, facts


def _judge_no_change(plan: FaultPlan, observed: Observed) -> Judged:
    return [_exercised("the control was armed and read back", "on every node", f"on {len(plan.nodes)}", True)], {}


RULES: dict[str, Rule] = {
    "thresholds_moved": Rule(_nothing, _judge_thresholds),
    "overflowed": Rule(_nothing, _judge_overflow),
    "paused": Rule(_nothing, _judge_paused),
    "went_down": Rule(_nothing, _judge_down),
    "node_went_down": Rule(_nothing, _judge_node_down),
    "rewritten": Rule(_nothing, _judge_rewritten),
    "oversize_dropped": Rule(_nothing, _judge_oversize),
    "uplinks_uneven": Rule(_nothing, _judge_uplinks),
    "delayed": Rule(_nothing, _judge_delayed),
    "no_change": Rule(_nothing, _judge_no_change),
}
