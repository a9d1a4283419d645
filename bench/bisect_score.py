"""The score table of `genie bisect`: faults drawn by a seed that the search cannot see, found or not.

    python bench/bisect_score.py [--seeds 20] [--first 0] [--kinds uplink_50,none] [--out FOLDER]

Every case builds 16 hosts on 4 leaves and 4 spines as namespaces of this machine, puts the fault on it by the usual
machinery, hands the fabric (and nothing else) to the search, and compares the answer with what was put there. A line of
JSON a case goes to FOLDER/cases.jsonl, so that a table can be made in several goes; cases that are there are not run
again. Run it as root, or where `genie doctor` says that namespaces can be had.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from genie import experiment
from genie.argv import parse
from genie.bisect.config import BisectConfig
from genie.bisect.hunt import Hunted, hunt, search_of
from genie.bisect.journal import BisectJournal
from genie.bisect.paths import ground_of
from genie.bisect.plant import planted
from genie.bisect.probes import Expected
from genie.bisect.suspects import suspects_of
from genie.compose import compose
from genie.plan import Plan, make_plan
from genie.report.progress import Narrator
from genie.schema import ExperimentConfig, parse_config
from genie.topology import Topology

FABRIC = ("topology.hosts=16", "topology.leaves=4", "topology.spines=4", "topology.host_rate=50Mbps")
RUN = ("workload=pairs", "workload.ranks=16", "workload.pings=0", "warmup=0", "tracking.mlflow.enabled=false")
SECRET = 1_000_003
"""The seed of a case's fault is its number times this: nothing that the search is given holds it."""

