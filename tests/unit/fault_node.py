"""A stand-in for one node: keeps the state of its ports and answers tc, nft, genie-port and genie-warden as the real
ones do. `Node.answer` is a `genie.faults.life.Shell`.

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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The command failed, as the real one would, with these words and this exit code."""

    def __init__(self, words: str, code: int = 2) -> None:
        super().__init__(words)
        self.code = code


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
    """State by interface, nft tables by name, armed wardens by folder.

    ``refuse`` says in which words a command fails before it does anything; "" lets it through. ``ran`` is every command
    that was given, in order.
    """

    def __init__(
        self,
        ports: dict[str, Any],
        tables: dict[str, Any] | None = None,
        wardens: dict[str, Any] | None = None,
        refuse: Callable[[list[str]], str] = lambda argv: "",
    ) -> None:
        self.ports = ports
        self.tables = tables if tables is not None else {}
        self.wardens = wardens if wardens is not None else {}
        self.refuse = refuse
        self.ran: list[list[str]] = []

    def answer(self, line: str) -> tuple[int, str, str]:
        """A line of shell, as far as GENIE writes it: ``a && b``, ``a; printf … "$?";``, ``printf %s TEXT | b``."""
        words = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        words.whitespace_split = True
        words.commenters = ""
        out, err, code = "", "", 0
        piped: str | None = None
        skipping = False
        for command, operator in _commands(words):
            stdin, piped = piped or "", None
            if skipping:
                pass
            elif command[0] == "printf":
                said = command[-1] if command[1] == "%s" else f"\036{code}\036"
                code = 0
                if operator == "|":
                    piped = said
                else:
                    out += said
            else:
                try:
                    out += self.run(command, stdin)
                    code = 0
                except Refused as refused:
                    err, code = f"{err}{refused}\n", refused.code
            skipping = operator == "&&" and (skipping or code != 0)
        return code, out, err

    def run(self, argv: list[str], stdin: str = "") -> str:
        """Output of one command."""
        self.ran.append(argv)
        if words := self.refuse(argv):
            raise Refused(words)
        name = Path(argv[0]).name
        if name == "true":
            return ""
        if name == "genie-warden":
            return self._warden(argv[1:], stdin)
        return {"tc": self._tc, "nft": self._nft, "genie-port": self._marker}[name](argv[1:])

    def _warden(self, words: list[str], stdin: str) -> str:
        """A dead-man's switch without a clock: armed, opened, closed, reverted as it is told."""
        verb, folder = words[0], words[words.index("--dir") + 1]
        if verb == "arm":
            records = [line.split("\t") for line in stdin.splitlines()]
            told = {kind: [_unescaped(r[1:]) for r in records if r[0] == kind] for kind in ("do", "undo", "check")}
            if not told["undo"] or records[-1][0] != "window":
                raise Refused("genie-warden: spec: no 'undo', or cut short", 1)
            self.wardens[folder] = {**told, "state": "armed"}
            return json.dumps(dict.fromkeys(("pid", "guardian_pid", "mono_ns", "real_ns", "ttl_end_mono_ns"), 1)) + "\n"
        armed = self.wardens.get(folder)
        if armed is None:
            raise Refused(f"genie-warden: {folder}: no warden was armed here", 1)
        if verb in ("open", "close", "revert") and armed["state"] != "reverted":
            for argv in armed["do" if verb == "open" else "undo"]:
                self.run(argv)
            armed["state"] = {"open": "open", "close": "closed", "revert": "reverted"}[verb]
        reply = {"ok": True, "error": "", "state": armed["state"], "alive": armed["state"] != "reverted"}
        numbers = dict.fromkeys(("mono_ns", "real_ns", "ttl_end_mono_ns"), 1)
        return json.dumps({**reply, **numbers, "may_be_applied": False, "log_error": "", "log": []}) + "\n"

    def _tc(self, words: list[str]) -> str:
        words = [word for word in words if word not in ("-j", "-s", "-d", "-r")]
        if words[:2] == ["qdisc", "show"]:
            wanted = words[3:4] or list(self.ports)
            if not self.ports.keys() >= set(wanted):
                raise Refused(f'Cannot find device "{wanted[0]}"', 1)
            return json.dumps([queue for name in wanted for queue in _queues(name, self.ports[name])]) + "\n"
        if words[2] != "dev" or words[3] not in self.ports:
            raise Refused(f'Cannot find device "{words[3]}"')
        state = self.ports[words[3]]
        if words[1] == "change":
            assert words[4] == "root"
            if words[6] != state["tbf"]["handle"]:
                raise Refused("Error: Specified qdisc handle not found.")
            said = dict(zip(words[8::2], words[9::2], strict=True))
            speed = re.fullmatch(r"(\d+)bit", said["rate"])
            rate = int(speed[1]) // 8 if speed else 0
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
        if words == ["-j", "list", "ruleset", "netdev"]:
            parts = [part for name, chains in self.tables.items() for part in _listed(name, chains)]
            return json.dumps({"nftables": [{"metainfo": {}}, *parts]}) + "\n"
        statements = [part.split() for part in re.sub(r"\{[^}]*\}", "{}", " ".join(words)).split(";")]
        for verb, what, family, table, *rest in statements:
            assert family == "netdev"
            if (verb, what) == ("add", "table"):
                self.tables.setdefault(table, {})
            elif (verb, what) == ("delete", "table"):
                if self.tables.pop(table, None) is None:
                    raise Refused("Error: Could not process rule: No such file or directory", 1)
            elif what == "chain":
                self.tables[table][rest[0]] = []
            else:
                rule = " ".join(rest[1:])
                chance = re.match(r"numgen random mod (\d+) < (\d+)", rule)
                if chance and int(chance[2]) >= int(chance[1]):
                    raise Refused(f"Error: Value {chance[2]} exceeds valid range 0-{int(chance[1]) - 1}", 1)
                self.tables[table][rest[0]].append(rule)
        return ""

    def _marker(self, words: list[str]) -> str:
        said = dict(zip(words[2::2], words[3::2], strict=True))
        if said["--interface"] not in self.ports:
            raise Refused(f"genie-port: there is no interface {said['--interface']}", 1)
        state = self.ports[said["--interface"]]
        if words[1] == "set":
            state["enabled"] = said["--enabled"] == "1"
        return json.dumps({"ifindex": state["ifindex"], "enabled": state["enabled"]}) + "\n"


