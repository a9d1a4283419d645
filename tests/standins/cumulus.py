"""nv, the command of NVUE on a Cumulus Linux switch: a tree of settings with pending, applied and older revisions.

Sources: NVIDIA Cumulus Linux NVUE reference, "Config Commands" (apply, detach, diff, revisions, ``--confirm`` in
minutes; from 5.9 on an apply is also saved and survives a reboot), "QoS" and "Interface" (paths; a congestion-control
profile an interface; ECN at ``default-global``); Cumulus Linux 5.14 "RDMA over Converged Ethernet" (defaults).
``nv config apply`` applies all that is pending.

Not in a source: the exact words of errors, the JSON of ``nv config diff`` and ``revision``, whether a state shows as
``{"up": {}}`` or "up" (both occur in releases); ``nv show`` here prints what was applied as operational, with defaults
where nothing was.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from standin import Failed, State, Tool

SPEEDS = ("auto", "10G", "25G", "40G", "50G", "100G", "200G", "400G", "800G")
DEFAULT_LINK = {"state": "up", "mtu": "9216", "speed": "auto", "auto-negotiate": "on", "fec": "auto"}


def switch(**changed: Any) -> State:
    """Two ports; RoCE lossless; ECN of the default profile on traffic class 3; revision 1 applied."""
    applied = {
        "interface": {"swp1": {"link": {"speed": "400G"}}, "swp2": {}},
        "qos": {
            "roce": {"mode": "lossless"},
            "congestion-control": {
                "default-global": {
                    "traffic-class": {
                        "3": {
                            "ecn": "enable",
                            "min-threshold": "150000",
                            "max-threshold": "1501500",
                            "probability": "100",
                        }
                    }
                }
            },
        },
    }
    return {
        "platform": "cumulus", "revision": 1, "revisions": {"1": applied}, "pending": None,
        "auto_save": True, "startup": 1, "confirm": None, **changed,
    }  # fmt: skip


def applied(state: State) -> dict[str, Any]:
    """The settings in effect."""
    return state["revisions"][str(state["revision"])]


def _at(tree: dict[str, Any], path: list[str]) -> Any:
    for word in path:
        if not isinstance(tree, dict) or word not in tree:
            return None
        tree = tree[word]
    return tree


def nv(state: State, argv: list[str]) -> str:
    """``nv set|unset PATH…``, ``nv show PATH… -o json``, ``nv config apply|diff|detach|revision``."""
    words = [word for word in argv if word not in ("-y", "--assume-yes", "--y", "-o", "json")]
    is_json = "json" in argv
    if words[0] in ("set", "unset"):
        if state["pending"] is None:
            state["pending"] = copy.deepcopy(applied(state))
        _change(state["pending"], words[0], words[1:])
        return ""
    if words[0] == "show":
        return _show(state, words[1:])
    if words[:2] == ["config", "apply"]:
        return _apply(state, words[2:])
    if words[:2] == ["config", "diff"]:
        changes = _diff(applied(state), state["pending"] or applied(state))
        return (json.dumps(changes) if is_json else "\n".join(f"{change}" for change in changes)) + "\n"
    if words[:2] == ["config", "detach"]:
        state["pending"] = None
        return ""
    if words[:2] == ["config", "save"]:
        state["startup"] = state["revision"]
        return "saved\n"
    if words[:2] == ["config", "revision"]:
        return (
            json.dumps(
                {
                    name: {"state": "applied" if int(name) == state["revision"] else "replaced"}
                    for name in state["revisions"]
                }
            )
            + "\n"
        )
    raise Failed(f"nv: error: argument command: invalid choice: '{' '.join(words)}'\n", 2)


def _change(tree: dict[str, Any], verb: str, path: list[str]) -> None:
    if path[0] not in ("interface", "qos", "system"):
        raise Failed(f"Error: Invalid parameter '{path[0]}'\n")
    if verb == "unset":
        parent = _at(tree, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        return
    *route, key, value = path
    if key == "speed" and value not in SPEEDS:
        raise Failed(f"Error: '{value}' is not one of {list(SPEEDS)}\n")
    if key == "mtu" and not (value.isdigit() and 552 <= int(value) <= 9216):
        raise Failed(f"Error: '{value}' is not in the range 552..9216\n")
    if key == "ecn" and value not in ("enable", "disable"):
        raise Failed(f"Error: '{value}' is not one of ['enable', 'disable']\n")
    for word in route:
        tree = tree.setdefault(word, {})
    tree[key] = value


def _show(state: State, words: list[str]) -> str:
    tree: dict[str, Any] = applied(state)
    if "--pending" in words:
        tree = state["pending"] or tree
    path = [word for word in words if not word.startswith("--")]
    found = _at(tree, path)
    if path[0] == "interface" and len(path) > 1:
        if path[1] not in tree["interface"]:
            raise Failed("Error: The requested item does not exist.\n")
        if len(path) > 2 and path[2] == "link" and "--applied" not in words and "--pending" not in words:
            found = {**DEFAULT_LINK, **(found or {})}
            if found["speed"] == "auto":
                found["speed"] = "400G"
            found["state"] = {found["state"]: {}}
            found["mtu"] = int(found["mtu"])
    elif found is None and path[0] != "qos":
        raise Failed("Error: The requested item does not exist.\n")
    return json.dumps(found if found is not None else {}, indent=2) + "\n"


def _apply(state: State, words: list[str]) -> str:
    confirm = "--confirm" in words
    words = [word for word in words if not word.startswith("--") and not (confirm and word.endswith(("m", "s")))]
    before = state["revision"]
    if words and words[0] not in ("startup", "applied"):
        if words[0] not in state["revisions"]:
            raise Failed(f"Error: Revision '{words[0]}' does not exist\n")
        state["pending"] = None
        tree = copy.deepcopy(state["revisions"][words[0]])
    elif state["pending"] is None:
        raise Failed("Error: no pending revision to apply\n")
    else:
        tree, state["pending"] = state["pending"], None
    state["revision"] = max(int(name) for name in state["revisions"]) + 1
    state["revisions"][str(state["revision"])] = tree
    state["confirm"] = before if confirm else None
    if state["auto_save"]:
        state["startup"] = state["revision"]
    return f"applied [rev_id: {state['revision']}]\n"


def _diff(old: Any, new: Any, path: str = "") -> list[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [f"{path}: {old} -> {new}"]
    return [line for key in {**old, **new} for line in _diff(old.get(key), new.get(key), f"{path} {key}".strip())]


TOOLS: dict[str, Tool] = {"nv": nv}
