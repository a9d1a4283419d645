"""FastCli on an Arista EOS switch: lines of configuration, sessions with a commit timer, and ``show … | json``.

Sources: Arista EOS User Manual "Configure Session" (a session starts from the running configuration, does nothing until
its commit, is left by abort) and TOI "Config Session Commit Timer" (``commit timer HH:MM:SS`` puts the change in effect
and takes it back by itself unless the session is committed again in time; an abort takes it back at once);
napalm ``eos.py`` (``configure session NAME commit timer``/``abort``/``commit`` as one command; ``show interfaces``
fields). An invalid line is answered by "% Invalid input".

Not in a source: that such a line ends the run with exit code 1 and the rest unread, the words after an abort of no
session, that a second commit is refused while a timer runs, and the names of transmit queues on every model.
"""

from __future__ import annotations

import copy
import json
import re
import time
from typing import Any

from standin import Failed, State, Tool

SPEEDS = {"400g-8": 400, "200g-4": 200, "100g-2": 100, "100gfull": 100, "40gfull": 40}


def switch(**changed: Any) -> State:
    """Two ports at 400 Gb/s; ECN on transmit queue 3, PFC without drop on priority 3."""
    lines = {
        "mtu": "mtu 9214",
        "speed": "",
        "shutdown": "",
        "shape": "",
        "pfc": "priority-flow-control on",
        "pfc 3": "priority-flow-control priority 3 no-drop",
        "ecn 3": "random-detect ecn minimum-threshold 150 kbytes maximum-threshold 1500 kbytes max-mark-probability 10",
    }
    running = {name: dict(lines) for name in ("Ethernet1", "Ethernet2")}
    return {
        "platform": "eos", "running": running, "sessions": {}, "pending": None, "now": None, "saved": False,
        "peer_speeds": [400, 200, 100], **changed,
    }  # fmt: skip


def _now(state: State) -> float:
    return float(state["now"]) if state["now"] is not None else time.time()


def _expire(state: State) -> None:
    pending = state["pending"]
    if pending and _now(state) >= pending["until"]:
        state["running"], state["pending"] = pending["before"], None


def fastcli(state: State, argv: list[str]) -> str:
    r"""``FastCli -p 15 -c "line\nline…"``."""
    _expire(state)
    if "-c" not in argv or "-p" not in argv:
        raise Failed("% Invalid input (privileged mode required)\n")
    out: list[str] = []
    mode: dict[str, Any] = {}
    for raw in argv[argv.index("-c") + 1].split("\n"):
        line = raw.strip()
        if line:
            try:
                out.append(_run(state, mode, line))
            except ValueError as error:
                raise Failed("", 1, "".join(out) + f"% {error}\n") from None
    return "".join(out)


def _run(state: State, mode: dict[str, Any], line: str) -> str:
    words = line.split()
    if words[0] in ("write", "copy") or line == "copy running-config startup-config":
        state["saved"] = True
        return "Copy completed successfully.\n"
    if words[0] == "show":
        return _show(state, line)
    if words[:2] == ["configure", "session"]:
        name = words[2]
        if words[3:] in (["abort"], ["commit"]) or words[3:5] == ["commit", "timer"]:
            _end_session(state, name, words[3:])
            return ""
        if name in state["sessions"] and state["sessions"][name] is None:
            raise ValueError(f"Cannot enter session {name} (session already completed)")
        state["sessions"].setdefault(name, copy.deepcopy(state["running"]))
        mode.clear()
        mode["session"] = name
        return ""
    if words[0] in ("abort", "commit") and "session" in mode:
        _end_session(state, mode["session"], words)
        mode.clear()
        return ""
    if line in ("exit", "end"):
        mode.pop("queue", None) or mode.pop("interface", None) or mode.clear()
        return ""
    if words[:2] in (["configure", "terminal"], ["configure"]):
        mode["terminal"] = True
        return ""
    if not mode:
        raise ValueError("Invalid input")
    tree = state["sessions"][mode["session"]] if "session" in mode else state["running"]
    return _configure(tree, mode, line)


