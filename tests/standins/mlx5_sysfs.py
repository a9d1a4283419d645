"""A fake /sys for a ConnectX host, bound over the real one in a mount namespace, and a tee that the kernel answers.

Files on a disk accept any write; so roles write sysfs by ``tee`` (found on the PATH), and this one refuses what the
driver's store functions refuse. Sources: NVIDIA MLNX_OFED documentation 5.8, 23.10 and 24.10, "Explicit Congestion
Notification" (the paths, which differ between versions and within a page); Linux ``drivers/infiniband/hw/mlx5/cong.c``
(debugfs ``cc_params`` of the kernel's own driver, which has no switch per priority; a value that is no number is
EINVAL) and ``fs/kernfs/file.c`` (root may not open a read-only attribute for writing either: EACCES).

Not in a source (the driver's ECN code is in the OFED tarball only): that ``enable/N`` takes 0 or 1 and nothing else,
and the bounds of the DSCP (63) and the priority (7).
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from mlx5_link import show_link
from pci import show, slot
from standin import Failed, State, Tool

RP = {
    "rpg_ai_rate": 5, "rpg_hai_rate": 50, "rpg_min_rate": 1, "rpg_time_reset": 300, "rpg_byte_reset": 32767,
    "rpg_threshold": 1, "rpg_gd": 11, "dce_tcp_g": 1019, "dce_tcp_rtt": 1, "initial_alpha_value": 1023,
    "rate_reduce_monitor_period": 4, "rate_to_set_on_first_cnp": 0, "clamp_tgt_rate": 0,
}  # fmt: skip
NP = {"cnp_dscp": 48, "cnp_802p_prio": 6, "min_time_between_cnps": 4}
MOST = {"cnp_dscp": 63, "np_cnp_dscp": 63, "cnp_802p_prio": 7, "np_cnp_prio": 7, "enable": 1, "clamp_tgt_rate": 1}
LAYOUTS = ("ofed", "ofed-old", "upstream", "none")


def build(root: Path, state: State, layout: str = "ofed") -> Path:
    """Make the tree below ``root``/sys and name it in ``state``. ``layout``: whose driver's paths (`LAYOUTS`)."""
    tree = root / "sys"
    state["sysfs"] = str(tree)
    for name, own in state["devices"].items():
        net = tree / "class/net" / name
        net.mkdir(parents=True)
        show_link(state, name)
        upstream = state.get("pci", {}).get(own["pci"], slot())["upstream"]
        card = tree / "devices/pci0000:16" / upstream / own["pci"]
        (card / "infiniband" / own["rdma"]).mkdir(parents=True)
        (net / "device").symlink_to(f"../../../devices/pci0000:16/{upstream}/{own['pci']}")
        (net / "speed").chmod(0o444)
        (net / "carrier").chmod(0o444)
        queue = net / "queues/tx-0"
        queue.mkdir(parents=True)
        (queue / "tx_maxrate").write_text("0\n", encoding="ascii")
        counters = tree / "class/infiniband" / own["rdma"] / "ports/1/hw_counters"
        counters.mkdir(parents=True)
        for key, value in own["hw_counters"].items():
            (counters / key).write_text(f"{value}\n", encoding="ascii")
            (counters / key).chmod(0o444)
        _build_ecn(tree, name, own["pci"], layout)
    for card, own in state.get("pci", {}).items():
        folder = tree / "bus/pci/devices"
        folder.mkdir(parents=True, exist_ok=True)
        for address, below in ((own["upstream"], own["upstream"]), (card, f"{own['upstream']}/{card}")):
            (folder / address).symlink_to(f"../../../devices/pci0000:16/{below}")
        show(state, card)
    return tree


def _build_ecn(tree: Path, name: str, pci: str, layout: str) -> None:
    net = tree / "class/net" / name
    if layout == "upstream":
        folder = tree / "kernel/debug/mlx5" / pci / "cc_params"
        folder.mkdir(parents=True)
        values = {"np_cnp_dscp": 48, "np_cnp_prio": 6, "np_min_time_between_cnps": 4}
        values |= {"rp_" + key.removeprefix("rpg_"): value for key, value in RP.items()}
        for key, value in values.items():
            (folder / key).write_text(f"{value}\n", encoding="ascii")
        return
    if layout == "none":
        return
    for side, values in (("roce_rp", RP), ("roce_np", NP)):
        if layout == "ofed":
            enable = net / "ecn" / side / "enable"
            enable.mkdir(parents=True)
            for prio in range(8):
                (enable / str(prio)).write_text("1\n", encoding="ascii")
            params = net / "ecn" / side
        else:
            params = net / "ecn" / side / "params"
            params.mkdir(parents=True)
            (net / side).mkdir()
            (net / side / f"ecn_{side}_enable").write_text("1\n", encoding="ascii")
        for key, value in values.items():
            (params / key).write_text(f"{value}\n", encoding="ascii")


def tee(state: State, argv: list[str]) -> str:
    """``tee FILE``: standard input into FILE and on; a file of /sys as its driver takes it."""
    text = sys.stdin.read()
    path = Path(argv[-1])
    try:
        write(path, text)
    except OSError as error:
        raise Failed(f"tee: {path}: {error.args[0]}\n", 1, text) from None
    return text


def write(path: Path, text: str) -> None:
    """Raises OSError with the kernel's words."""
    if path.is_relative_to("/sys"):
        if not path.exists():
            raise OSError("No such file or directory")
        if not stat.S_IMODE(path.stat().st_mode) & 0o222:
            raise OSError("Permission denied")
        name = "enable" if path.parent.name == "enable" or path.name.endswith("_enable") else path.name
        if not text.strip().isdigit() or int(text) > MOST.get(name, 2**32 - 1):
            raise OSError("Invalid argument")
        text = text.strip() + "\n"
    path.write_text(text, encoding="utf-8")


TOOLS: dict[str, Tool] = {"tee": tee}
