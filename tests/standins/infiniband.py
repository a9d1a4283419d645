"""ibportstate and perfquery on an InfiniBand subnet of LIDs.

Sources: linux-rdma/rdma-core @691953d8d ``infiniband-diags/ibportstate.c`` (operations, order, ranges, what it prints),
``man/ibportstate.8`` (speed and width take effect with the next renegotiation; HCA ports change without the subnet
manager's knowledge), ``libibmad/dump.c`` and ``fields.c`` (names, values, dots), ``perfquery.c``. Before OFED's 2016
versions ibportstate refused to disable or reset anything but switch ports (``switch_ports_only``). Setting a speed or
width that is not supported is refused by the port's management agent. A disabled local port leaves no way in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standin import Failed, State, Tool

SPEEDS = {1: "14.0625 Gbps", 2: "25.78125 Gbps", 4: "53.125 Gbps", 8: "106.25 Gbps"}
WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
STATES = {1: "Down", 2: "Initialize", 3: "Armed", 4: "Active"}
PHYSICAL = {2: "Polling", 3: "Disabled", 5: "LinkUp"}


def port(**changed: Any) -> dict[str, Any]:
    """A port of HDR (4 lanes of 53.125) whose link is active at its best."""
    return {
        "state": 4, "physical": 5, "width_supported": 3, "width_enabled": 3, "width_active": 2,
        "espeed_supported": 7, "espeed_enabled": 7, "espeed_active": 4, "peer": "", "link_downed": 0, "xmit_wait": 0,
        **changed,
    }  # fmt: skip


def subnet() -> State:
    """LID 5 is a switch whose port 1 leads to the HCA of LID 2."""
    return {
        "platform": "infiniband",
        "switch_ports_only": False,
        "local_lid": 2,
        "subnet_manager": True,
        "nodes": {
            "5": {"type": "switch", "ports": {"1": port(peer="2/1"), "2": port(peer="")}},
            "2": {"type": "ca", "ports": {"1": port(peer="5/1")}},
        },
    }


def build(root: Path) -> Path:
    """A /sys in which the interface ib0 is port 1 of mlx5_0."""
    card = root / "sys/devices/pci0000:16/0000:17:00.0"
    (card / "infiniband/mlx5_0").mkdir(parents=True)
    net = root / "sys/class/net/ib0"
    net.mkdir(parents=True)
    (net / "device").symlink_to("../../../devices/pci0000:16/0000:17:00.0")
    (net / "dev_port").write_text("0\n", encoding="ascii")
    return root / "sys"


def _best(mask: int) -> int:
    return 1 << (mask.bit_length() - 1) if mask else 0


def negotiate(state: State, own: dict[str, Any]) -> None:
    """The link as both ends enable it now; Active only with a subnet manager, else Initialize."""
    lid, _, number = own["peer"].partition("/")
    peer = state["nodes"].get(lid, {}).get("ports", {}).get(number)
    ends = [own, peer] if peer else [own]
    up = peer is not None and all(end["physical"] != 3 for end in ends)
    widths = own["width_enabled"] & (peer or own)["width_enabled"]
    speeds = own["espeed_enabled"] & (peer or own)["espeed_enabled"]
    for end in ends:
        if end["physical"] == 5:
            end["link_downed"] += 1
        if up and widths and speeds:
            end |= {"physical": 5, "state": 4 if state["subnet_manager"] else 2}
            end |= {"width_active": _best(widths), "espeed_active": _best(speeds)}
        elif end["physical"] != 3:
            end |= {"physical": 2, "state": 1}
        else:
            end["state"] = 1


def ibportstate(state: State, argv: list[str]) -> str:
    """``ibportstate [-C CA] [-P N] LID PORT [OP [VALUE]]…``."""
    words = _without_options(argv)
    if len(words) < 2:
        raise Failed("Usage: ibportstate [options] <dest dr_path|lid|guid> <portnum> [<op>]\n", 255)
    lid, number, *operations = words
    if "-D" in argv:  # a directed route: "0" is the local port, which answers whatever its link does
        lid = str(state["local_lid"]) if lid == "0" else lid
    node = state["nodes"].get(str(int(lid, 0)) if lid[:1].isdigit() else lid)
    local = state["nodes"][str(state["local_lid"])]["ports"]["1"]
    own = (node or {"ports": {}})["ports"].get(number)
    is_remote = node is not None and str(int(lid, 0)) != str(state["local_lid"])
    if node is None or own is None or (is_remote and local["physical"] != 5):
        raise Failed(
            f"ibwarn: [1] mad_rpc: _do_madrpc failed; dport (Lid {lid})\n"
            "ibportstate: iberror: failed: smp query nodeinfo failed\n",
            255,
        )
    op, values = _operations(operations)
    is_switch = node["type"] == "switch"
    kind = "Switch" if is_switch else "CA/RT"
    if op in ("", "query") and not values:
        return f"{kind} PortInfo:\n{_dump(own, lid, number)}" + _peer(state, own, lid, is_switch)
    if not is_switch and state["switch_ports_only"] and op in ("enable", "disable", "reset"):
        raise Failed("ibportstate: iberror: failed: Can only operate on a switch port\n", 255)
    out = f"Initial {kind} PortInfo:\n{_dump(own, lid, number)}"
    for name, mask in (("espeed", "espeed_supported"), ("width", "width_supported")):
        if name in values and (
            values[name] & own[mask] == 0 or (values[name] & ~own[mask] and values[name] not in (31, 255))
        ):
            raise Failed("ibportstate: iberror: failed: smp set portinfo failed\n", 255, out)
    if "espeed" in values:
        own["espeed_enabled"] = own["espeed_supported"] if values["espeed"] == 31 else values["espeed"]
    if "width" in values:
        own["width_enabled"] = own["width_supported"] if values["width"] == 255 else values["width"]
    if op == "on" and own["physical"] != 3:
        return out + "Port is already in enable state\n"
    if op in ("disable", "off"):
        out += "Disable may be irreversible\n"
        if own["physical"] == 5:
            own["link_downed"] += 1
        own["physical"] = 3
        negotiate(state, own)
    elif op in ("enable", "reset", "on"):
        if own["physical"] == 3:
            own["physical"] = 2
        negotiate(state, own)
    return out + f"\nAfter PortInfo set:\n{_dump(own, lid, number)}"


def _without_options(argv: list[str]) -> list[str]:
    words, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-C", "-P", "-t", "-s"):
            rest.pop(0)
        elif not word.startswith("-"):
            words.append(word)
    return words


def _operations(words: list[str]) -> tuple[str, dict[str, int]]:
    op, values, rest = "", {}, list(words)
    most = {"speed": 15, "espeed": 31, "width": 255}
    while rest:
        word = rest.pop(0)
        if word in most:
            value = int(rest.pop(0), 0)
            if value > most[word]:
                raise Failed(
                    f"ibportstate: iberror: failed: invalid {word.replace('esp', 'extended sp')} value {value}\n",
                    255,
                )
            values[word] = value
        elif word in ("query", "enable", "disable", "reset", "on", "off", "down", "arm", "active"):
            if op:
                raise Failed(
                    f"ibportstate: iberror: failed: {word} only one of: query, enable, … can be specified\n", 255
                )
            op = word
        else:
            raise Failed(f"ibportstate: iberror: failed: invalid operation: {word}\n", 255)
    return op, values


def _line(name: str, value: str) -> str:
    return f"{name}:{'.' * (32 - len(name))}{value}\n"


def _mask(names: dict[int, str], mask: int) -> str:
    return " or ".join(name for bit, name in names.items() if mask & bit) or "0"


def _dump(own: dict[str, Any], lid: str, number: str) -> str:
    return f"# Port info: Lid {lid} port {number}\n" + "".join(
        (
            _line("LinkState", STATES[own["state"]]),
            _line("PhysLinkState", PHYSICAL[own["physical"]]),
            _line("Lid", lid),
            _line("SMLid", "1"),
            _line("LMC", "0"),
            _line("LinkWidthSupported", _mask(WIDTHS, own["width_supported"])),
            _line("LinkWidthEnabled", _mask(WIDTHS, own["width_enabled"])),
            _line("LinkWidthActive", WIDTHS[own["width_active"]]),
            _line("LinkSpeedSupported", "2.5 Gbps or 5.0 Gbps or 10.0 Gbps"),
            _line("LinkSpeedEnabled", "2.5 Gbps or 5.0 Gbps or 10.0 Gbps"),
            _line("LinkSpeedActive", "10.0 Gbps"),
            _line("LinkSpeedExtSupported", _mask(SPEEDS, own["espeed_supported"])),
            _line("LinkSpeedExtEnabled", _mask(SPEEDS, own["espeed_enabled"])),
            _line("LinkSpeedExtActive", SPEEDS[own["espeed_active"]]),
        )
    )


def _peer(state: State, own: dict[str, Any], lid: str, is_switch: bool) -> str:
    if not is_switch or own["state"] != 4:
        return ""
    peer_lid, _, number = own["peer"].partition("/")
    return f"Peer PortInfo:\n{_dump(state['nodes'][peer_lid]['ports'][number], peer_lid, number)}"


def perfquery(state: State, argv: list[str]) -> str:
    """``perfquery -x LID PORT``: the counters that matter here."""
    lid, number = _without_options(argv)[:2]
    try:
        own = state["nodes"][lid]["ports"][number]
    except KeyError:
        raise Failed("perfquery: iberror: failed: classportinfo query failed\n", 255) from None
    return f"# Port extended counters: Lid {lid} port {number} (CapMask: 0x5300 CapMask2: 0x0000002)\n" + "".join(
        (
            _line("PortSelect", number), _line("CounterSelect", "0x0000"), _line("PortXmitWait", str(own["xmit_wait"])),
            _line("LinkDownedCounter", str(own["link_downed"])),
        )
    )  # fmt: skip


TOOLS: dict[str, Tool] = {"ibportstate": ibportstate, "perfquery": perfquery}
