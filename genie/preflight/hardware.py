"""What RDMA ports counted while a preflight went over them: a pair may be as fast as the others and still lose packets.

`genie.preflight.measuring` puts it around the measuring where transport=verbs. It only adds notes: counters are of a
port and of everybody on it, so they accuse nobody of a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from genie.errors import GenieError
from genie.fabric.base import Fabric
from genie.rdma.counters import (
    CORRUPT,
    DROP,
    GIVEN_UP,
    LOSS,
    RETRY,
    RNR,
    TIMEOUT,
    counters_argv,
    difference,
    driver_by_names,
    explain,
    parse_counters,
)
from genie.rdma.rails import Rail

TOLD = (LOSS, RETRY, TIMEOUT, GIVEN_UP, RNR, CORRUPT, DROP)
"""Kinds that a sound network shows none of. Congestion marks are not among them: those are its normal language."""

MOST_PORTS, MOST_COUNTS = 8, 3

Port = tuple[str, Rail]
"""A host and its port."""


@contextmanager
def counted(fabric: Fabric, ports: Sequence[Port], notes: list[str]) -> Iterator[None]:
    """Add to ``notes`` what the ports count meanwhile, and that the counters of a host could not be read."""
    before, problem = _read(fabric, ports)
    try:
        yield
    finally:
        after, problem_after = _read(fabric, ports)
        notes += sentences(before, after)
        if problem or problem_after:
            notes.append(f"hardware counters are not complete: {problem or problem_after}")


def sentences(before: Mapping[Port, Mapping[str, int]], after: Mapping[Port, Mapping[str, int]]) -> list[str]:
    """A sentence for each port that counted something of the kinds of `TOLD`, the first of them only if many did."""
    found = []
    for (host, rail), then in before.items():
        counts = [
            count
            for count in explain(difference(then, after.get((host, rail), {})), driver_by_names(then))
            if count.kind in TOLD
        ]
        if counts:
            shown = "; ".join(f"{count.name} {count.value} ({count.text})" for count in counts[:MOST_COUNTS])
            found.append(f"{host} {rail} counted {shown}")
    if len(found) > MOST_PORTS:
        found = [*found[:MOST_PORTS], f"and {len(found) - MOST_PORTS} more ports counted such things"]
    return found


def _read(fabric: Fabric, ports: Sequence[Port]) -> tuple[dict[Port, dict[str, int]], str]:
    """Counters by port, and why some are missing."""

    def ask(port: Port) -> dict[str, int]:
        host, rail = port
        return parse_counters(fabric.run(host, counters_argv(rail.device, rail.port)).stdout)

    found: dict[Port, dict[str, int]] = {}
    problem = ""
    if not ports:
        return found, problem
    with ThreadPoolExecutor(min(16, len(ports))) as pool:
        for port, answer in [(port, pool.submit(ask, port)) for port in ports]:
            try:
                found[port] = answer.result()
            except GenieError as error:
                problem = problem or error.message
    return found, problem
