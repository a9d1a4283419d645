"""What a user may say about a workload: one frozen dataclass each, and the table `WORKLOADS` of all of them.

`genie.schema` and the command line's help import this, so it uses the standard library only and costs next to
nothing to import. `from_mapping` turns plain keys into one of the dataclasses; `genie.workload.load` turns that
into a `Trace`. Nothing here reads files or makes operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from genie.errors import ConfigError, closest

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
CONTROL_DEPS = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class CommonConfig:
    """What every workload has: how often it is repeated, and where compute times come from.

    ``device`` names the accelerator of the roofline, ``compute_scale`` multiplies every compute time,
    ``control_deps`` is auto, on or off (docs/workloads.md).
    """

    name: str = ""
    iterations: int = 8
    device: str = ""
    compute_scale: float = 1.0
    control_deps: str = "auto"


@dataclass(frozen=True, slots=True)
class TrainingConfig(CommonConfig):
    """A training step of a transformer: the model's shape, and how its work becomes time.

    ``efficiency`` is the part of the peak FLOP/s that is reached; ``scale_down`` divides the device's speed: 4000 lets
    hosts with 100 Mb/s stand for hosts with 400 Gb/s.
    """

    device: str = "h100"
    ranks: int = 8
    layers: int = 4
    hidden: int = 256
    ffn: int = 1024
    sequence: int = 256
    micro_batch: int = 1
    micro_batches: int = 1
    dtype: str = "bf16"
    efficiency: float = 0.4
    scale_down: float = 4000.0


@dataclass(frozen=True, slots=True)
class MoeConfig(TrainingConfig):
    """Mixture of experts, expert-parallel over all ranks, dense layers data-parallel.

    ``imbalance`` is the sigma of the lognormal popularity of experts (0 = all alike); ``capacity_factor`` drops what
    exceeds that multiple of an even share at an expert (0 = nothing is dropped).
    """

    name: str = "moe"
    ffn: int = 512
    experts: int = 16
    top_k: int = 2
    sequence: int = 192
    micro_batches: int = 2
    imbalance: float = 0.35
    capacity_factor: float = 0.0
    bucket: int | str = "512KiB"
    seed: int = 1

    description: ClassVar[str] = (
        "mixture of experts: uneven all-to-all dispatch and combine, overlapped gradient all-reduce"
    )


@dataclass(frozen=True, slots=True)
class DpConfig(TrainingConfig):
    """Data parallel (DDP): gradients all-reduced in buckets while the backward pass goes on."""

    name: str = "dp"
    bucket: int | str = "1MiB"

    description: ClassVar[str] = "data parallel: gradient buckets all-reduced during the backward pass (DDP)"


@dataclass(frozen=True, slots=True)
class FsdpConfig(TrainingConfig):
    """Fully sharded data parallel: parameters gathered layer by layer, gradients reduce-scattered.

    ``prefetch`` is how many layers ahead of the computation parameters are gathered (0 = none).
    """

    name: str = "fsdp"
    layers: int = 3
    ffn: int = 896
    prefetch: int = 1

    description: ClassVar[str] = "fully sharded data parallel: all-gather of parameters, reduce-scatter of gradients"


@dataclass(frozen=True, slots=True)
class TpPpConfig(TrainingConfig):
    """Tensor, pipeline and data parallel (Megatron): 1F1B schedule; data-parallel size = ranks / (tp · pp)."""

    name: str = "tp_pp"
    tp: int = 2
    pp: int = 2
    sequence: int = 384
    micro_batches: int = 4
    bucket: int | str = "1MiB"

    description: ClassVar[str] = (
        "tensor, pipeline and data parallel: 1F1B send/receive, all-reduces in sub-communicators"
    )


@dataclass(frozen=True, slots=True)
class CollectiveConfig(CommonConfig):
    """One kind of collective at many sizes without compute, as nccl-tests does it, with its size convention.

    ``sizes`` replaces the range ``min_bytes`` … ``max_bytes`` in steps of ``factor``; each size is done ``repeats``
    times an iteration. ``kind`` is a `CollectiveKind` or ``send_recv`` (each rank to its right-hand neighbour).
    """

    name: str = "collective"
    ranks: int = 8
    kind: str = "all_reduce"
    sizes: tuple[int | str, ...] = ()
    min_bytes: int | str = "4KiB"
    max_bytes: int | str = "4MiB"
    factor: int = 4
    repeats: int = 1
    root: int = 0

    description: ClassVar[str] = "one collective at many sizes, no compute: the nccl-tests of this fabric"


@dataclass(frozen=True, slots=True)
class PairsConfig(CommonConfig):
    """Every pair of ranks by itself: ``pings`` small messages back and forth, then ``bytes`` each way.

    ``latency_rounds`` and ``bandwidth_rounds`` say which pairs meet at a time (`genie.workload.generators.pairs`);
    without them it is a round-robin tournament.
    """

    name: str = "pairs"
    ranks: int = 8
    bytes: int | str = "1.25MB"
    pings: int = 20
    ping_bytes: int | str = 64
    latency_rounds: tuple[int | str, ...] = ()
    bandwidth_rounds: tuple[int | str, ...] = ()

    description: ClassVar[str] = "each pair of ranks by itself in a tournament: latency, then bandwidth each way"


@dataclass(frozen=True, slots=True)
class ChakraConfig(CommonConfig):
    """Replay of Chakra execution traces.

    ``path`` is a directory, a prefix (``PREFIX.<rank>.et``) or a file; ``comm_groups`` a communicator JSON file
    (empty = the one beside the trace, if there is one); ``replicate_ranks`` gives one rank's file to N ranks.
    ``streams`` "merged" runs a rank's compute one operator at a time, "recorded" one for each stream in the trace.
    """

    name: str = "chakra"
    path: str = ""
    comm_groups: str = ""
    replicate_ranks: int = 0
    streams: str = "merged"

    description: ClassVar[str] = "replay of Chakra execution traces: workload.path=DIRECTORY, PREFIX or FILE"


WorkloadConfig = MoeConfig | DpConfig | FsdpConfig | TpPpConfig | CollectiveConfig | PairsConfig | ChakraConfig

WORKLOADS: dict[str, tuple[type[WorkloadConfig], str]] = {
    "moe": (MoeConfig, MoeConfig.description),
    "dp": (DpConfig, DpConfig.description),
    "fsdp": (FsdpConfig, FsdpConfig.description),
    "tp_pp": (TpPpConfig, TpPpConfig.description),
    "collective": (CollectiveConfig, CollectiveConfig.description),
    "pairs": (PairsConfig, PairsConfig.description),
    "chakra": (ChakraConfig, ChakraConfig.description),
}


def from_mapping(values: Mapping[str, Any], *, key: str = "workload") -> WorkloadConfig:
    """The config dataclass that ``values["name"]`` names, with the other keys as its fields.

    Raises:
        ConfigError: unknown name, unknown key or a value of the wrong type; the nearest name is in the message.
    """
    name = values.get("name", "moe")
    if not isinstance(name, str) or name not in WORKLOADS:
        raise ConfigError(f"no workload {name!r}", key=f"{key}.name", hint=closest(str(name), WORKLOADS))
    kind = WORKLOADS[name][0]
    types = {field.name: str(field.type) for field in fields(kind)}
    chosen: dict[str, Any] = {}
    for field_name, value in values.items():
        if field_name not in types:
            hint = closest(str(field_name), types)
            raise ConfigError(f"workload {name!r} has no such key", key=f"{key}.{field_name}", hint=hint)
        if field_name == "control_deps" and isinstance(value, bool):
            value = "on" if value else "off"  # YAML reads a bare on or off as a truth value
        chosen[field_name] = _typed(value, types[field_name], f"{key}.{field_name}")
    return kind(**chosen)


def _typed(value: Any, annotation: str, key: str) -> Any:
    if annotation.startswith("tuple"):
        items = [value] if isinstance(value, str | int) else value
        if isinstance(value, bool) or not isinstance(items, list | tuple):
            raise ConfigError(f"expected a list of sizes, found {value!r}", key=key)
        return tuple(_typed(item, "int | str", key) for item in items)
    wanted: tuple[type, ...]
    wanted = {"int": (int,), "float": (int, float), "str": (str,), "int | str": (int, str)}[annotation]
    if isinstance(value, bool) or not isinstance(value, wanted):
        what = {"int": "an integer", "float": "a number", "str": "text", "int | str": "a size such as '512KiB'"}
        raise ConfigError(f"expected {what[annotation]}, found {value!r}", key=key)
    return float(value) if annotation == "float" else value
