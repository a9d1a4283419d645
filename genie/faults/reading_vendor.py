"""What vendors' tools print → fields of an object's state: ConnectX hosts, InfiniBand, SONiC, Cumulus Linux, EOS.

Pure parsers, named by ``parse`` in the roles' files ``platforms/{mlx5,infiniband,sonic,cumulus,eos}.yml``; contract in
`genie.faults.reading`, which offers them. Every field that the tool shows is kept, so that a revert is compared with
all of it. Where what is asked for must be fitted to what the gear can (speeds, PCIe generations, buffer shares), the
fit is a field too, of what was asked (``port``) and what never changes; ``fits`` and ``is_wanted`` are for ``before``
and ``after``. The formats are those of the sources that `tests/standins` names: no line here has met hardware.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Parser = Callable[[str, int, Mapping[str, Any]], dict[str, Any]]

DEFAULT_PRIORITY = 3
"""The class of RoCE in every vendor's defaults, where a role has no parameter for it."""
GBPS = 1_000_000_000
PCIE_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
IB_LANES = {"1X": 1, "2X": 2, "4X": 4, "8X": 8, "12X": 12}
IB_WIDTH_BITS = {"1X": 1, "4X": 2, "8X": 4, "12X": 8, "2X": 16}
IB_SPEED_BITS = {"14.0625 Gbps": 1, "25.78125 Gbps": 2, "53.125 Gbps": 4, "106.25 Gbps": 8}
LINK_MODE_BITS = {
    "1000baseT": 5, "10000baseT": 12, "1000baseKX": 17, "10000baseKX4": 18, "10000baseKR": 19, "40000baseKR4": 23,
    "40000baseCR4": 24, "40000baseSR4": 25, "40000baseLR4": 26, "56000baseKR4": 27, "56000baseCR4": 28,
    "56000baseSR4": 29, "56000baseLR4": 30, "25000baseCR": 31, "25000baseKR": 32, "25000baseSR": 33,
    "50000baseCR2": 34, "50000baseKR2": 35, "100000baseKR4": 36, "100000baseSR4": 37, "100000baseCR4": 38,
    "100000baseLR4_ER4": 39, "50000baseSR2": 40, "1000baseX": 41, "10000baseCR": 42, "10000baseSR": 43,
    "10000baseLR": 44, "10000baseER": 46, "50000baseKR": 52, "50000baseSR": 53, "50000baseCR": 54,
    "50000baseLR_ER_FR": 55, "50000baseDR": 56, "100000baseKR2": 57, "100000baseSR2": 58, "100000baseCR2": 59,
    "100000baseLR2_ER2_FR2": 60, "100000baseDR2": 61, "200000baseKR4": 62, "200000baseSR4": 63,
    "200000baseLR4_ER4_FR4": 64, "200000baseDR4": 65, "200000baseCR4": 66, "400000baseKR8": 69, "400000baseSR8": 70,
    "400000baseLR8_ER8_FR8": 71, "400000baseDR8": 72, "400000baseCR8": 73, "100000baseKR": 75, "100000baseSR": 76,
    "100000baseLR_ER_FR": 77, "100000baseCR": 78, "100000baseDR": 79, "200000baseKR2": 80, "200000baseSR2": 81,
    "200000baseLR2_ER2_FR2": 82, "200000baseDR2": 83, "200000baseCR2": 84, "400000baseKR4": 85, "400000baseSR4": 86,
    "400000baseLR4_ER4_FR4": 87, "400000baseDR4": 88, "400000baseCR4": 89,
}  # fmt: skip
"""Bits of ethtool's link modes (include/uapi/linux/ethtool.h), all full duplex."""


def _priority(variables: Mapping[str, Any]) -> int:
    return int(variables["port"].get("priority", DEFAULT_PRIORITY))


def _share(variables: Mapping[str, Any]) -> float:
    """The rate asked for as a share of the port's own."""
    return float(variables["port"]["rate_bps"]) / float(variables["port"]["own_bps"])


def _must_succeed(text: str, code: int) -> None:
    if code != 0:
        raise ValueError(" ".join(text.split())[-200:] or f"exit code {code}")


# ---- ConnectX hosts -----------------------------------------------------------------------------------------------


