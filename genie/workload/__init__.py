"""What is replayed: operator graphs, from trace files or from generators.

`load` is the one way in for the rest of GENIE; `genie.workload.check.check` comes next. Importing this package costs
next to nothing: readers and generators are imported when they are used, and `genie.workload.config` alone by the
command line's help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from genie.errors import ConfigError, closest
from genie.workload.config import CONTROL_DEPS, ChakraConfig, WorkloadConfig, from_mapping
from genie.workload.trace import Trace

MOST_RANKS = 2048
"""Of a generated or replicated job: the programs of a ring grow with the square of its ranks, 2048 take 2 GB."""
MOST_LAYER_PASSES = 250_000
"""Ranks × layers × micro-batches: some three minutes of planning on one core."""


def read(config: WorkloadConfig | Mapping[str, Any]) -> Trace:
    """The job that ``config`` describes: one iteration, with durations as the files have them (None where none).

    ``config`` is one of the dataclasses of `genie.workload.config`, or a mapping with ``name`` and its keys.
    ``Trace.parameters`` holds the whole config, ``iterations`` too.

    Raises:
        ConfigError: a key, value or choice of the config.
        TraceError: a file that cannot be read.
    """
    if isinstance(config, Mapping):
        config = from_mapping(config)
    if config.iterations < 1:
        raise ConfigError(f"expected at least 1, found {config.iterations}", key="workload.iterations")
    if config.control_deps not in CONTROL_DEPS:
        hint = closest(config.control_deps, CONTROL_DEPS)
        raise ConfigError(f"no such choice {config.control_deps!r}", key="workload.control_deps", hint=hint)
    _refuse_too_large(config)
    if isinstance(config, ChakraConfig):
        from genie.workload.chakra.read import read_chakra

        trace = read_chakra(config)
    else:
        from genie.workload.generators import GENERATORS

        trace = GENERATORS[config.name](config)
    trace.parameters = asdict(config)
    return trace


def _refuse_too_large(config: WorkloadConfig) -> None:
    """Before anything of the size is made: a typo in a number shall not fill the memory of the machine."""
    key = "replicate_ranks" if isinstance(config, ChakraConfig) else "ranks"
    ranks = int(getattr(config, key))
    if ranks > MOST_RANKS:
        raise ConfigError(f"expected at most {MOST_RANKS} ranks, found {ranks}", key=f"workload.{key}")
    layers, batches = int(getattr(config, "layers", 1)), int(getattr(config, "micro_batches", 1))
    if ranks * layers * batches > MOST_LAYER_PASSES:
        raise ConfigError(
            f"{ranks} ranks × {layers} layers × {batches} micro-batches are more than {MOST_LAYER_PASSES}",
            key="workload.layers",
            hint="raise workload.iterations to run for longer, workload.hidden for larger messages",
        )


def load(config: WorkloadConfig | Mapping[str, Any]) -> Trace:
    """As `read`, with a duration on every compute and memory operator: recorded, else the roofline of ``device``.

    Durations already include ``compute_scale``: nobody else may apply it.

    Raises:
        ConfigError: a key, value or choice of the config.
        TraceError: a file that cannot be read, or an operator whose time is unknown.
    """
    from genie.workload.roofline import fill_durations, scale_durations

    if isinstance(config, Mapping):
        config = from_mapping(config)
    trace = read(config)
    fill_durations(trace, config.device)
    scale_durations(trace, config.compute_scale)
    return trace


def identity(config: WorkloadConfig) -> dict[str, Any]:
    """What makes two workloads the same: all keys, and of trace files what is in them instead of where they are.

    Raises TraceError for files that cannot be read.
    """
    values = asdict(config)
    if isinstance(config, ChakraConfig):
        from genie.workload.chakra.read import content_digest

        values |= {"path": content_digest(config), "comm_groups": ""}
    return values


def describe(config: WorkloadConfig | Mapping[str, Any], *, detail: bool = False) -> str:
    """Text about a workload: one line that it can be replayed or, with ``detail``, tables of what it holds.

    Raises:
        ConfigError: a key, value or choice of the config.
        TraceError: it cannot be read or, without ``detail``, cannot be replayed; the message says why.
    """
    from genie.workload import summary

    if isinstance(config, Mapping):
        config = from_mapping(config)
    return summary.details(config) if detail else summary.verdict(config)
