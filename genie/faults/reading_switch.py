"""What switches of Cumulus Linux (NVUE) and Arista (EOS) print → fields of an object's state.

Pure parsers, named by ``parse`` in the roles' files ``platforms/{cumulus,eos}.yml``; contract in
`genie.faults.reading`, which offers them, and `genie.faults.reading_tool`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from genie.faults.reading_tool import GBPS, Parser, must_succeed, priority_of

# ---- Cumulus Linux ------------------------------------------------------------------------------------------------


def nvue_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv show interface X link -o json``: what is in effect."""
    must_succeed(text, code)
    link = json.loads(text)
    state = link.get("state", "up")
    return {
        "state": next(iter(state), "none") if isinstance(state, dict) else str(state),
        "mtu": str(link.get("mtu", "none")),
        "speed": str(link.get("speed", "none")),
    }


def nvue_applied_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv show interface X link --applied -o json``: what the configuration says; "" where it says nothing."""
    must_succeed(text, code)
    link = json.loads(text)
    state = link.get("state", "")
    return {
        "set_state": next(iter(state), "") if isinstance(state, dict) else str(state),
        "set_mtu": str(link.get("mtu", "")),
        "set_speed": str(link.get("speed", "")),
        "wanted_speed": f"{int(variables['port'].get('rate_bps', 0)) // GBPS}G",
    }


def nvue_pending(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv config diff -o json``: whether somebody has changes that an apply would take along."""
    must_succeed(text, code)
    return {"pending": "changes" if json.loads(text or "[]") else "none"}


def nvue_profile(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv show interface X qos congestion-control --applied -o json``: the profile of the port; "" is the global."""
    must_succeed(text, code)
    return {"profile": str(json.loads(text).get("profile", ""))}


def nvue_congestion(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The applied congestion control of the port's profile for one traffic class: ``ecn``, thresholds, probability."""
    must_succeed(text, code)
    own = json.loads(text)
    return {
        "ecn": str(own.get("ecn", "none")),
        "kmin": str(own.get("min-threshold", "none")),
        "kmax": str(own.get("max-threshold", "none")),
        "probability": str(own.get("probability", "100")),
    }


# ---- Arista EOS ---------------------------------------------------------------------------------------------------


def eos_running(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``show running-config interfaces X``: the lines of the interface, and of its transmit queue for the priority.

    ``X_line`` is "" where there is no such line; ``X_back`` is what puts it back, ``no …`` where there was none.
    """
    must_succeed(text, code)
    lines: list[str] = []
    queue: list[str] = []
    own_queue = False
    for raw in text.splitlines()[1:]:
        line = raw.strip()
        if re.match(r"(uc-)?tx-queue ", line):
            own_queue = line.split()[1] == str(priority_of(variables))
        elif line and line != "!":
            is_nested = raw.startswith(" " * 6)
            if not is_nested:
                lines.append(line)
            elif own_queue:
                queue.append(line)
    pfc = f"priority-flow-control priority {priority_of(variables)} no-drop"
    ecn = _starting(queue, "random-detect ecn ")
    found = {
        "mtu": _starting(lines, "mtu "),
        "speed": _starting(lines, "speed "),
        "shape": _starting(lines, "shape rate "),
        "ecn": ecn,
        "pfc": pfc if pfc in lines else "",
        "shutdown": "shutdown" if "shutdown" in lines else "",
    }
    absent = {"shape": "shape rate", "ecn": "random-detect ecn", "pfc": pfc.removesuffix(" no-drop")}
    return {
        **_eos_thresholds(ecn, variables["port"]),
        **{f"{key}_line": line for key, line in found.items()},
        **{f"{key}_back": line or f"no {absent.get(key, key)}" for key, line in found.items()},
        "lines": sorted(lines),
        "pfc_on": pfc in lines,
    }


def _eos_thresholds(line: str, port: Mapping[str, Any]) -> dict[str, str]:
    """Bytes of the thresholds in a line of ECN, whatever its unit; the line with those asked for, else as it is."""
    units = {"bytes": 1, "kbytes": 1_000, "mbytes": 1_000_000}
    found = {}
    for key, word in (("kmin", "minimum-threshold"), ("kmax", "maximum-threshold")):
        said = re.search(rf"{word} (\d+) (bytes|kbytes|mbytes)", line)
        found[key] = str(int(said[1]) * units[said[2]]) if said else "none"
    probability = re.search(r"max-mark-probability (\d+)", line)
    wanted = (
        f"random-detect ecn minimum-threshold {port.get('kmin_bytes')} bytes maximum-threshold "
        f"{port.get('kmax_bytes')} bytes max-mark-probability {probability[1] if probability else '100'}"
    )
    return {**found, "wanted_ecn_line": wanted if line else ""}


def _starting(lines: list[str], start: str) -> str:
    return next((line for line in lines if line.startswith(start)), "")


def eos_interface(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``show interfaces X | json``: status, MTU and bandwidth of the port as it is."""
    must_succeed(text, code)
    own = json.loads(text)["interfaces"][variables["port"]["interface"]]
    return {"status": own["interfaceStatus"], "mtu": own["mtu"], "bandwidth_bps": own["bandwidth"]}


def eos_sessions(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``show configuration sessions | json``: whether a commit waits for its confirmation."""
    must_succeed(text, code)
    states = [session.get("state", "") for session in json.loads(text).get("sessions", {}).values()]
    return {"commit_timer": "running" if any("ommitTimer" in state for state in states) else "none"}


SWITCH_PARSERS: dict[str, Parser] = {
    parser.__name__: parser
    for parser in (
        nvue_link, nvue_applied_link, nvue_pending, nvue_profile, nvue_congestion, eos_running, eos_interface,
        eos_sessions,
    )
}  # fmt: skip
