"""The network of a bisect as a map: hosts below, switches above, each shaded by the chance that it is guilty.

`genie.report.html.bisect` puts it into its page. A suspect is drawn where its name says: a host as its box, what a NIC
sends as the half of the cable next to it, a switch as its box, a link as its cable or, one way, as the sender's half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genie.bisect.replay import Believed
from genie.bisect.scene import Cable, Scene
from genie.report.html.belief import LEAST_CHANCE, chance
from genie.report.html.figure import CHARACTER, Canvas, Figure, Table, figure, shortened
from genie.report.html.palette import HEAT_LEVELS

ROW = 108.0
NODES_MOST = 400
"""Of larger networks there is no map: nobody could see anything in it."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Chances by what is drawn: boxes of hosts and switches by node; halves of cables by the port that sends."""

    boxes: Mapping[str, float]
    halves: Mapping[str, float]


def suspicion(scene: Scene, believed: Believed) -> Suspicion:
    """What the last standing says of each thing that is drawn; where several suspects are one thing, the most."""
    boxes: dict[str, float] = {}
    halves: dict[str, float] = {}
    cables = {cable.name: cable for cable in scene.cables}
    sends = {port: cable for cable in scene.cables for port in cable.ports}
    for suspect, value in zip(believed.suspects, believed.standings[-1].chances, strict=True):
        for name in suspect.name.split(" or "):
            kind, _, what = name.partition(" ")
            link, _, towards = what.partition(" towards ")
            if kind in ("host", "switch"):
                boxes[what] = max(boxes.get(what, 0.0), value)
            elif kind == "nic":
                for port in (port for port in sends if port == what or _node(sends[port], port) == what):
                    halves[port] = max(halves.get(port, 0.0), value)
            elif kind == "link" and link in cables:
                cable = cables[link]
                for place, port in enumerate(cable.ports):
                    if not towards or cable.nodes[1 - place] == towards:
                        halves[port] = max(halves.get(port, 0.0), value)
    return Suspicion(boxes, halves)


def _node(cable: Cable, port: str) -> str:
    return cable.nodes[cable.ports.index(port)]


def tiers(roles: Mapping[str, str], cables: Sequence[Cable]) -> list[list[str]]:
    """Nodes by how many cables they are away from the nearest host, hosts first; what no host reaches is last."""
    left = list(roles)
    here = [name for name in left if roles[name] == "host"]
    found: list[list[str]] = []
    while here:
        found.append(here)
        done = {name for tier in found for name in tier}
        near = {b for cable in cables for a, b in (cable.nodes, cable.nodes[::-1]) if a in here} - done
        here = [name for name in left if name in near]
    done = {name for tier in found for name in tier}
    rest = [name for name in left if name not in done]
    return [*found, rest] if rest else found


def fabric(scene: Scene, believed: Believed) -> Figure | None:
    """The map. None for a network without cables, or one too large for a picture."""
    if not scene.cables or len(scene.roles) > NODES_MOST:
        return None
    rows = tiers(scene.roles, scene.cables)
    shown = suspicion(scene, believed)

    def draw(width: int) -> str:
        height = 40 + ROW * (len(rows) - 1) + 64
        canvas = Canvas(width, height + 42, "the network, each part shaded by the chance that it is guilty")
        places: dict[str, tuple[float, float]] = {}
        for number, row in enumerate(rows):
            y = 34 + ROW * (len(rows) - 1 - number)
            for place, name in enumerate(row):
                places[name] = ((place + 0.5) * (width - 16) / len(row) + 8, y)
        for cable in scene.cables:
            _cable(canvas, cable, places, shown)
        for number, row in enumerate(rows):
            _row(canvas, row, places, shown, (width - 16) / len(row), below=number == 0)
        _scale(canvas, 12, height)
        return canvas.svg()

    named = [(name, value) for name, value in zip((s.name for s in believed.suspects),
             believed.standings[-1].chances, strict=True) if value >= LEAST_CHANCE]  # fmt: skip
    table = Table(
        ("suspect", "chance"),
        tuple((name, chance(value)) for name, value in sorted(named, key=lambda row: -row[1])[:200]),
        "" if named else f"nobody has a chance of {LEAST_CHANCE:.1%} or more",
    )
    return figure(
        "map", "The network", "Hosts below, switches above. A NIC, and a link one way, is the half of its cable next "
        "to the sender.", draw, table,
    )  # fmt: skip


def _level(value: float) -> int:
    return min(HEAT_LEVELS - 1, int(value * HEAT_LEVELS))


def _cable(canvas: Canvas, cable: Cable, places: Mapping[str, tuple[float, float]], shown: Suspicion) -> None:
    (ax, ay), (bx, by) = (places[node] for node in cable.nodes)
    # what is in one row is joined by a bow, so that it does not run through its neighbours
    middle = ((ax + bx) / 2, (ay + by) / 2 - (min(60.0, 12 + abs(ax - bx) / 6) if ay == by else 0.0))
    canvas.path(f"M{ax:.1f} {ay:.1f}L{middle[0]:.1f} {middle[1]:.1f}L{bx:.1f} {by:.1f}", "grid")
    for port, (x, y) in zip(cable.ports, ((ax, ay), (bx, by)), strict=True):
        value = shown.halves.get(port, 0.0)
        if value >= LEAST_CHANCE:
            canvas.path(f"M{x:.1f} {y:.1f}L{middle[0]:.1f} {middle[1]:.1f}", f"k{_level(value)}")


def _row(
    canvas: Canvas,
    names: Sequence[str],
    places: Mapping[str, tuple[float, float]],
    shown: Suspicion,
    room: float,
    *,
    below: bool,
) -> None:
    """Boxes and names of one row; where names have no room, those of every so many and of suspects."""
    longest = max(len(name) for name in names)
    step = max(1, -(-int(CHARACTER * (longest + 1)) // int(max(room, 1))))
    wide = min(max(room - 6, 4.0), CHARACTER * longest + 14)
    for number, name in enumerate(names):
        x, y = places[name]
        value = shown.boxes.get(name, 0.0)
        if value >= LEAST_CHANCE:
            canvas.rect(x - wide / 2 - 4, y - 15, wide + 8, 30, f"h{_level(value)}")
        canvas.rect(x - wide / 2, y - 11, wide, 22, "node", name)
        if number % step == 0 and step == 1:
            canvas.text(x, y + 4, name, "", "middle")
        elif number % step == 0 or value > 1 / HEAT_LEVELS:
            canvas.text(x, y + (26 if below else -17), shortened(name, 16), "quiet", "middle")


def _scale(canvas: Canvas, left: float, top: float) -> None:
    canvas.text(left, top, "chance to be guilty", "quiet")
    for level in range(HEAT_LEVELS):
        canvas.rect(left + level * 30, top + 7, 30, 12, f"h{level}")
    for level, anchor in ((0, "start"), (HEAT_LEVELS // 2, "middle"), (HEAT_LEVELS, "end")):
        canvas.text(left + level * 30, top + 33, f"{level / HEAT_LEVELS:.0%}", "quiet", anchor)