def _configure(tree: dict[str, dict[str, str]], mode: dict[str, Any], line: str) -> str:
    words = line.split()
    if words[0] == "interface":
        if words[1] not in tree:
            raise ValueError("Invalid input")
        mode["interface"] = words[1]
        mode.pop("queue", None)
        return ""
    own = tree.get(mode.get("interface", ""))
    if own is None:
        raise ValueError("Invalid input")
    negated = words[0] in ("no", "default")
    rest = words[1:] if negated else words
    text = " ".join(rest)
    if rest[0] in ("tx-queue", "uc-tx-queue"):
        mode["queue"] = rest[1]
        return ""
    if rest[0] == "random-detect" and "queue" in mode:
        if not negated and not re.fullmatch(
            r"random-detect ecn minimum-threshold \d+ \w+ maximum-threshold \d+ \w+"
            r"( max-mark-probability \d+)?( weight \d+)?",
            text,
        ):
            raise ValueError("Invalid input")
        own[f"ecn {mode['queue']}"] = "" if negated else text
    elif rest[0] == "shutdown":
        own["shutdown"] = "" if negated else "shutdown"
    elif text.startswith("shape rate"):
        if not negated and not re.fullmatch(r"shape rate \d+( (kbps|percent|pps))?", text):
            raise ValueError("Invalid input")
        own["shape"] = "" if negated else text
    elif rest[0] == "mtu":
        if not negated and not 68 <= int(rest[1]) <= 9214:
            raise ValueError("Invalid input")
        own["mtu"] = "" if negated else text
    elif rest[0] == "speed":
        if not negated and rest[-1] not in SPEEDS:
            raise ValueError("Invalid input")
        own["speed"] = "" if negated else text
    elif text.startswith("priority-flow-control priority"):
        if rest[-1] not in ("drop", "no-drop"):
            raise ValueError("Incomplete command")
        own[f"pfc {rest[2]}"] = "" if negated or rest[-1] == "drop" else text
    elif rest[0] == "priority-flow-control":
        own["pfc"] = "" if negated else text
    else:
        raise ValueError("Invalid input")
    return ""


def _end_session(state: State, name: str, words: list[str]) -> None:
    pending = state["pending"]
    if words[0] == "abort":
        if pending and pending["session"] == name:
            state["running"], state["pending"] = pending["before"], None
        elif name not in state["sessions"] or state["sessions"][name] is None:
            raise ValueError(f"Cannot abort session {name} (no such session)")
        state["sessions"].pop(name, None)
        return
    if pending and pending["session"] == name:
        state["pending"] = None  # the second commit: it stays
        return
    if pending:
        raise ValueError(f"Cannot commit session {name} (commit timer of {pending['session']} is running)")
    tree = state["sessions"].get(name)
    if tree is None:
        raise ValueError(f"Cannot commit session {name} (no such session)")
    if words[1:2] == ["timer"]:
        hours, minutes, seconds = (int(part) for part in words[2].split(":"))
        until = _now(state) + 3600 * hours + 60 * minutes + seconds
        state["pending"] = {"session": name, "before": state["running"], "until": until}
    state["running"] = tree
    state["sessions"][name] = None


def _show(state: State, line: str) -> str:
    wants_json = line.endswith("| json")
    words = line.removesuffix("| json").split()
    if words[1] == "interfaces":
        found = {name: _interface(state, name) for name in words[2:] or state["running"]}
        return json.dumps({"interfaces": found}) + "\n" if wants_json else f"{found}\n"
    if words[1:3] == ["running-config", "interfaces"]:
        name = words[3]
        own = state["running"][name]
        lines = [own[key] for key in sorted(own) if own[key] and not key.startswith("ecn")]
        for key in sorted(own):
            if key.startswith("ecn") and own[key]:
                lines += ["!", f"tx-queue {key[4:]}", f"   {own[key]}"]
        return f"interface {name}\n" + "".join(f"   {text}\n" for text in lines)
    if words[1:3] == ["configuration", "sessions"]:
        pending = state["pending"]
        sessions = {}
        for name, tree in state["sessions"].items():
            status = "completed" if tree is None else "pending"
            if pending and pending["session"] == name:
                status = "pendingCommitTimer"
            sessions[name] = {"state": status}
        return json.dumps({"sessions": sessions, "maxSavedSessions": 1, "maxOpenSessions": 5}) + "\n"
    raise ValueError("Invalid input")


def _interface(state: State, name: str) -> dict[str, Any]:
    if name not in state["running"]:
        raise ValueError("Invalid input")
    own = state["running"][name]
    speed = SPEEDS.get(own["speed"].split()[-1], 400) if own["speed"] else 400
    is_up = not own["shutdown"] and speed in state["peer_speeds"]
    status = "disabled" if own["shutdown"] else ("connected" if is_up else "notconnect")
    return {
        "interfaceStatus": status,
        "lineProtocolStatus": "up" if is_up else "down",
        "bandwidth": speed * 10**9 if is_up else 0,
        "mtu": int(own["mtu"].split()[1]) if own["mtu"] else 1500,
    }


TOOLS: dict[str, Tool] = {"FastCli": fastcli}
