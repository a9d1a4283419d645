"""A stand-in for one node: keeps the state of its ports and answers tc, nft, ip and genie-port as the real ones do.

The rounding is the real one: tbf keeps its burst as ticks of 64 ns (net/sched/sch_tbf.c, iproute2 tc_core.c), red its
weight as a power of two found from the burst (iproute2 tc_red.c). As a program it is every one of these commands:
``fault_node.py STATE_FILE tc …``.
"""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The command failed, as the real one would, with these words."""


def ticks(burst_bytes: int, rate_bytes_s: int) -> int:
    """iproute2's tc_calc_xmittime on a kernel with 64 ns ticks."""
    return int(1e6 * burst_bytes / rate_bytes_s * 15.625)


def weight(qmin: int, burst: int, avpkt: int) -> int:
    """iproute2's tc_red_eval_ewma."""
    a = burst + 1 - qmin / avpkt
    if a < 1:
        raise Refused("RED: failed to calculate EWMA constant.")
    for log in range(1, 32):
        if a <= (1 - (1 - 0.5**log) ** burst) / 0.5**log:
            return log
    raise Refused("RED: failed to calculate EWMA constant.")


def port(rate_bps: int, burst_bytes: int, limit_bytes: int, ifindex: int) -> dict[str, Any]:
    """A port as the fabric makes it, marked by the program."""
    rate = rate_bps // 8
    tbf = {"handle": "7e1e:", "rate": rate, "ticks": ticks(burst_bytes, rate), "limit": limit_bytes}
    return {"ifindex": ifindex, "tbf": tbf, "child": None, "enabled": True}


def red(minimum: int, maximum: int, limit: int, avpkt: int, rate_bps: int, probability: str) -> dict[str, Any]:
    """The child that the fabric puts under a port's shaper on a kernel with sch_red."""
    burst = -(-(2 * minimum + maximum) // (3 * avpkt))
    words = f"limit {limit} min {minimum} max {maximum} avpkt {avpkt} burst {burst} bandwidth {rate_bps}bit"
    return {
        "parent": "7e1e:1",
        "handle": "7e1f:",
        **_child(f"red {words} probability {probability} ecn nodrop".split()),
    }


def _child(words: list[str]) -> dict[str, Any]:
    kind, *rest = words
    if kind == "bfifo":
        return {"kind": "bfifo", "options": {"limit": int(rest[1])}}
    flags = {word: True for word in rest if word in ("ecn", "nodrop", "harddrop", "adaptive")}
    given = [word for word in rest if word not in flags]
    said = dict(zip(given[::2], given[1::2], strict=True))
    numbers = {key: int(said[key]) for key in ("limit", "min", "max")}
    ewma = weight(numbers["min"], int(said["burst"]), int(said["avpkt"]))
    idle = int(said["bandwidth"].removesuffix("bit")).bit_length() + int(said["avpkt"]).bit_length()
    share = float(f"{int(float(said['probability']) * 2**32) / 2**32:g}")
    return {"kind": "red", "options": {**numbers, **flags, "ewma": ewma, "probability": share, "Scell_log": idle}}


class Node:
    """State by interface, nft tables by name; `run` is one command, `shell` a line of them joined by ``&&``."""

    def __init__(self, ports: dict[str, Any], tables: dict[str, Any] | None = None) -> None:
        self.ports = ports
        self.tables = tables if tables is not None else {}

    def shell(self, line: str) -> str:
        """Output of all commands; raises Refused at the first that fails."""
        return "".join(self.run(part) for part in _split(shlex.split(line)))

    def run(self, argv: list[str]) -> str:
        """Output of one command."""
        name = Path(argv[0]).name
        if name == "true":
            return ""
        return {"tc": self._tc, "nft": self._nft, "genie-port": self._marker}[name](argv[1:])

    def _tc(self, words: list[str]) -> str:
        words = [word for word in words if word not in ("-j", "-s", "-d", "-r")]
        if words[:2] == ["qdisc", "show"]:
            wanted = words[3:4] or list(self.ports)
            return json.dumps([queue for name in wanted for queue in _queues(name, self.ports[name])]) + "\n"
        if words[2] != "dev" or words[3] not in self.ports:
            raise Refused(f'Cannot find device "{words[3]}"')
        state = self.ports[words[3]]
        if words[1] == "change":
            assert words[4] == "root"
            if words[6] != state["tbf"]["handle"]:
                raise Refused("Error: Specified qdisc handle not found.")
            said = dict(zip(words[8::2], words[9::2], strict=True))
            rate = int(said["rate"].removesuffix("bit")) // 8
            if rate == 0:
                raise Refused('Illegal "rate"')
            burst = int(said["burst"].removesuffix("b"))
            limit = int(said["limit"].removesuffix("b"))
            state["tbf"] |= {"rate": rate, "ticks": ticks(burst, rate), "limit": limit}
            return ""
        assert words[1] == "replace"
        assert words[4:6] == ["parent", "7e1e:1"]
        handle = words[7] if words[6] == "handle" else "8001:"
        state["child"] = {"parent": "7e1e:1", "handle": handle, **_child(words[8 if words[6] == "handle" else 6 :])}
        return ""

    def _nft(self, words: list[str]) -> str:
        if words == ["-j", "list", "tables", "netdev"]:
            found = [{"table": {"family": "netdev", "name": name}} for name in self.tables]
            return json.dumps({"nftables": [{"metainfo": {}}, *found]}) + "\n"
        statements = [part.split() for part in re.sub(r"\{[^}]*\}", "{}", " ".join(words)).split(";")]
        for verb, what, family, table, *rest in statements:
            assert family == "netdev"
            if (verb, what) == ("add", "table"):
                self.tables.setdefault(table, {})
            elif (verb, what) == ("delete", "table"):
                del self.tables[table]
            elif what == "chain":
                self.tables[table][rest[0]] = []
            else:
                self.tables[table][rest[0]].append(" ".join(rest[1:]))
        return ""

    def _marker(self, words: list[str]) -> str:
        said = dict(zip(words[2::2], words[3::2], strict=True))
        state = next(state for state in self.ports.values() if state["ifindex"] == int(said["--ifindex"]))
        if words[1] == "set":
            state["enabled"] = said["--enabled"] == "1"
        return json.dumps({"ifindex": state["ifindex"], "enabled": state["enabled"]}) + "\n"


def _split(words: list[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def _queues(name: str, state: dict[str, Any]) -> list[dict[str, Any]]:
    tbf = state["tbf"]
    options = {
        "rate": tbf["rate"],
        "burst": int(tbf["ticks"] / 15.625 * tbf["rate"] / 1e6),
        "burst_raw": f"{tbf['ticks']:x}",
        "limit": tbf["limit"],
    }
    queues = [{"kind": "tbf", "handle": tbf["handle"], "dev": name, "root": True, "options": options}]
    return [*queues, {"dev": name, **state["child"]}] if state["child"] else queues


def main(state_file: str, argv: list[str]) -> int:
    """One command on the node of ``state_file``; ``ip netns exec NODE /bin/sh -c LINE`` runs the line's commands."""
    if argv[0] == "ip":
        import subprocess

        return subprocess.run(argv[4:], check=False).returncode
    with Path(state_file).open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = json.load(file)
        node = Node(content["ports"], content["tables"])
        try:
            sys.stdout.write(node.run(argv))
        except Refused as refused:
            sys.stderr.write(f"{refused}\n")
            return 2
        file.seek(0)
        file.truncate()
        json.dump({"ports": node.ports, "tables": node.tables}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
