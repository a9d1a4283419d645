"""What a search is about, as the second line of its journal: network, suspects, the ways that flows go, settings.

The ways are asked of a fabric that is gone when the search is over. With them, ``bisect.jsonl`` alone says what was
believed after each probe (`genie.bisect.replay`). `genie.bisect.command` writes it once; a search that goes on must
find the same ways, or its earlier answers would be about others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import genie
from genie.bisect.belief import Way
from genie.bisect.config import BisectConfig
from genie.bisect.journal import BisectJournal
from genie.bisect.rounds import Ground
from genie.bisect.suspects import Suspect
from genie.errors import ConfigError, GenieError
from genie.results.records import from_plain, to_plain
from genie.topology import Topology

EVENT = "scene"


@dataclass(frozen=True, slots=True)
class Cable:
    """A link of the network: its ends are nodes, and the ports by which they leave (``leaf0/spine1``)."""

    name: str
    nodes: tuple[str, str]
    ports: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Scene:
    """``mode`` is "components" or "changes". ``words`` are those of the command line that are not the search's own.

    ``roles``: node → "host", "leaf" … ``suspects`` and ``ground`` are of a search over components. ``hidden`` are
    faults that were put on the fabric for it; ``notes`` what the plan said. ``created_ns`` is the time of day.
    """

    mode: str
    reproduce: str
    words: tuple[str, ...]
    seed: int
    topology: str
    fabric: str
    settings: BisectConfig
    notes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    cables: tuple[Cable, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    ground: Ground | None = None
    created_ns: int = field(default_factory=time.time_ns)
    version: str = genie.__version__


def network(topology: Topology) -> tuple[dict[str, str], tuple[Cable, ...]]:
    """``roles`` and ``cables`` of a topology."""
    cables = (Cable(k.name, (k.a.node, k.b.node), (k.a.name, k.b.name)) for k in topology.links)
    return {node.name: node.role for node in topology.nodes}, tuple(cables)


def keep(journal: BisectJournal, scene: Scene) -> None:
    """Write it where the journal has none yet. Raises ConfigError where it has one in which flows go other ways."""
    value = _plain(scene)
    for entry in journal.of(EVENT):
        if any(entry.get(key) != value[key] for key in ("suspects", "ground")):
            raise ConfigError(
                f"flows go other ways, or past other suspects, than when {journal.path} was begun: what its probes "
                "measured cannot be believed of these",
                hint="begin a new search",
            )
        return
    journal.append(EVENT, **value)


def scene_of(entries: Sequence[Mapping[str, Any]], where: str) -> Scene | None:
    """The scene among the lines of a journal; None in one from before there were scenes. Raises GenieError."""
    entry = next((entry for entry in entries if entry.get("event") == EVENT), None)
    if entry is None:
        return None
    try:
        suspects = tuple(
            Suspect(s["name"], s["kind"], s["component"], frozenset(s["tokens"]), s["says"], float(s["prior"]))
            for s in entry["suspects"]
        )
        ground = _ground(entry["ground"]) if entry["ground"] else None
        plain = {key: value for key, value in entry.items() if key not in ("event", "suspects", "ground")}
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise GenieError(f"{where}: its scene is damaged: {type(error).__name__}: {error}") from error
    read = from_plain(Scene, {**plain, "suspects": [], "ground": None}, where)
    scene = replace(read, suspects=suspects, ground=ground)
    if wrong := _wrong_with(scene):
        raise GenieError(f"{where}: its scene is damaged: {wrong}")
    return scene


def _wrong_with(scene: Scene) -> str:
    """What no search would have written, though each value is of its type; "" where there is nothing."""
    for suspect in scene.suspects:
        if not 0 < suspect.prior <= 0.5:
            return f"expected a prior between 0 and 0.5, found {suspect.prior} of {suspect.name}"
    nodes = [node for cable in scene.cables for node in cable.nodes]
    hosts = scene.ground.hosts if scene.ground else ()
    if unknown := [node for node in (*nodes, *hosts) if node not in scene.roles]:
        return f"{unknown[0]} has no role"
    for (a, b), ways in scene.ground.flows.items() if scene.ground else ():
        if not (0 <= a < len(hosts) and 0 <= b < len(hosts)):
            return f"a flow from host {a} to host {b} of {len(hosts)}"
        chances = [way.probability for way in ways]
        if not all(0 < chance <= 1 for chance in chances) or not math.isclose(sum(chances), 1, abs_tol=1e-6):
            return f"expected chances of ways that add up to 1, found {chances[:4]} from {hosts[a]} to {hosts[b]}"
    return ""


def _plain(scene: Scene) -> dict[str, Any]:
    value: dict[str, Any] = {
        name: to_plain(getattr(scene, name)) for name in Scene.__slots__ if name not in ("suspects", "ground")
    }
    value["suspects"] = [{**to_plain(s), "tokens": sorted(s.tokens)} for s in scene.suspects]
    value["ground"] = None if scene.ground is None else _plain_ground(scene.ground)
    return value


def _plain_ground(ground: Ground) -> dict[str, Any]:
    """Tokens by number: there are few of them and many flows."""
    tokens = sorted({token for ways in ground.flows.values() for way in ways for token in way.tokens})
    number = {token: n for n, token in enumerate(tokens)}
    return {
        "hosts": list(ground.hosts),
        "tokens": tokens,
        "flows": [
            [a, b, ground.flow_bps[a, b], [[way.probability, sorted(number[t] for t in way.tokens)] for way in ways]]
            for (a, b), ways in sorted(ground.flows.items())
        ],
        "port_bps": dict(ground.port_bps),
    }


def _ground(value: Mapping[str, Any]) -> Ground:
    token_of = {number: str(token) for number, token in enumerate(value["tokens"])}
    flows = {}
    rates = {}
    for a, b, bps, ways in value["flows"]:
        flows[int(a), int(b)] = tuple(Way(float(p), frozenset(token_of[n] for n in own)) for p, own in ways)
        rates[int(a), int(b)] = int(bps)
    ports = {str(token): int(bps) for token, bps in value["port_bps"].items()}
    return Ground(tuple(str(host) for host in value["hosts"]), flows, rates, ports)
