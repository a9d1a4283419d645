"""What SONiC's databases and commands print → fields of an object's state.

Pure parsers, named by ``parse`` in the roles' files ``platforms/sonic.yml``; contract in `genie.faults.reading`, which
offers them, and `genie.faults.reading_tool`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from genie.faults.reading_tool import Parser, must_succeed, priority_of


def _hash(text: str, code: int) -> dict[str, str]:
    """What ``sonic-db-cli … HGETALL`` prints: a Python dictionary of strings, ``{}`` where there is no such key."""
    must_succeed(text, code)
    try:
        found = ast.literal_eval(text.strip())
    except SyntaxError:
        raise ValueError("no dictionary") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a dictionary, found {type(found).__name__}")
    return {str(key): str(value) for key, value in found.items()}


def sonic_port(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``PORT|X`` of CONFIG_DB, all fields."""
    fields = _hash(text, code)
    if not fields:
        raise ValueError(f"the switch has no port {variables['port']['interface']}")
    fields.setdefault("autoneg", "off")
    if "rate_bps" in variables["port"]:
        fields["wanted_speed"] = str(int(variables["port"]["rate_bps"]) // 1_000_000)
    return dict(fields)


def sonic_oper(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``HGET PORT_TABLE:X oper_status`` of APPL_DB: the link as orchestration has it."""
    must_succeed(text, code)
    return {"oper_status": text.strip() or "none"}


def sonic_queue(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``QUEUE|X|N`` of CONFIG_DB: its WRED profile, and the name under which another is bound in this release."""
    fields = _hash(text, code)
    profile = fields.get("wred_profile", "")
    own = f"genie_{variables['fault']}_{variables['port']['interface']}"
    return {
        "queue": fields,
        "wred_profile": profile,
        "own_reference": f"[WRED_PROFILE|{own}]" if profile.startswith("[") else own,
    }


def sonic_asic_queue(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The queue's WRED object in ASIC_DB: whether the ASIC was told to mark there."""
    must_succeed(text, code)
    oid = text.strip()
    if not re.fullmatch(r"oid:0x[0-9a-f]+", oid):
        raise ValueError("no WRED object of the queue in ASIC_DB")
    return {"asic_marks": int(oid.removeprefix("oid:"), 16) != 0}


def sonic_wred(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The WRED profile that a queue is bound to. ``wred_words``: the same with the thresholds asked for."""
    fields = _hash(text, code)
    port = variables["port"]
    changed = dict(fields)
    for key in fields:
        if key.endswith("_min_threshold"):
            changed[key] = str(port["kmin_bytes"])
        elif key.endswith("_max_threshold"):
            changed[key] = str(port["kmax_bytes"])
    words = [word for key, value in changed.items() for word in (key, value)]
    return {"wred": fields, "ecn": fields.get("ecn", "none"), "wred_words": words, **_thresholds(fields)}


def _thresholds(fields: Mapping[str, str]) -> dict[str, str]:
    return {
        "kmin": fields.get("green_min_threshold", "none"),
        "kmax": fields.get("green_max_threshold", "none"),
    }


def sonic_absent(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A key of our own, which must not be there before: ``own_key`` is "none" or "there"."""
    return {"own_key": "there" if _hash(text, code) else "none"}


def sonic_qos_map(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``PORT_QOS_MAP|X`` of CONFIG_DB: PFC's priorities and the port's scheduler."""
    fields = _hash(text, code)
    enabled = [prio for prio in fields.get("pfc_enable", "").split(",") if prio]
    own = f"genie_{variables['fault']}_{variables['port']['interface']}"
    bracketed = any(value.startswith("[") for value in fields.values())
    return {
        "qos_map": fields,
        "pfc_enable": fields.get("pfc_enable", ""),
        "pfc_on": str(priority_of(variables)) in enabled,
        "scheduler": fields.get("scheduler", ""),
        "is_own": fields.get("scheduler", "").strip("[]").rpartition("|")[2] == own,
        "own_reference": f"[SCHEDULER|{own}]" if bracketed else own,
    }


def sonic_pfc_shown(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``show pfc priority X``: the lossless priorities of the port, as the switch's own tool reads them."""
    must_succeed(text, code)
    name = str(variables["port"]["interface"])
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == [name])
    return {"pfc_shown": str(priority_of(variables)) in (row[1].split(",") if len(row) > 1 else [])}


def sonic_watchdog(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A queue's id and its counters in COUNTERS_DB: what the PFC watchdog does there, and what it dropped in the last
    storm.
    """
    must_succeed(text, code)
    oid, _, rest = text.partition("\n")
    counters = _hash(rest, 0)
    dropped = int(counters.get("PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS_LAST", 0))
    return {
        "oid": oid,
        "watchdog": counters.get("PFC_WD_STATUS", "none"),
        "debug_storm": counters.get("DEBUG_STORM", "none"),
        "packets": dropped + int(counters.get("PFC_WD_QUEUE_STATS_TX_PACKETS_LAST", 0)),
        "taken": dropped,
        "drops_all": int(variables["port"]["ratio_ppb"]) == 1_000_000_000,
    }


def sonic_watchdog_config(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``PFC_WD|X`` of CONFIG_DB: its action; "none" where the port has no watchdog."""
    fields = _hash(text, code)
    return {"action": fields.get("action", "drop") if fields else "none", "watchdog_fields": fields}


def sonic_scheduler(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The scheduler of our own: ``pir`` in bytes a second; "none" where there is none."""
    return {"pir": _hash(text, code).get("pir", "none")}


def sonic_priority_group(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Lines of ``key``, its fields, its profile's fields for each ``BUFFER_PG|X|…``: the one of the priority.

    ``profile_words``: its profile with alpha (2^dynamic_th) at the power of two below the share asked for.
    """
    must_succeed(text, code)
    lines = [line for line in text.splitlines() if line.strip()]
    for key, fields_text, profile_text in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        first, _, last = key.rpartition("|")[2].partition("-")
        if not int(first) <= priority_of(variables) <= int(last or first):
            continue
        fields, profile = _hash(fields_text, 0), _hash(profile_text, 0)
        port = variables["port"]
        alpha = int(profile["dynamic_th"])
        share = float(port["limit_bytes"]) / float(port["own_limit_bytes"]) if "own_limit_bytes" in port else 0.25
        small = {**profile, "dynamic_th": str(alpha + math.floor(math.log2(share)))}
        own = f"genie_{variables['fault']}_{port['interface']}"
        return {
            "group": key,
            "group_fields": fields,
            "profile": fields["profile"],
            "dynamic_th": alpha,
            "profile_words": [word for name, value in small.items() for word in (name, value)],
            "own_reference": f"[BUFFER_PROFILE|{own}]" if fields["profile"].startswith("[") else own,
            "is_own": fields["profile"].strip("[]").rpartition("|")[2] == own,
        }
    raise ValueError(f"no buffer of {variables['port']['interface']} is for priority {priority_of(variables)}")


SONIC_PARSERS: dict[str, Parser] = {
    parser.__name__: parser
    for parser in (
        sonic_port, sonic_oper, sonic_queue, sonic_asic_queue, sonic_wred, sonic_absent, sonic_qos_map,
        sonic_pfc_shown, sonic_watchdog, sonic_watchdog_config, sonic_scheduler, sonic_priority_group,
    )
}  # fmt: skip
