"""Verbs on the lab's machines, by the tools that any RDMA host has: perftest, `rdma`, pyverbs.

The tests' second opinion on GENIE's own transport; never imports GENIE.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, TypeVar

from lab import Lab

DEVICE = "rxe0"
"""On the wire."""
SWITCH_DEVICE = "rxe1"
"""At the switch of the embedded fabric."""

GID_INDEX = 1
"""The RoCEv2 GID of the IPv4 address: an interface has its IPv6 one, made of its hardware address, before that."""

ADDRESS_OF = {DEVICE: "address", SWITCH_DEVICE: "port_address"}
"""What `lab.json` calls the address of each device of a machine."""

PAYLOAD_BYTES = 4096
"""Of one packet at the wire's MTU."""

PATIENCE_S = 60.0

T = TypeVar("T")


def of_each(names: Iterable[str], ask: Callable[[str], T]) -> dict[str, T]:
    """What machines answer by name, asked at once: a command takes an emulated machine a third of a second or more."""
    names = list(names)
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def counters(lab: Lab, name: str, device: str = DEVICE) -> dict[str, int]:
    """What a device of a machine has counted since boot, by the kernel's names (`out_of_seq_request`, …)."""
    folder = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
    lines = lab.output(name, "sh", "-c", f"cd {folder} && grep -H . *").splitlines()
    return {key: int(value) for key, value in (line.split(":", 1) for line in lines)}


def counters_of_all(lab: Lab, device: str = DEVICE) -> dict[str, dict[str, int]]:
    """The same of every machine, by name."""
    return of_each(lab.names, lambda name: counters(lab, name, device))


def counted(lab: Lab, before: dict[str, dict[str, int]], device: str = DEVICE) -> dict[str, dict[str, int]]:
    """By machine of `before`, what was counted since; counters that stood still are left out."""
    after = of_each(before, lambda name: counters(lab, name, device))
    return {
        name: {key: value - old[key] for key, value in after[name].items() if value != old[key]}
        for name, old in before.items()
    }


def resources(lab: Lab, name: str, *kinds: str) -> list[dict[str, Any]]:
    """What programs of a machine hold, as `rdma resource` tells: by default queue pairs and memory regions."""
    kinds = kinds or ("qp", "mr")
    # One command for all kinds; nothing is said where there is none of a kind.
    show = "; ".join(f"rdma -j resource show {kind} || exit; printf '\\n;\\n'" for kind in kinds)
    said = lab.output(name, "sh", "-c", show).split("\n;\n")[:-1]
    return [
        # The kernel's own, such as the general service QP, name no process.
        {"kind": kind, **entry}
        for kind, text in zip(kinds, said, strict=True)
        for entry in json.loads(text.strip() or "[]")
        if "pid" in entry
    ]


def kernel_lines(lab: Lab, name: str) -> list[str]:
    """What the kernel of a machine complains of: warnings, oopses, hung tasks."""
    text = lab.output(name, "dmesg")
    return [line for line in text.splitlines() if re.search(r"WARNING|BUG|Oops|Call Trace|blocked for more", line)]


@contextmanager
def serving(lab: Lab, name: str, argv: Sequence[str], ready: str) -> Iterator[IO[str]]:
    """A program on a machine that has said a line with `ready`; its further output. It is ended with the block."""
    process = subprocess.Popen(
        lab.ssh_argv(name, list(argv)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            raise AssertionError(f"{name}: {' '.join(argv)} ended before it was ready: {''.join(said)}")
        yield process.stdout
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def write_gbps(
    lab: Lab, size_bytes: int, count: int, *words: str, receiver: str = "vm2", device: str = DEVICE
) -> float:
    """Average of `ib_write_bw` from vm1 to a machine, which may be vm1 itself, in Gb/s.

    0 where perftest could not measure its clock: it compares the processor's with the kernel's, and on an emulated
    processor of a busy host finds no line through the points.
    """
    program = ["ib_write_bw", "-d", device, "-x", str(GID_INDEX), "-s", str(size_bytes), "-n", str(count), "-F"]
    program += ["--report_gbits", *words]
    with serving(lab, receiver, ["stdbuf", "-oL", *program], "Waiting for client"):
        text = lab.output("vm1", *program, lab.machine(receiver)[ADDRESS_OF[device]], timeout=2 * PATIENCE_S)
    row = re.search(rf"^ *{size_bytes} +\d+ +[\d.]+ +([\d.]+)", text, re.MULTILINE)
    assert row is not None, text
    return float(row[1])


def shown(gbps: float) -> str:
    """A rate of `write_gbps` as text."""
    return f"{gbps * 1000:.1f} Mb/s" if gbps else "(perftest found no clock)"
