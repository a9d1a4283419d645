"""Fabrics: where a topology becomes a network that carries traffic.

`open_fabric` gives a `genie.fabric.base.Fabric` that is not built yet. Backends are imported only when opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import ConfigError, closest
from genie.fabric.config import FABRICS, FabricConfig, InventoryConfig, LoopbackConfig, NetnsConfig

if TYPE_CHECKING:
    from genie.fabric.base import Fabric
    from genie.topology.model import Topology

__all__ = ["FABRICS", "FabricConfig", "InventoryConfig", "LoopbackConfig", "NetnsConfig", "open_fabric"]


def open_fabric(config: FabricConfig, topology: Topology, run_dir: Path, *, programs: Sequence[str] = ()) -> Fabric:
    """The fabric that ``config`` names, not built yet; its own log goes to ``run_dir``.

    ``programs`` are those of GENIE's that this use needs on nodes beside the ones that every run does; they are
    brought to nodes that lack them.
    """
    match config:
        case NetnsConfig():
            from genie.fabric.netns import NetnsFabric

            return NetnsFabric(config, topology, run_dir)
        case LoopbackConfig():
            from genie.fabric.loopback import LoopbackFabric

            return LoopbackFabric(config, topology, run_dir)
        case InventoryConfig():
            from genie.fabric.inventory import InventoryFabric

            return InventoryFabric(config, topology, run_dir, programs)
    raise ConfigError(f"no fabric {type(config).__name__}, {closest('', FABRICS)}", key="fabric.name")
