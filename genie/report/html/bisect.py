"""The report of a bisect: who it is and why, what was believed after each probe, the network, each measurement.

Made from the search's folder, ended or not: its journal is read again by `genie.bisect.replay`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import genie
from genie.bisect.belief import Answer
from genie.bisect.conclude import touches
from genie.bisect.hunt import ProbeRecord
from genie.bisect.record import BisectRecord, Culprit
from genie.bisect.replay import Believed, SearchSoFar, TriedSets, read_search
from genie.bisect.scene import Scene
from genie.bisect.suspects import port_token
from genie.errors import GenieError
from genie.report.html import belief, evidence, netmap
from genie.report.html.belief import chance
from genie.report.html.figure import Table
from genie.report.html.material import read_material
from genie.report.html.page import Block, Card, Page, Section
from genie.results.rundir import RunDir
from genie.units import format_ns

WAYS_MOST = 4
"""Of a flow whose way is not known so many are listed."""


def bisect_page(folder: Path, start: Path | None = None) -> Page:
    """What is known of a search. Links to its probes are relative to ``start``, where the page is going to be; None:
    in the folder. Raises GenieError for damaged files, and where nothing can be said yet.
    """
    found = read_search(folder)
    record = found.record
    sections = [
        Section("answer", "What it says", tuple(_answer(found))),
        Section("belief-section", "States" if found.tried else "Belief", tuple(_belief(found))),
        Section("probes", "Runs" if found.tried else "Probes", tuple(_probes(found, start or folder))),
        Section("environment", "Environment", tuple(_environment(found))),
    ]
    version = found.scene.version if found.scene else genie.__version__
    return Page(
        title=record.name,
        kind="bisect report",
        verdict=record.word,
        why=_why(record),
        facts=tuple(_facts(found)),
        reproduce=record.reproduce,
        cards=tuple(_cards(found)),
        sections=tuple(section for section in sections if section.blocks),
        notes=tuple(_notes(found)),
        written=f"Written by GENIE {version} from the folder {folder.name}; docs/bisect.md says how a search decides.",
        also=(("inconclusive", _status(found), found.stopped or "What is below is what was known until then."),)
        if found.status != "finished"
        else (),
    )


def _status(found: SearchSoFar) -> str:
    return "STILL GOING ON" if found.status == "running" else "NOT ENDED"


def _why(record: BisectRecord) -> str:
    if record.word == "found":
        who = " and ".join(f"{culprit.name} ({culprit.says})" for culprit in record.culprits)
        often = f"; intermittent, about {record.duty:.0%} of the time" if record.duty < 1 else ""
        return f"{who}; confidence {record.confidence:.1%}{often}"
    if record.word == "none":
        what = "change" if record.mode == "changes" else "component"
        return f"no {what} is guilty of anything that the probes could see; confidence {record.confidence:.1%}"
    return record.why


def _facts(found: SearchSoFar) -> Iterator[tuple[str, str]]:
    record = found.record
    yield "searched", "changes of a configuration" if record.mode == "changes" else "components of a network"
    yield "topology", record.topology
    yield "fabric", record.fabric
    yield "seed", str(record.seed)
    if found.scene is not None:
        yield "begun", f"{datetime.fromtimestamp(found.scene.created_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if record.hidden:
        yield "put there for this search, which was not told", "; ".join(record.hidden)


def _cards(found: SearchSoFar) -> Iterator[Card]:
    record = found.record
    asked = record.settings.get("confidence")
    what = "run" if record.mode == "changes" else "probe"
    if record.word != "inconclusive":
        wanted = (f"asked for {asked:.0%}",) if isinstance(asked, float) and record.mode != "changes" else ()
        yield Card("confidence", chance(record.confidence), wanted, record.word if record.word == "found" else "ok")
    elif found.believed:
        last = found.believed.standings[-1]
        yield Card("likeliest answer", chance(last.confidence), (" and ".join(last.leader) or belief.NOBODY,))
    more = [f"{record.duration_s:.0f} s"]
    spoilt, busy = (sum(bool(value) for value in values) for values in
                    ((p.spoilt for p in record.probes), (p.busy for p in record.probes)))  # fmt: skip
    more += [f"{spoilt} said nothing"] if spoilt else []
    more += [f"machine saturated in {busy}"] if busy else []
    yield Card(f"{what}s", str(len(record.probes)), tuple(more))
    yield Card("suspects", str(record.suspects), ("changes",) if record.mode == "changes" else ())
    if found.believed:
        first, last = found.believed.standings[0], found.believed.standings[-1]
        before = f"{first.unknown_bits:.1f} bits before the first probe"
        yield Card("not known yet", f"{last.unknown_bits:.2f} bits", (before,))
    if found.tried and found.tried.reference_ns:
        yield Card("good state", format_ns(found.tried.reference_ns), ("median iteration",))


def _notes(found: SearchSoFar) -> Iterator[str]:
    yield from found.record.notes
    if found.believed and found.status == "finished" and found.record.word != "inconclusive":
        last, said = found.believed.standings[-1].confidence, found.record.confidence
        if abs(last - said) > 0.0005:
            yield f"read again, the journal gives {chance(last)}; the search, by another version, said {chance(said)}"
    if found.scene is None:
        yield "the journal does not say which ways flows went, so what was believed after each probe is not shown"


# -- what it says -------------------------------------------------------------------------------------------------


def _answer(found: SearchSoFar) -> Iterator[Block]:
    record = found.record
    for culprit in record.culprits:
        yield from _culprit(culprit, "runs that had it" if found.tried else "measurements that touched it")
    if record.alternatives:
        rows = tuple(
            (" and ".join(other.culprits) or belief.NOBODY, chance(other.chance)) for other in record.alternatives
        )
        heading = "Not ruled out" if record.culprits else "Most suspected"
        yield Block(heading=heading, table=Table(("who", "chance"), rows))
    if record.others:
        others = "runs that had no guilty change" if found.tried else "measurements that touched no culprit"
        yield Block(sentences=(f"{record.clear} of {record.others} {others} were well.",))
    if record.beyond_reach:
        yield Block(sentences=(f"No probe could touch {', '.join(record.beyond_reach)}.",))


def _culprit(culprit: Culprit, what: str) -> Iterator[Block]:
    said = f"{culprit.says}."
    counted = f"{culprit.bad} of {culprit.asked} {what} were bad"
    yield Block(
        heading=culprit.name, tone="found", sentences=(said, f"{counted}{', for example:' * bool(culprit.evidence)}")
    )
    if culprit.evidence:
        yield Block(table=Table(("evidence",), tuple((text,) for text in culprit.evidence), names=9))
    if culprit.confirm:
        yield Block(sentences=("To confirm it:",), code="\n".join(culprit.confirm))


def _belief(found: SearchSoFar) -> Iterator[Block]:
    scene = found.scene
    if scene is None:
        return
    if found.believed is not None:
        if not found.believed.probes:
            yield Block(sentences=("No probe was made yet, so nobody is more suspected than before.",))
            return
        shown = (
            belief.over_probes(found.believed, scene.settings.confidence),
            belief.ranking(found.believed),
            netmap.fabric(scene, found.believed),
        )
        yield from (Block(figure=each) for each in shown if each is not None)
    if found.tried is not None:
        changes = scene.settings.changes
        guilty = {change: culprit.name for culprit in found.record.culprits for change in culprit.name.split(" + ")}
        rows = tuple((str(n + 1), change, _change(change, found, guilty)) for n, change in enumerate(changes))
        yield Block(table=Table(("number", "change", "what is known"), rows, names=9))
        states = belief.states(found.tried, changes, scene.settings.worse_ratio)
        if states is not None:
            yield Block(figure=states)


def _change(change: str, found: SearchSoFar, guilty: dict[str, str]) -> str:
    if change in guilty:
        return "guilty" if guilty[change] == change else f"guilty, only together: {guilty[change]}"
    if found.status != "finished":
        return "not known yet"
    return "cleared"


# -- probes -------------------------------------------------------------------------------------------------------


def _probes(found: SearchSoFar, start: Path) -> Iterator[Block]:
    record = found.record
    if found.tried is not None:
        yield Block(table=_runs(found.tried, found, start))
        return
    standings = found.believed.standings if found.believed else ()
    rows = []
    for place, probe in enumerate(record.probes):
        after = standings[place + 1] if place + 1 < len(standings) else None
        notes = [f"says nothing: {probe.spoilt}"] if probe.spoilt else []
        notes += ["machine saturated, so what was slow counts less"] if probe.busy else []
        rows.append(
            (
                probe.run, probe.kind, str(probe.asked), ", ".join(map(_arrow, probe.bad)) or "all well",
                "" if after is None else f"{' and '.join(after.leader) or belief.NOBODY}, {chance(after.confidence)}",
                f"{probe.took_s:.1f} s", "; ".join(notes),
            )
        )  # fmt: skip
    if rows:
        head = ("probe", "kind", "measured", "bad", "likeliest then", "took", "note")
        links = tuple(_link(found.folder / probe.run, start) for probe in record.probes)
        yield Block(table=Table(head, tuple(rows), names=9, links=links))
    if found.believed and found.scene:
        for probe_record in found.believed.probes:
            yield _measurements(probe_record, found.believed, found.record, found.scene)


def _measurements(probe: ProbeRecord, believed: Believed, record: BisectRecord, scene: Scene) -> Block:
    """Every answer of one probe: what, bad or well, what was measured, the way that its packets went."""
    guilty = {suspect.name: suspect.tokens for suspect in believed.suspects}
    culprits = [(culprit.name, guilty[culprit.name]) for culprit in record.culprits if culprit.name in guilty]
    rows = tuple(
        (
            _arrow(answer.question.name), "BAD" if answer.bad else "well", answer.evidence, way_of(answer, scene),
            ", ".join(name for name, tokens in culprits if touches(answer, tokens)),
        )
        for answer in sorted(probe.answers, key=lambda answer: not answer.bad)
    )  # fmt: skip
    bad = sum(answer.bad for answer in probe.answers)
    head = ("measured", "answer", "what was measured", "way", "culprit on it")
    return Block(
        table=Table(head, rows, names=9), folded=f"{probe.run}: each of {len(rows)} measurements, {bad} of them bad"
    )


def _arrow(name: str) -> str:
    return name.replace(">", " → ")


def way_of(answer: Answer, scene: Scene) -> str:
    """The nodes that a flow passes, each way it may have gone; "" for what is no flow."""
    source, arrow, _ = answer.question.name.partition(">")
    if not arrow:
        return ""
    sends = {port_token(port): (nodes[place], nodes[1 - place]) for cable in scene.cables
             for nodes in (cable.nodes,) for place, port in enumerate(cable.ports)}  # fmt: skip
    said = []
    for way in answer.question.ways[:WAYS_MOST]:
        steps = dict(sends[token] for token in way.tokens if token in sends)
        trail = [source]
        while trail[-1] in steps and len(trail) <= len(steps):
            trail.append(steps[trail[-1]])
        said.append(" → ".join(trail))
    more = len(answer.question.ways) - len(said)
    return " or ".join(said) + (f" or {more} more" if more > 0 else "")


def _runs(tried: TriedSets, found: SearchSoFar, start: Path) -> Table:
    changes = found.scene.settings.changes if found.scene else ()
    every = [*tried.good, *(run for own in tried.sets for run in own.runs)]
    order = {probe.run: place for place, probe in enumerate(found.record.probes)}
    rows, links = [], []
    for run in sorted(every, key=lambda run: order.get(run.run, len(order))):
        known = run.median_ns is not None and tried.reference_ns
        rows.append(
            (
                run.run, belief.numbers_of(changes, run.changes) if run.changes else "none: the good state",
                "" if run.median_ns is None else format_ns(run.median_ns),
                f"{run.median_ns / tried.reference_ns:.2f}x" if known and run.median_ns and tried.reference_ns else "",
                "BAD" if run.bad else "well", f"{run.took_s:.1f} s", run.said,
            )
        )  # fmt: skip
        links.append(_link(found.folder / run.run, start))
    head = ("run", "changes", "median iteration", "of the good state", "answer", "took", "note")
    return Table(head, tuple(rows), names=9, links=tuple(links))


def _link(run: Path, start: Path) -> str:
    """Where the page of a run is, else its folder, from ``start``; "" where there is neither."""
    target = run / "report.html" if (run / "report.html").is_file() else run
    return quote(os.path.relpath(target.absolute(), start.absolute())) if target.exists() else ""


# -- environment --------------------------------------------------------------------------------------------------


def _environment(found: SearchSoFar) -> Iterator[Block]:
    settings = tuple((f"bisect.{name}", _setting(value)) for name, value in found.record.settings.items())
    yield Block(table=Table(("setting", "value"), settings, names=9), folded=f"{len(settings)} settings of the search")
    for probe in found.record.probes:
        if probe.spoilt:
            continue
        try:
            material = read_material(RunDir.open(found.folder / probe.run))
        except GenieError:
            continue  # moved away, or damaged: another has the same
        yield Block(sentences=(f"As {probe.run} recorded it:",))
        yield from evidence.environment(material)
        return


def _setting(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)
