"""setpci on a PCI Express link: the port above the card, its Link Control registers, and how a link retrains.

Sources: pciutils setpci(8) and ``setpci.c`` (``CAP_EXP+OFFSET.W=VALUE:MASK``, hex digits of the width, a device that
matches nothing is a warning and success); PCI Express Base Specification §7.5.3 (Link Control 0x10 with Retrain Link,
bit 5, which reads as 0; Link Status 0x12 with speed and width; Link Control 2 0x30 with the target speed) and §8
(a link trains to the fastest speed of both ends up to the target of the port that retrains). ``setpci`` exists
where its state has ``pci``; a link may also refuse to change (``stuck``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standin import Failed, State, Tool

LINK_CONTROL, LINK_STATUS, LINK_CONTROL_2, DEVICE_CONTROL = 0x10, 0x12, 0x30, 0x08
RETRAIN = 1 << 5
GENERATIONS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
EXPRESS = {"CAP_EXP", "ECAP_EXP"}


def slot(**changed: Any) -> dict[str, Any]:
    """A generation 5 card of 16 lanes in a slot of the same."""
    return {
        "upstream": "0000:16:01.0",
        "most": 5,
        "speed": 5,
        "width": 16,
        "control": 0x0040,
        "target": 0x0005,
        "device_control": 0x2936,
        "stuck": False,
        **changed,
    }


def show(state: State, card: str) -> None:
    """Write the link into the fake sysfs, at both ends."""
    own = state["pci"][card]
    for address in (card, own["upstream"]):
        folder = Path(state["sysfs"] or "/nonexistent") / "bus/pci/devices" / address
        if folder.is_dir():
            for name, generation in (("current_link_speed", own["speed"]), ("max_link_speed", own["most"])):
                (folder / name).write_text(f"{GENERATIONS[generation]} GT/s PCIe\n", encoding="ascii")
            (folder / "current_link_width").write_text(f"{own['width']}\n", encoding="ascii")


def setpci(state: State, argv: list[str]) -> str:
    """``setpci -s ADDRESS REGISTER[.W][=VALUE[:MASK]]``: shows, or changes and shows nothing."""
    if len(argv) != 3 or argv[0] != "-s":
        raise Failed("setpci: No operation specified.\n")
    address = argv[1] if argv[1].count(":") == 2 else f"0000:{argv[1]}"
    operation, _, assigned = argv[2].partition("=")
    register, _, width = operation.partition(".")
    base, _, offset = register.partition("+")
    if base not in EXPRESS or not offset:
        raise Failed("setpci: Unable to parse register name.\n")
    where, is_bridge = _find(state, address)
    if where is None:
        return ""  # "Warning: No devices selected" goes to standard error; the exit code is 0
    if width.lower() != "w":
        raise Failed("setpci: Invalid width specifier.\n")
    at = int(offset, 16)
    if not assigned:
        return f"{_read(where, at):04x}\n"
    value, _, mask = assigned.partition(":")
    bits = int(mask or "ffff", 16)
    _write(state, where, at, (_read(where, at) & ~bits) | (int(value, 16) & bits), is_bridge)
    return ""


def _find(state: State, address: str) -> tuple[dict[str, Any] | None, bool]:
    for card, own in state.get("pci", {}).items():
        if address in (card, own["upstream"]):
            return own, address == own["upstream"]
    return None, False


def _read(own: dict[str, Any], at: int) -> int:
    if at == LINK_CONTROL:
        return int(own["control"])
    if at == LINK_STATUS:
        return int(own["speed"]) | int(own["width"]) << 4 | 1 << 13
    return int(own["target"] if at == LINK_CONTROL_2 else own["device_control"])


def _write(state: State, own: dict[str, Any], at: int, value: int, is_bridge: bool) -> None:
    if at == LINK_CONTROL_2 and is_bridge:
        own["target"] = value & 0xFFFF
    elif at == DEVICE_CONTROL:
        own["device_control"] = value & 0xFFFF
    elif at == LINK_CONTROL:
        own["control"] = value & 0xFFFF & ~RETRAIN
        if value & RETRAIN and is_bridge and not own["stuck"]:
            own["speed"] = min(own["most"], own["target"] & 0xF)
            for card in state["pci"]:
                show(state, card)


TOOLS: dict[str, Tool] = {"setpci": setpci}