def attribute(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A path and what the file there holds, from the probe of a driver's paths: ``path``, ``value``."""
    if code != 0:
        raise ValueError("this driver has no such attribute at any of its known paths")
    path, value = text.split()
    return {"path": path, "value": value}


def mlnx_qos(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``mlnx_qos -i X -a``: DCBX, trust, the DSCP map, buffers, PFC, rate limits, all of them.

    ``dscp_repair``: what ``--dscp2prio`` must be told after ``--trust dscp`` has made the driver's own map.
    """
    _must_succeed(text, code)
    mapping: dict[int, int] = {}
    for prio, codes in re.findall(r"prio:(\d) dscp:([\d,]+)", text):
        mapping |= {int(dscp): int(prio) for dscp in codes.split(",") if dscp}
    limits = {int(tc): rate for tc, rate in re.findall(r"^tc: (\d) ratelimit: ([\w.]+)", text, re.MULTILINE)}
    gbps = [0.0 if limits[tc] == "unlimited" else float(limits[tc]) for tc in range(8)]
    state: dict[str, Any] = {
        "dcbx": {"OS": "os", "Firmware": "fw"}[_one(r"DCBX mode: (\w+) controlled", text)],
        "trust": _one(r"Priority trust state: (\w+)", text),
        "dscp": ",".join(f"{dscp}:{prio}" for dscp, prio in sorted(mapping.items())),
        "dscp_repair": [f"set,{dscp},{prio}" for dscp, prio in sorted(mapping.items()) if prio != dscp >> 3]
        + [f"del,{dscp},{dscp >> 3}" for dscp in range(64) if mapping and dscp not in mapping],
        "cable_len": int(_one(r"Cable len: (\d+)", text)),
        "ratelimit_gbps": ",".join(f"{rate:g}" for rate in gbps),
        "ratelimit_whole": all(rate.is_integer() for rate in gbps),
        "scheduling": " ".join(re.findall(r"tsa: (\w+(?:, bw: \d+%)?)", text)),
    }
    enabled = _one(r"enabled\s+((?:\d\s+){8})", text + " ").split()
    prio = _priority(variables)
    state |= {
        "pfc": ",".join(enabled),
        "pfc_on": enabled[prio] == "1",
        "pfc_without": ",".join("0" if index == prio else bit for index, bit in enumerate(enabled)),
    }
    buffers = re.search(r"Receive buffer size \(bytes\): ((?:\d+,){8})", text)
    to_buffer = re.search(r"buffer\s+((?:\d\s+){8})", text + " ")
    if buffers and to_buffer:
        sizes, own = buffers[1].rstrip(",").split(","), int(to_buffer[1].split()[prio])
        state |= {"buffer_size": ",".join(sizes), "prio2buffer": ",".join(to_buffer[1].split())}
        state |= {"buffer_bytes": int(sizes[own])}
        if "limit_bytes" in variables["port"]:
            small = str(variables["port"]["limit_bytes"])
            state["buffer_size_small"] = ",".join(small if index == own else size for index, size in enumerate(sizes))
    if "rate_bps" in variables["port"]:
        rate = int(variables["port"]["rate_bps"])
        state["rate_fits"] = rate % GBPS == 0  # the tool takes whole Gb/s only
    return state


def pause_counters(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ethtool -S X``: whether the driver counts pauses of the priority, which it does while its PFC is on."""
    _must_succeed(text, code)
    return {"counts_pauses": f"rx_prio{_priority(variables)}_pause:" in text}


def dcb_pfc(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``dcb -j pfc show dev X``: PFC of every priority."""
    _must_succeed(text, code)
    told = json.loads(text)
    return {"pfc": told["prio_pfc"], "pfc_on": bool(told["prio_pfc"][_priority(variables)]), "delay": told["delay"]}


def dcb_mode(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``dcb -j dcbx show dev X``: "os" where the host decides, else "fw"."""
    _must_succeed(text, code)
    return {"dcbx": "os" if json.loads(text).get("host") else "fw"}


def dcb_buffer(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``dcb -j buffer show dev X``: all receive buffers, and the one of the priority."""
    _must_succeed(text, code)
    told = json.loads(text)
    own = int(told["prio_buffer"][_priority(variables)])
    return {
        "buffer": own,
        "buffer_bytes": told["buffer_size"][own],
        "buffer_size": told["buffer_size"],
        "prio_buffer": told["prio_buffer"],
    }


def devlink_port(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``devlink -j port show``: the handle of the port whose network device is the interface."""
    _must_succeed(text, code)
    ports = json.loads(text)["port"]
    name = variables["port"]["interface"]
    return {"devlink_port": next(handle for handle, told in ports.items() if told.get("netdev") == name)}


def devlink_rate(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``devlink -j port function rate show PORT``: its limit, bit/s; 0 is none, which isn't shown."""
    _must_succeed(text, code)
    (told,) = json.loads(text)["rate"].values()
    return {
        "tx_max_bps": int(told.get("tx_max", 0)) * 8,
        "tx_share_bps": int(told.get("tx_share", 0)) * 8,
        "rate_fits": int(variables["port"]["rate_bps"]) % 1_000_000 == 0,
    }


def ethtool_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ethtool X``: speeds, modes, auto-negotiation, link. ``speed_restore``: the words that force the speed found.

    ``wanted_mbps`` is the fastest supported speed up to the rate asked for; 0 where there is none.
    """
    _must_succeed(text, code)
    supported, advertised = _modes("Supported link modes", text), _modes("Advertised link modes", text)
    speeds = sorted({int(mode.partition("base")[0]) for mode in supported})
    asked = int(variables["port"]["rate_bps"]) // 1_000_000
    speed = _one(r"Speed: (.+)", text)
    found = int(speed.removesuffix("Mb/s")) if speed.endswith("Mb/s") else 0
    wanted = max((each for each in speeds if each <= asked), default=0)
    return {
        "speed_mbps": found,
        "autoneg": _one(r"^\s*Auto-negotiation: (\w+)", text),
        "advertised": f"{sum(1 << LINK_MODE_BITS[mode.removesuffix('/Full')] for mode in advertised):x}",
        "supported": " ".join(supported),
        "link": _one(r"Link detected: (\w+)", text),
        "wanted_mbps": wanted,
        "is_wanted": wanted > 0 and found == wanted,
    }


def _modes(title: str, text: str) -> list[str]:
    block = re.search(rf"{title}:\s+((?:\d+base\S+\s+)*)", text)
    return block[1].split() if block else []


def mlxlink(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``mlxlink -d PCI --json``: ``port_state`` is "Active", "Polling" or "Disable"."""
    answer = json.loads(text)
    if answer["status"]["code"] != 0:
        raise ValueError(answer["status"]["message"])
    return {"port_state": answer["result"]["output"]["Operational Info"]["State"]}


def pci_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Card, port above it, its current and best speed, and Link Control 2, a line each.

    ``wanted_generation``: the fastest of which the bus carries no more than the share asked for, of its best.
    """
    _must_succeed(text, code)
    card, upstream, current, best, target = text.split("\n")[:5]
    by_speed = {f"{speed} GT/s PCIe": generation for generation, speed in PCIE_GTS.items()}
    most = by_speed[best]
    # Generations 1 and 2 lose a fifth to their coding, later ones next to nothing.
    carried = {generation: speed * (0.8 if generation < 3 else 1.0) for generation, speed in PCIE_GTS.items()}
    share = _share(variables)
    wanted = max((g for g in carried if g < most and carried[g] <= share * carried[most] * 1.001), default=0)
    return {
        "card": card,
        "upstream": upstream,
        "generation": by_speed[current],
        "most_generation": most,
        "target": int(target, 16) & 0xF,
        "wanted_generation": wanted,
        "wanted_speed": f"{PCIE_GTS[wanted]} GT/s PCIe" if wanted else "none",
        "found_speed": current,
        "is_wanted": by_speed[current] == wanted,
    }


# ---- InfiniBand ---------------------------------------------------------------------------------------------------


def ib_port(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``ibportstate -D 0 N query``: states, and enabled and active speeds and widths as PortInfo's own bits.

    ``wanted_*``: the fastest combination that carries no more than the share asked for of the best that is supported.
    """
    _must_succeed(text, code)
    lines = dict(re.findall(r"^(\w+):\.+(.*)$", text.partition("Peer PortInfo")[0], re.MULTILINE))
    widths = [name for name in IB_WIDTH_BITS if name in lines["LinkWidthSupported"].split(" or ")]
    speeds = [name for name in IB_SPEED_BITS if name in lines["LinkSpeedExtSupported"].split(" or ")]
    state: dict[str, Any] = {
        "link_state": lines["LinkState"],
        "physical_state": lines["PhysLinkState"],
        "width_enabled": _bits(lines["LinkWidthEnabled"], IB_WIDTH_BITS),
        "width_active": lines["LinkWidthActive"],
        "espeed_enabled": _bits(lines["LinkSpeedExtEnabled"], IB_SPEED_BITS),
        "espeed_active": lines["LinkSpeedExtActive"],
    }
    if "rate_bps" in variables["port"]:
        carried = {(w, s): IB_LANES[w] * float(s.split()[0]) for w in widths for s in speeds}
        most = max(carried.values()) * _share(variables) * 1.001
        width, speed = max(
            (pair for pair in carried if carried[pair] <= most), key=carried.__getitem__, default=("", "")
        )
        state |= {
            "fits": bool(width),
            "wanted_width": IB_WIDTH_BITS.get(width, 0),
            "wanted_espeed": IB_SPEED_BITS.get(speed, 0),
            "is_wanted": (state["width_active"], state["espeed_active"]) == (width, speed),
        }
    return state


def _bits(text: str, names: Mapping[str, int]) -> int:
    return sum(bit for name, bit in names.items() if name in text.split(" or "))


# ---- SONiC --------------------------------------------------------------------------------------------------------


def _hash(text: str, code: int) -> dict[str, str]:
    """What ``sonic-db-cli … HGETALL`` prints: a Python dictionary of strings, ``{}`` where there is no such key."""
    _must_succeed(text, code)
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
    _must_succeed(text, code)
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
    _must_succeed(text, code)
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
        "pfc_on": str(_priority(variables)) in enabled,
        "scheduler": fields.get("scheduler", ""),
        "is_own": fields.get("scheduler", "").strip("[]").rpartition("|")[2] == own,
        "own_reference": f"[SCHEDULER|{own}]" if bracketed else own,
    }


def sonic_pfc_shown(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``show pfc priority X``: the lossless priorities of the port, as the switch's own tool reads them."""
    _must_succeed(text, code)
    name = str(variables["port"]["interface"])
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == [name])
    return {"pfc_shown": str(_priority(variables)) in (row[1].split(",") if len(row) > 1 else [])}


def sonic_watchdog(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """A queue's id and its counters in COUNTERS_DB: what the PFC watchdog does there, and what it dropped in the last
    storm.
    """
    _must_succeed(text, code)
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
    _must_succeed(text, code)
    lines = [line for line in text.splitlines() if line.strip()]
    for key, fields_text, profile_text in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        first, _, last = key.rpartition("|")[2].partition("-")
        if not int(first) <= _priority(variables) <= int(last or first):
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
    raise ValueError(f"no buffer of {variables['port']['interface']} is for priority {_priority(variables)}")


# ---- Cumulus Linux ------------------------------------------------------------------------------------------------


def nvue_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv show interface X link -o json``: what is in effect."""
    _must_succeed(text, code)
    link = json.loads(text)
    state = link.get("state", "up")
    return {
        "state": next(iter(state), "none") if isinstance(state, dict) else str(state),
        "mtu": str(link.get("mtu", "none")),
        "speed": str(link.get("speed", "none")),
    }


def nvue_applied_link(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv show interface X link --applied -o json``: what the configuration says; "" where it says nothing."""
    _must_succeed(text, code)
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
    _must_succeed(text, code)
    return {"pending": "changes" if json.loads(text or "[]") else "none"}


def nvue_profile(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``nv show interface X qos congestion-control --applied -o json``: the profile of the port; "" is the global."""
    _must_succeed(text, code)
    return {"profile": str(json.loads(text).get("profile", ""))}


def nvue_congestion(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The applied congestion control of the port's profile for one traffic class: ``ecn``, thresholds, probability."""
    _must_succeed(text, code)
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
    _must_succeed(text, code)
    lines: list[str] = []
    queue: list[str] = []
    own_queue = False
    for raw in text.splitlines()[1:]:
        line = raw.strip()
        if re.match(r"(uc-)?tx-queue ", line):
            own_queue = line.split()[1] == str(_priority(variables))
        elif line and line != "!":
            is_nested = raw.startswith(" " * 6)
            if not is_nested:
                lines.append(line)
            elif own_queue:
                queue.append(line)
    pfc = f"priority-flow-control priority {_priority(variables)} no-drop"
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
    _must_succeed(text, code)
    own = json.loads(text)["interfaces"][variables["port"]["interface"]]
    return {"status": own["interfaceStatus"], "mtu": own["mtu"], "bandwidth_bps": own["bandwidth"]}


def eos_sessions(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``show configuration sessions | json``: whether a commit waits for its confirmation."""
    _must_succeed(text, code)
    states = [session.get("state", "") for session in json.loads(text).get("sessions", {}).values()]
    return {"commit_timer": "running" if any("ommitTimer" in state for state in states) else "none"}


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"nothing of the form {pattern}")
    return found[1]


VENDOR_PARSERS: dict[str, Parser] = {
    parser.__name__: parser
    for parser in (
        attribute, mlnx_qos, pause_counters, dcb_pfc, dcb_mode, dcb_buffer, devlink_port, devlink_rate, ethtool_link,
        mlxlink, pci_link, ib_port, sonic_port, sonic_oper, sonic_queue, sonic_asic_queue, sonic_wred, sonic_absent,
        sonic_qos_map, sonic_pfc_shown, sonic_scheduler, sonic_watchdog, sonic_watchdog_config, sonic_priority_group,
        nvue_link, nvue_applied_link, nvue_pending, nvue_profile, nvue_congestion, eos_running, eos_interface,
        eos_sessions,
    )
}  # fmt: skip
