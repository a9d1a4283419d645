"""The story of ``protocol=aba``: baseline, fault, baseline, on one fabric that is built once.

`genie.experiment.run` hands a plan over here. Each arm is a run like any other, with a run directory of its own in a
common folder, the same placement, ports and paths; only arm b has the faults. What the arms say together is
`genie.results.aba`; nothing here measures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from genie import experiment
from genie.errors import EXIT_INVALID, EXIT_OK, EXIT_VERDICT_FAILED, GenieError
from genie.plan import Plan
from genie.report.aba import print_aba
from genie.report.progress import Narrator
from genie.report.terminal import shown_path
from genie.results.aba import ARMS, AbaDir, AbaResult


def run(plan: Plan, *, reproduce: str, parent: str) -> experiment.RunResult:
    """Run the three arms, then print and log what they say together.

    Raises the GenieError that ended an arm, after what the arms before it say has been kept and shown.
    """
    config = plan.config
    folder = AbaDir.create(
        Path(config.out),
        config.label,
        argv=sys.argv,
        reproduce=reproduce,
        seed=config.seed,
        faults=tuple(config.fault),
        path=Path(config.run_dir) if config.run_dir else None,
    )
    say = Narrator(plan.iterations, len(plan.programs))
    try:
        with say, experiment.Session(plan, folder.path, say) as session:
            _race_arms(plan, folder, session, say, reproduce)
    except GenieError as error:
        if folder.arms():
            folder.finish("aborted", error.message, config.judge)
            _tell(plan, folder, parent)
        else:
            folder.mark_aborted(error.message)
        raise
    except BaseException as error:
        folder.mark_aborted("interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or repr(error))
        print(f"what was measured until then: genie report {shown_path(folder.path)}", file=sys.stderr)
        raise
    result = folder.finish("finished", thresholds=config.judge)
    _tell(plan, folder, parent)
    runs = tuple(folder.arms().values())
    return experiment.RunResult(folder.path, None, _exit_code(result, config.expect), config, runs)


def _race_arms(plan: Plan, folder: AbaDir, session: experiment.Session, say: Narrator, reproduce: str) -> None:
    """One arm after the other, each compared with the first as soon as it is over."""
    baseline = "none"
    for arm, own in arm_plans(plan, folder.path):
        say.note(f"arm {arm}: {ARMS[arm]}")
        run = experiment.run_on(session, own, say, reproduce=reproduce, parent=folder.path.name, baseline=baseline)
        if arm == "a1" and run.manifest.verdict == "measured":
            baseline = str(run.path)


def arm_plans(plan: Plan, folder: Path) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of each arm: the plan itself, without its faults for the baselines, in a folder of its own."""
    for arm in ARMS:
        faulty = arm == "b"
        config = replace(
            plan.config,
            protocol="single",
            name=f"{arm}-{plan.config.label}",
            run_dir=str(folder / arm),
            fault=plan.config.fault if faulty else {},
            expect=None,
        )
        yield arm, replace(plan, config=config, faults=plan.faults if faulty else ())


def _tell(plan: Plan, folder: AbaDir, parent: str) -> None:
    """Print it and log it; in a sweep, the sweep logs the arms."""
    from genie import track

    if plan.config.report.html:
        from genie.report.html import write_or_say

        if problem := write_or_say(folder):
            print(problem, file=sys.stderr)
    print_aba(Console(highlight=False), folder)
    if parent or not plan.config.tracking.mlflow.enabled:
        return
    logged = track.log_aba(folder, plan.config.tracking.mlflow, out=Path(plan.config.out))
    print(f"MLflow: not logged: {logged.problem}" if logged.problem else f"MLflow: {logged.look}")


def _exit_code(result: AbaResult, expect: str | None) -> int:
    if result.verdict == "invalid":
        return EXIT_INVALID
    return EXIT_VERDICT_FAILED if expect is not None and result.verdict != expect else EXIT_OK
