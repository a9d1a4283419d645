"""Reads faulted nodes back at the end of a run, not through Ansible, for `genie.faults.evidence` to judge.

`genie.faults.session` calls it before it reverts. What was in effect only in windows is what wardens read in them. Runs
reading commands of the roles and nothing else; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.faults.change import State, parse_state, reading_line, render_argv, render_reads, split_reading
from genie.faults.evidence import Observed, find_rule
from genie.faults.journal import Entry
from genie.faults.plan import Change, FaultPlan
from genie.faults.play import Place, Play
from genie.faults.wardens import Wardens


class Observer:
    """Looks at the nodes of faults that are in place."""

    def __init__(self, fabric: Fabric, play: Play, wardens: Wardens) -> None:
        self._fabric = fabric
        self._play = play
        self._wardens = wardens

    def observe(
        self,
        plan: FaultPlan,
        entries: Sequence[Entry],
        windows: Sequence[tuple[int, int]],
        before: Mapping[str, Mapping[str, int]],
        after: Mapping[str, Mapping[str, int]],
        samples: npt.NDArray[Any] | None,
    ) -> Observed:
        """All there is to know of one fault. ``entries``: the journal's. Its wardens were looked at before."""
        states: dict[str, tuple[State, ...]] = {}
        rounds: dict[str, tuple[int, ...]] = {}
        failures: dict[str, str] = {}
        for node in plan.nodes:
            changes = [change for change in plan.changes if change.node == node]
            try:
                found, numbers = self.states(plan, node, changes)
                states |= found
                rounds |= dict.fromkeys(found, numbers)
            except RunAborted as error:
                failures |= dict.fromkeys((change.target for change in changes), error.message)
        words = {node: self._play.words(plan, node) for node in plan.nodes}
        return Observed(
            before, after, samples, self._texts(plan), states, failures, tuple(windows), self._wardens.fired(plan),
            self._wardens.dead(plan), rounds, words, _found(plan, entries),
        )  # fmt: skip

    def _texts(self, plan: FaultPlan) -> dict[tuple[str, str], str]:
        """What the reading commands of rules printed, by rule and target, where they could be run."""
        texts = {}
        for name in plan.mechanism.evidence:
            for change in plan.changes:
                argv = render_argv(find_rule(name).read(plan, change), self._play.variables(plan, change))
                if argv and (done := self._fabric.run(change.node, argv)).returncode == 0:
                    texts[name, change.target] = done.stdout
        return texts

    def states(
        self, plan: FaultPlan, node: str, changes: Sequence[Change]
    ) -> tuple[dict[str, tuple[State, ...]], tuple[int, ...]]:
        """State of each target while the fault was in effect, now or as the warden read it, and in which of its windows
        each reading was made. Raises RunAborted where it was never in effect, or cannot be read.
        """
        how = plan.platform(changes[0])
        variables = [self._play.variables(plan, change) for change in changes]
        commands = [argv for own in variables for argv in render_reads(how, own)]
        place = Place(plan.name, node)
        status = self._wardens.status(place)
        is_whole = plan.config.window.kind == "whole"
        rounds: list[list[tuple[int, str]]] = []
        numbers: list[int] = []
        if not is_whole:
            if status is None or not status.openings:
                why = "; ".join(status.failures) if status else "its warden does not answer"
                raise RunAborted(f"no window of it opened on {node}{f': {why}' if why else ''}")
            rounds = [split_reading(text, len(commands)) for text in status.checks]
            numbers = list(status.checked)
        if is_whole or (status and not status.openings[-1].undo_began_ns):
            done = self._fabric.run(node, ["sh", "-c", reading_line(commands)])
            try:
                rounds.append(split_reading(done.stdout, len(commands)))
            except ValueError as error:
                raise RunAborted(f"the read-back at the end said {error}: {done.stderr.strip()}") from error
            numbers.append(status.openings[-1].index if status and status.openings else 0)
        looked = len(numbers) > len(status.checked if status else ())
        if not is_whole and looked and self._wardens.closed_since(place):
            # The window ended while we looked, so what we saw may be either; the warden's own readings stand.
            rounds, numbers = rounds[:-1], numbers[:-1]
        count = len(how.read)
        states = {
            change.target: tuple(
                parse_state(how.read, answers[index * count : (index + 1) * count], own) for answers in rounds
            )
            for index, (change, own) in enumerate(zip(changes, variables, strict=True))
        }
        return states, tuple(numbers)


def _found(plan: FaultPlan, entries: Sequence[Entry]) -> dict[str, State]:
    """The state of each target before the fault, as the journal has it."""
    places = {(entry.intent.node, entry.intent.object): entry.intent.old for entry in entries
              if entry.intent.fault == plan.name}  # fmt: skip
    return {c.target: places[c.node, c.object] for c in plan.changes if (c.node, c.object) in places}
