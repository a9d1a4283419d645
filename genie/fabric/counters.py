"""The kernel's counters as text, parsed. Pure; `genie.fabric.netns` reads the files and programs' output.

Node counters are named as ``nstat`` names them (group + field: ``TcpRetransSegs``, ``IpExtInCEPkts``), but read from
/proc: nstat keeps a history file that all namespaces share.
"""

from __future__ import annotations

import json

SNMP_FILES = ("/proc/net/snmp", "/proc/net/netstat")
SOFTNET_FILE = "/proc/net/softnet_stat"


def parse_snmp(text: str) -> dict[str, int]:
    """Counters of /proc/net/snmp or /proc/net/netstat: pairs of lines, names then values."""
    counters: dict[str, int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        group, _, fields = names.partition(":")
        for name, value in zip(fields.split(), values.partition(":")[2].split(), strict=False):
            counters[f"{group}{name}"] = int(value)
    return counters


def parse_softnet(text: str) -> dict[str, int]:
    """Machine-wide packets that the kernel dropped before any queue of ours, and polls cut short."""
    rows = [[int(column, 16) for column in line.split()] for line in text.splitlines()]
    return {
        "softnet_dropped": sum(row[1] for row in rows),
        "softnet_time_squeezed": sum(row[2] for row in rows),
    }


def parse_nft_counters(text: str) -> dict[str, int]:
    """Packets counted by the rules of each chain of ``nft -j list table``: chain name → packets."""
    packets: dict[str, int] = {}
    for item in json.loads(text)["nftables"]:
        rule = item.get("rule")
        for expression in rule["expr"] if rule else ():
            if "counter" in expression:
                packets[rule["chain"]] = packets.get(rule["chain"], 0) + expression["counter"]["packets"]
    return packets
