"""What tools print → fields of an object's state. Pure parsers, named by ``parse`` in a role's platform files.

Each takes (text, exit code, variables) and gives a flat mapping; it raises ValueError, KeyError or StopIteration where
the text says nothing of the object, which `genie.faults.change` turns into an error in the tool's own words. Fields
hold what the undo needs and what before/after conditions compare, in the kernel's own units. Parsers of vendors'
tools live in `genie.faults.reading_nic`, `reading_sonic` and `reading_switch`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from genie.faults.reading_nic import NIC_PARSERS
from genie.faults.reading_sonic import SONIC_PARSERS
from genie.faults.reading_switch import SWITCH_PARSERS
from genie.faults.reading_tool import Parser

TBF_TICK_NS = 64
"""Linux keeps tbf's burst as time in ticks (include/net/pkt_sched.h, PSCHED_SHIFT 6)."""


def root_qdisc(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``tc -j -r qdisc show dev X``: the root queue. ``burst_bytes`` is the least that makes the same ticks again
    (docs/faults.md, "Restoring a tbf exactly").
    """
    queue = next(queue for queue in json.loads(text) if queue.get("root"))
    options = queue.get("options", {})
    state = {"kind": queue["kind"], "handle": queue["handle"]}
    if queue["kind"] == "tbf":
        ticks = int(str(options["burst_raw"]), 16)
        state |= {
            "rate_bps": options["rate"] * 8,
            "burst_ticks": ticks,
            "burst_bytes": -(-ticks * TBF_TICK_NS * options["rate"] // 1_000_000_000),
            "limit_bytes": options["limit"],
        }
    return state


def child_red(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``tc -j -d qdisc show dev X``: the red below the shaper; ``marking`` false where there is none.

    red does not tell the average packet and the burst it was made with, only the weight that follows from them: the
    undo gives the fabric's own, and every option that red does tell is compared with what was found.
    """
    queues = json.loads(text)
    next(queue for queue in queues if queue.get("root"))  # a port without any queue at all was not read
    red = next((queue for queue in queues if queue.get("kind") == "red"), None)
    if red is None:
        return {"marking": False}
    own = red["options"]
    flags = [flag for flag in ("ecn", "harddrop", "adaptive", "nodrop") if own.get(flag)]
    mtu = int(variables["port"]["mtu"])
    return {
        "marking": True,
        "parent": red["parent"],
        "handle": red["handle"],
        "limit": own["limit"],
        "min": own["min"],
        "max": own["max"],
        "probability": own["probability"],
        "ewma": own.get("ewma"),
        "flags": " ".join(flags),
        "burst": math.ceil((2 * own["min"] + own["max"]) / (3 * mtu)),
    }


def marker(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``genie-port marker get``: the phantom-queue marker of one port."""
    told = json.loads(text)
    keep = ("ifindex", "enabled", "kmin_bytes", "kmax_bytes", "pmax")
    return {"marking": bool(told["enabled"]), **{key: told[key] for key in keep if key in told}}


def nft_table(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nft -j list ruleset netdev``: the fault's own table at one interface, ``genie_FAULT_INTERFACE``.

    A list of everything succeeds where there is no such table, so what fails is no answer; ``list table`` ends alike
    where there is none and where nobody may look. The table's first rule counts what arrives, the second what it
    takes; ``ratio_ppb`` is 1e9 where every packet is taken.
    """
    if code != 0:
        raise ValueError("nft did not run")  # not found, not allowed to look, killed
    interface = variables["port"]["interface"]
    table, chain = f"genie_{variables['fault']}_{interface}", f"at_{interface}"
    parts = json.loads(text)["nftables"]
    if not any(part["table"]["name"] == table for part in parts if "table" in part):
        return {"table": "none"}
    told = [part["rule"] for part in parts if "rule" in part]
    rules = [rule["expr"] for rule in told if (rule["table"], rule["chain"]) == (table, chain)]
    if not rules:
        return {"table": "there", "chain": "none"}
    seen, taking = rules[0], rules[-1]
    counter = next(expression["counter"] for expression in taking if "counter" in expression)
    chance = next((int(e["match"]["right"]) for e in taking if "match" in e and _is_random(e["match"])), 1_000_000_000)
    verdict = "drop" if "drop" in taking[-1] else "change"
    return {
        "table": "there",
        "chain": chain,
        "verdict": verdict,
        "ratio_ppb": chance,
        "packets": int(seen[0]["counter"]["packets"]),
        "taken": int(counter["packets"]),
    }


def _is_random(match: Mapping[str, Any]) -> bool:
    return isinstance(match.get("left"), dict) and "numgen" in match["left"]


def value(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A file or setting of one value (``cat``, ``sysctl -n``): ``value``. Raises ValueError where it can't be read."""
    if code != 0 or not text.strip():
        raise ValueError("no value")
    return {"value": " ".join(text.split())}


_ROUTE_FLAGS = frozenset({"linkdown", "dead", "rt_offload", "rt_trap", "unresolved"})


def routes(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ip -o -4 route show table main``: every route as the words that make it again, sorted; what the kernel adds
    to tell of a link's state is left out.
    """
    if code != 0:
        raise ValueError(f"exit code {code}")
    lines = [line.replace("\\", " ").split() for line in text.splitlines() if line.strip()]
    return {"routes": sorted([word for word in line if word not in _ROUTE_FLAGS] for line in lines)}


def neighbours(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ip -4 neighbour show dev X nud permanent``: the permanent entries, as the words that make them again."""
    if code != 0:
        raise ValueError(f"exit code {code}")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return {
        "neighbours": sorted(
            [line[0], *(line[1:3] if line[1] == "dev" else []), "lladdr", line[line.index("lladdr") + 1]]
            for line in lines
        )
    }


def all_links(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ip -j link show`` of a node: which of its links are administratively down, "none" if none is."""
    found = sorted(link["ifname"] for link in json.loads(text) if "UP" not in link["flags"])
    own = {link["interface"] for link in variables["port"]["links"]}
    return {"down": " ".join(name for name in found if name in own) or "none"}


def peer_routes(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Routes of several nodes, each after a line ``@ NODE``: every multipath route as its node and the words of the
    command that makes it again there.
    """
    if code != 0:
        raise ValueError(f"exit code {code}")
    found: list[list[str]] = []
    for part in text.split("@ ")[1:]:
        node, _, lines = part.partition("\n")
        for route in routes(lines, 0, variables)["routes"]:
            if "nexthop" in route:
                found.append([node.strip(), "ip", "-4", "route", "replace", *route])
    return {"peer_routes": found}


def uplinks(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ip -o -4 route show table main`` of a switch: its multipath routes (``routes``), the same with only the first
    ``uplinks`` next hops or the first with ``weight`` (``narrowed``), and what there is: ``paths``, ``weights``.
    """
    found = [route for route in routes(text, code, variables)["routes"] if "nexthop" in route]
    wanted = variables["port"]
    narrowed, paths, weights = [], set(), set()
    for route in found:
        first = route.index("nexthop")
        hops: list[list[str]] = []
        for word in route[first:]:
            if word == "nexthop":
                hops.append([])
            hops[-1].append(word)
        paths.add(len(hops))
        weights.add(",".join(hop[hop.index("weight") + 1] for hop in hops))
        kept = [list(hop) for hop in hops[: int(wanted["uplinks"]) or None]]
        kept[0][kept[0].index("weight") + 1] = str(wanted["weight"])
        narrowed.append([*route[:first], *(word for hop in kept for word in hop)])
    return {
        "routes": found,
        "narrowed": narrowed,
        "paths": max(paths, default=1),
        "heaviest": max((int(text.split(",")[0]) for text in weights), default=1),
    }


def ip_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ip -j link show dev X``: MTU and administrative state; with ``-s`` the packets dropped as they arrived, too."""
    link = json.loads(text)[0]
    dropped = link.get("stats64", {}).get("rx", {}).get("dropped")
    counters = {} if dropped is None else {"rx_dropped": dropped}
    return {"mtu": link["mtu"], "up": "UP" in link["flags"], "group": link.get("group", "default"), **counters}


def pace(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``genie-agent pace get``: the stretch of a host's compute, in thousandths."""
    if code != 0:
        raise ValueError("no pace")
    return {"stretch_milli": json.loads(text)["stretch_milli"]}


def cpu_group(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The reading of role host_cpu: lines of a field and its value."""
    told = dict(line.split(" ", 1) for line in text.splitlines())
    if code != 0 or "controller" not in told:
        raise ValueError("no cgroup was told of")
    return told


def load_status(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``genie-load status``: whether it sends, and at which rate (none where it does not)."""
    if code != 0:
        raise ValueError("no status")
    told = json.loads(text)
    sending = told["state"] == "sending"
    return {"sending": sending, "rate_bps": told["rate_bps"] if sending else 0}


def trial(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A command that tries what the change needs where it hurts nobody: ``trial`` is "works", or what it said."""
    said = " ".join(text.split())
    return {"trial": "works" if code == 0 and said.endswith("works") else said or f"exit code {code}"}


def netem(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``tc -s -j qdisc show dev DEVICE``: its netem; ``queue`` "none" where there is no such device."""
    if code == 1 and not text.strip():
        return {"queue": "none"}
    root = next(queue for queue in json.loads(text) if queue.get("root"))
    if root["kind"] != "netem":
        return {"queue": root["kind"]}
    delay = root["options"]["delay"]
    return {
        "queue": "netem",
        "delay_ns": round(delay["delay"] * 1e9),
        "jitter_ns": round(delay["jitter"] * 1e9),
        "packets": root["packets"],
        "drops": root["drops"],
    }


def ingress_hook(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``tc -j qdisc show dev X``: what can hold filters of arriving packets: "clsact", "ingress" or "none"."""
    kinds = [queue["kind"] for queue in json.loads(text)]
    return {"hook": next((kind for kind in kinds if kind in ("clsact", "ingress")), "none")}


def ingress_filters(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``tc -j filter show dev X ingress``: "redirect to DEVICE" for one that sends everything there, else kinds."""
    rules = [rule for rule in json.loads(text or "[]") if "options" in rule]
    said = []
    for rule in rules:
        action: dict[str, Any] = next(iter(rule["options"].get("actions", ())), {})
        redirects = rule["kind"] == "matchall" and action.get("mirred_action") == "redirect"
        said.append(f"redirect to {action['to_dev']}" if redirects else rule["kind"])
    return {"filters": ", ".join(said) or "none"}


def nothing(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A command that must succeed and tells no state."""
    if code != 0:
        raise ValueError(f"exit code {code}")
    return {"there": True}


VENDOR_PARSERS: dict[str, Parser] = NIC_PARSERS | SONIC_PARSERS | SWITCH_PARSERS
PARSERS: dict[str, Parser] = VENDOR_PARSERS | {
    parser.__name__: parser
    for parser in (
        root_qdisc,
        child_red,
        marker,
        nft_table,
        value,
        routes,
        neighbours,
        all_links,
        peer_routes,
        uplinks,
        ip_link,
        pace,
        cpu_group,
        load_status,
        trial,
        netem,
        ingress_hook,
        ingress_filters,
        nothing,
    )
}
