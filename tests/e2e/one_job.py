"""One job with something done to it in the middle of its traffic, for the tests of failures."""

import time

import pytest

from genie import experiment
from genie.argv import parse
from genie.compose import compose
from genie.errors import RunAborted
from genie.fabric import open_fabric
from genie.schema import parse_config


class Job:
    """One job brought up to the start, with something done to it as soon as every rank has received bytes."""

    def __init__(self, arguments, tmp_path):
        (composed,) = compose(parse([*arguments, f"out={tmp_path}", "tracking.mlflow.enabled=false"]))
        self.plan = experiment.plan(parse_config(composed.mapping, composed.choices))
        self.directory = experiment._create(self.plan, "", "")
        self.fabric = open_fabric(self.plan.config.fabric, self.plan.topology, self.directory.path)
        self.said = []
        self.done_at = None
        self.ended_at = None

    def note(self, text):
        self.said.append(text)

    def race(self, action):
        def watch(progress):
            moving = len(progress) == len(self.plan.programs) and all(p.bytes_received for p in progress.values())
            if moving and self.done_at is None:
                action(self)
                self.done_at = time.monotonic()

        self.fabric.build()
        try:
            with experiment._agents(self.plan, self.directory, self.fabric, self) as agents:
                self.agents = agents
                agents.muster(experiment._assignments(self.plan, self.directory, self.fabric))
                race = agents.race(None, watch)
                self.ended_at = time.monotonic()
        finally:
            self.fabric.destroy()
        return race

    def error(self, race):
        with pytest.raises(RunAborted) as caught:
            experiment._raise_if_failed(self.plan, race)
        return caught.value

    def signal(self, host, name):
        self.fabric.run("", ["kill", f"-{name}", str(self.agents._processes[host].pid)])


def interface(job, host):
    (port,) = [port for port in job.plan.topology.ports if port.node == host]
    return port.name.split("/")[1]