def _unescaped(fields: list[str]) -> list[str]:
    plain = {"t": "\t", "n": "\n", "\\": "\\"}
    return [re.sub(r"\\(.)", lambda match: plain[match[1]], field) for field in fields]


def _commands(words: Iterable[str]) -> Iterator[tuple[list[str], str]]:
    """Each command of a line with the operator behind it."""
    command: list[str] = []
    for word in words:
        if word not in (";", "&&", "|"):
            command.append(word)
        elif command:
            yield command, word
            command = []
    if command:
        yield command, ""


def _listed(table: str, chains: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """What ``nft -j list ruleset`` says of a table whose rules `Node` keeps as text."""
    yield {"table": {"family": "netdev", "name": table}}
    for chain, rules in chains.items():
        yield {"chain": {"family": "netdev", "table": table, "name": chain}}
        for rule in rules:
            expressions: list[dict[str, Any]] = []
            if match := re.match(r"numgen random mod (\d+) < (\d+)", rule):
                left = {"numgen": {"mode": "random", "mod": int(match[1]), "offset": 0}}
                expressions.append({"match": {"op": "<", "left": left, "right": int(match[2])}})
            if "counter" in rule:
                expressions.append({"counter": {"packets": 0, "bytes": 0}})
            if rule.endswith("drop"):
                expressions.append({"drop": None})
            yield {"rule": {"family": "netdev", "table": table, "chain": chain, "expr": expressions}}


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
        node = Node(content["ports"], content["tables"], content["wardens"])
        code = 0
        try:
            sys.stdout.write(node.run(argv, sys.stdin.read() if argv[:2] == ["genie-warden", "arm"] else ""))
        except Refused as refused:
            sys.stderr.write(f"{refused}\n")
            code = refused.code
        file.seek(0)
        file.truncate()
        json.dump({"ports": node.ports, "tables": node.tables, "wardens": node.wardens}, file)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
