"""What tools of NICs print → fields of an object's state: ConnectX (mlx5) hosts, and InfiniBand.

Pure parsers, named by ``parse`` in the roles' files ``platforms/{mlx5,infiniband}.yml``; contract in
`genie.faults.reading`, which offers them, and `genie.faults.reading_tool`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from genie.faults.reading_tool import GBPS, Parser, must_succeed, one_group, priority_of, share_of

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
    must_succeed(text, code)
    mapping: dict[int, int] = {}
    for prio, codes in re.findall(r"prio:(\d) dscp:([\d,]+)", text):
        mapping |= {int(dscp): int(prio) for dscp in codes.split(",") if dscp}
    limits = {int(tc): rate for tc, rate in re.findall(r"^tc: (\d) ratelimit: ([\w.]+)", text, re.MULTILINE)}
    gbps = [0.0 if limits[tc] == "unlimited" else float(limits[tc]) for tc in range(8)]
    state: dict[str, Any] = {
        "dcbx": {"OS": "os", "Firmware": "fw"}[one_group(r"DCBX mode: (\w+) controlled", text)],
        "trust": one_group(r"Priority trust state: (\w+)", text),
        "dscp": ",".join(f"{dscp}:{prio}" for dscp, prio in sorted(mapping.items())),
        "dscp_repair": [f"set,{dscp},{prio}" for dscp, prio in sorted(mapping.items()) if prio != dscp >> 3]
        + [f"del,{dscp},{dscp >> 3}" for dscp in range(64) if mapping and dscp not in mapping],
        "cable_len": int(one_group(r"Cable len: (\d+)", text)),
        "ratelimit_gbps": ",".join(f"{rate:g}" for rate in gbps),
        "ratelimit_whole": all(rate.is_integer() for rate in gbps),
        "scheduling": " ".join(re.findall(r"tsa: (\w+(?:, bw: \d+%)?)", text)),
    }
    enabled = one_group(r"enabled\s+((?:\d\s+){8})", text + " ").split()
    prio = priority_of(variables)
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
    must_succeed(text, code)
    return {"counts_pauses": f"rx_prio{priority_of(variables)}_pause:" in text}


def dcb_pfc(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``dcb -j pfc show dev X``: PFC of every priority."""
    must_succeed(text, code)
    told = json.loads(text)
    return {"pfc": told["prio_pfc"], "pfc_on": bool(told["prio_pfc"][priority_of(variables)]), "delay": told["delay"]}


def dcb_mode(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``dcb -j dcbx show dev X``: "os" where the host decides, else "fw"."""
    must_succeed(text, code)
    return {"dcbx": "os" if json.loads(text).get("host") else "fw"}


def dcb_buffer(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``dcb -j buffer show dev X``: all receive buffers, and the one of the priority."""
    must_succeed(text, code)
    told = json.loads(text)
    own = int(told["prio_buffer"][priority_of(variables)])
    return {
        "buffer": own,
        "buffer_bytes": told["buffer_size"][own],
        "buffer_size": told["buffer_size"],
        "prio_buffer": told["prio_buffer"],
    }


def devlink_port(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``devlink -j port show``: the handle of the port whose network device is the interface."""
    must_succeed(text, code)
    ports = json.loads(text)["port"]
    name = variables["port"]["interface"]
    return {"devlink_port": next(handle for handle, told in ports.items() if told.get("netdev") == name)}


def devlink_rate(text: str, code: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    """``devlink -j port function rate show PORT``: its limit, bit/s; 0 is none, which isn't shown."""
    must_succeed(text, code)
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
    must_succeed(text, code)
    supported, advertised = _modes("Supported link modes", text), _modes("Advertised link modes", text)
    speeds = sorted({int(mode.partition("base")[0]) for mode in supported})
    asked = int(variables["port"]["rate_bps"]) // 1_000_000
    speed = one_group(r"Speed: (.+)", text)
    found = int(speed.removesuffix("Mb/s")) if speed.endswith("Mb/s") else 0
    wanted = max((each for each in speeds if each <= asked), default=0)
    return {
        "speed_mbps": found,
        "autoneg": one_group(r"^\s*Auto-negotiation: (\w+)", text),
        "advertised": f"{sum(1 << LINK_MODE_BITS[mode.removesuffix('/Full')] for mode in advertised):x}",
        "supported": " ".join(supported),
        "link": one_group(r"Link detected: (\w+)", text),
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
    must_succeed(text, code)
    card, upstream, current, best, target = text.split("\n")[:5]
    by_speed = {f"{speed} GT/s PCIe": generation for generation, speed in PCIE_GTS.items()}
    most = by_speed[best]
    # Generations 1 and 2 lose a fifth to their coding, later ones next to nothing.
    carried = {generation: speed * (0.8 if generation < 3 else 1.0) for generation, speed in PCIE_GTS.items()}
    share = share_of(variables)
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
    must_succeed(text, code)
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
        most = max(carried.values()) * share_of(variables) * 1.001
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


NIC_PARSERS: dict[str, Parser] = {
    parser.__name__: parser
    for parser in (
        attribute, mlnx_qos, pause_counters, dcb_pfc, dcb_mode, dcb_buffer, devlink_port, devlink_rate,
        ethtool_link, mlxlink, pci_link, ib_port,
    )
}  # fmt: skip