WINDOW = ("window.at=0s", "window.period=1s", "window.duty=0.2")
KINDS: dict[str, tuple[str, ...]] = {
    "uplink_50": ("+fault=uplink_degraded", "fault.uplink_degraded.parameters.rate=50%"),
    "uplink_25": ("+fault=uplink_degraded", "fault.uplink_degraded.parameters.rate=25%"),
    "nic_tx": ("+fault=nic_tx_throttle",),
    "loss_0.5": ("+fault=packet_loss", "fault.packet_loss.count=1", "fault.packet_loss.parameters.ratio=0.5%"),
    "cpu": ("+fault=cpu_throttle",),
    "two": ("+fault=[uplink_degraded,nic_tx_throttle]", "fault.uplink_degraded.parameters.rate=50%"),
    "two_cpu": ("+fault=[uplink_degraded,cpu_throttle]", "fault.uplink_degraded.parameters.rate=50%"),
    "none": (),
    "grey_90": ("+fault=uplink_degraded", "fault.uplink_degraded.parameters.rate=90%"),
    "duty_20": ("+fault=uplink_degraded", *(f"fault.uplink_degraded.{word}" for word in WINDOW)),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One search and whether it was right."""

    kind: str
    seed: int
    planted: tuple[str, ...]
    word: str
    found: tuple[str, ...]
    said: tuple[str, ...]
    confidence: float
    duty: float
    probes: int
    busy_probes: int
    took_s: float
    score: str
    error: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the table of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path, default=Path("runs/bisect-score"))
    parser.add_argument("--table", action="store_true", help="only print what is there")
    asked = parser.parse_args(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "cases.jsonl"
    cases = [Case(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    cases = [case for case in cases if case.word != "error"]  # these are tried again
    there = {(case.kind, case.seed) for case in cases}
    configs = {kind: config_of(KINDS[kind], asked.out) for kind in asked.kinds.split(",")}
    for seed in range(asked.first, asked.first + asked.seeds):
        for kind in asked.kinds.split(","):
            if asked.table or (kind, seed) in there:
                continue
            case = run_case(kind, seed, configs[kind], asked.out)
            cases.append(case)
            with path.open("a") as file:
                file.write(json.dumps(asdict(case)) + "\n")
            print(
                f"{kind} {seed}: {case.score}, {case.probes} probes, {case.took_s:.0f} s", file=sys.stderr, flush=True
            )
    print(table(cases))
    return 0


def run_case(kind: str, seed: int, config: ExperimentConfig, out: Path) -> Case:
    """One search. What goes wrong with it is a case as well."""
    config = replace(config, seed=seed, fabric=replace(config.fabric, seed=seed))
    folder = out / f"{kind}-{seed}"
    if folder.exists():  # of a case that was cut short
        folder = out / f"{kind}-{seed}-{time.time_ns()}"
    folder.mkdir(parents=True)
    plan = make_plan(replace(config, seed=(seed + 1) * SECRET))
    components = tuple(sorted({_component(plan.topology, target) for fault in plan.faults for target in fault.targets}))
    began_s = time.monotonic()
    try:
        found = _search(plan, replace(config, fault={}), seed, folder)
    except Exception as error:  # the table says that it happened
        traceback.print_exc()
        took_s = time.monotonic() - began_s
        return Case(kind, seed, components, "error", (), (), 0.0, 1.0, 0, 0, took_s, "inconclusive", str(error))
    conclusion = found.conclusion
    names = tuple(sorted(suspect.name for suspect in conclusion.culprits))
    said = tuple(suspect.says for suspect in conclusion.culprits)
    score = "inconclusive" if conclusion.word == "inconclusive" else "right" if names == components else "wrong"
    return Case(
        kind, seed, components, conclusion.word, names, said, conclusion.confidence, conclusion.duty, len(found.probes),
        sum(probe.busy for probe in found.probes), time.monotonic() - began_s, score,
    )  # fmt: skip


def config_of(words: Sequence[str], out: Path) -> ExperimentConfig:
    """The configuration of a kind's cases."""
    line = parse([*FABRIC, *RUN, f"out={out}", *words])
    (composed,) = compose(line)
    return parse_config(composed.mapping, composed.choices)


def _search(plan: Plan, config: ExperimentConfig, seed: int, folder: Path) -> Hunted:
    settings = BisectConfig()
    say = Narrator(1, 16, stream=(folder / "said").open("w"))
    fabric_plan = replace(plan, config=replace(config, fault=plan.config.fault))
    with experiment.Session(fabric_plan, folder, say) as session, planted(plan, session.fabric, folder):
        hosts = [node.name for node in plan.topology.hosts]
        ground = ground_of(plan.topology, session.fabric, hosts, seed=seed, shaped=True)
        search = search_of(suspects_of(plan.topology), ground, settings, seed=seed)
        mtu = int(str(plan.topology.parameters["mtu"]))
        with BisectJournal(folder, {"seed": seed, "at": time.time()}) as journal:
            return hunt(session, config, settings, search, Expected(mtu, {}, "rates of links"), folder, journal, say)


def _component(topology: Topology, target: str) -> str:
    """The name that a suspect must have where this target was faulted."""
    for link in topology.links:
        for port in link.ports:
            if port.name == target:
                return f"nic {port.node}" if link.tier == "host" else f"link {link.name}"
    return f"host {target}"


def table(cases: Sequence[Case]) -> str:
    """In Markdown: a row a kind."""
    components = 16 + 16 + 16 + 16 + 8
    lines = [
        f"{components} components; median probes hoped for: at most {2 * math.log2(components) + 6:.1f}",
        "",
        "| kind | cases | right | wrong | inconclusive | probes: median, most | busy probes | seconds: median |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        own = [case for case in cases if case.kind == kind]
        if not own:
            continue
        counts = [sum(case.score == score for case in own) for score in ("right", "wrong", "inconclusive")]
        probes = [case.probes for case in own]
        busy = sum(case.busy_probes for case in own) / max(1, sum(probes))
        lines.append(
            f"| {kind} | {len(own)} | {counts[0]} | {counts[1]} | {counts[2]} | {statistics.median(probes):g}, "
            f"{max(probes)} | {busy:.0%} | {statistics.median(case.took_s for case in own):.0f} |"
        )
    for case in cases:
        if case.score != "right":
            lines.append(f"\n{case.kind} {case.seed}: {', '.join(case.planted) or 'nothing'} was there; "
                         f"{case.word} {', '.join(case.found)} {case.confidence:.2f} {case.error}")  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
