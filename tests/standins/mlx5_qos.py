"""mlnx_qos and dcb on a ConnectX port: what both do to the one Data Center Bridging state of the driver.

Sources: Mellanox/mlnx-tools ``python/mlnx_qos`` @8fbfd9c (options, checks, what it prints); Linux
``drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c`` (a changed PFC map toggles the link; rates in steps of 100 Mb/s
up to 25.5 Gb/s, of 1 Gb/s above; the last DSCP entry deleted turns the trust to pcp) and ``en/port_buffer.c`` (sizes
in cells, a lossless buffer below its xoff is refused); iproute2 ``dcb/*.c`` (JSON; before commit e7d4c060 of v6.18 a
rate of ``dcb maxrate`` reaches the driver 125 times too high). Nothing here survives a reset of the driver.

Not in a source: with DCBX in firmware mode the driver takes a write and returns success; that the firmware then puts
its peer's values back is what NVIDIA's documentation says of firmware-controlled DCBX, here at once.
"""

from __future__ import annotations

import json
from typing import Any

from standin import Failed, State, Tool

PRIORITIES = range(8)
CELL_BYTES = 128
USAGE = "Usage: mlnx_qos -i <interface> [options]\n"


def port(device: str = "ens1f0np0", **changed: Any) -> dict[str, Any]:
    """The DCB state of one port: PFC on priority 3, trust dscp with the driver's own map, headroom for one class."""
    return {
        "dcbx": "os",
        "pfc": [0, 0, 0, 1, 0, 0, 0, 0],
        "cable_len": 7,
        "dscp_prio": {str(dscp): dscp >> 3 for dscp in range(64)},
        "prio_buffer": [0, 0, 0, 1, 0, 0, 0, 0],
        "buffer_size": [130944, 130944, 0, 0, 0, 0, 0, 0],
        "total_size": 1027728,
        "xoff": 38016,
        "prio_tc": [1, 0, 2, 3, 4, 5, 6, 7],
        "tsa": ["vendor"] * 8,
        "tc_bw": [0] * 8,
        "maxrate_kbps": [0] * 8,
        **changed,
    }


def _device(state: State, name: str) -> dict[str, Any]:
    if name not in state["devices"]:
        raise Failed(f"mlnx_qos: {name}: No such device\n")
    return state["devices"][name]


def set_pfc(device: dict[str, Any], enabled: list[int]) -> None:
    """ieee_setpfc: nothing where nothing changes, else the link is toggled."""
    if enabled == device["dcb"]["pfc"]:
        return
    if device["dcb"]["dcbx"] == "os":
        device["dcb"]["pfc"] = enabled
    if device["carrier"]:
        device["link_down_events_phy"] += 1


def set_buffers(device: dict[str, Any], sizes: list[int], prio_buffer: list[int]) -> None:
    """dcbnl_setbuffer: raises ValueError for a size that the port cannot have."""
    dcb = device["dcb"]
    cells = [size // CELL_BYTES * CELL_BYTES for size in sizes]
    if sum(cells) > dcb["total_size"]:
        raise ValueError("Invalid argument")
    lossless = {prio_buffer[prio] for prio in PRIORITIES if dcb["pfc"][prio]}
    if any(cells[buffer] < dcb["xoff"] + device["mtu"] for buffer in lossless):
        raise ValueError("Cannot allocate memory")
    if dcb["dcbx"] == "os":
        dcb["buffer_size"], dcb["prio_buffer"] = cells, prio_buffer


def set_maxrate(device: dict[str, Any], kbps: list[int]) -> None:
    """ieee_setmaxrate: in the hardware's steps, at least one; above 255 Gb/s the newer driver refuses."""
    steps = []
    for rate in kbps:
        if rate <= 0:
            steps.append(0)
        elif rate <= 255 * 100_000:
            steps.append(max(rate // 100_000, 1) * 100_000)
        elif rate <= 255 * 1_000_000:
            steps.append(rate // 1_000_000 * 1_000_000)
        else:
            raise ValueError("Invalid argument")
    device["dcb"]["maxrate_kbps"] = steps


def mlnx_qos(state: State, argv: list[str]) -> str:
    """Errors go to standard output and exit 1, but for a failed write of PFC, which dies of a TypeError of its own."""
    said: dict[str, list[str]] = {}
    words = iter(argv)
    names = {"-i": "interface", "-f": "pfc", "-r": "ratelimit", "-d": "dcbx", "-p": "prio_tc"}
    for word in words:
        if word == "-a":
            said["all"] = [""]
            continue
        if not word.startswith("-"):
            raise Failed(out="Bad arguments\n" + USAGE)
        key, _, value = word.partition("=")
        try:
            said.setdefault(names.get(key, key.lstrip("-")), []).append(value or next(words))
        except StopIteration:
            raise Failed(f"{USAGE}\nmlnx_qos: error: {word} option requires an argument\n", 2) from None
    if "interface" not in said:
        raise Failed(out="Interface name is required\n" + USAGE)
    device = _device(state, said["interface"][-1])
    dcb = device["dcb"]
    if "dcbx" in said and said["dcbx"][-1] in ("os", "fw"):
        dcb["dcbx"] = said["dcbx"][-1]
    if "pfc" in said:
        enabled = _integers(said["pfc"][-1], "PFC", 1)
        if len(enabled) != 8:
            raise Failed(out="pfc list must have 8 items\n")
        set_pfc(device, enabled)
    if "dscp2prio" in said and "trust" in said:
        raise Failed(out="trust and dscp2prio commands cannot be used at the same time.\n")
    for entry in said.get("dscp2prio", ()):
        _map_dscp(dcb, entry)
    if "trust" in said:
        if said["trust"][-1] not in ("pcp", "dscp"):
            raise Failed(out="Invalid trust state command. Refer to the help.\n")
        if said["trust"][-1] == "pcp":
            dcb["dscp_prio"] = {}
        elif not dcb["dscp_prio"]:
            dcb["dscp_prio"] = {str(dscp): dscp >> 3 for dscp in range(64)}
    if "prio2buffer" in said or "buffer_size" in said:
        sizes = [int(size) for size in said["buffer_size"][-1].split(",")] if "buffer_size" in said else []
        mapping = _integers(said["prio2buffer"][-1], "prio buffer", 7) if "prio2buffer" in said else []
        try:
            set_buffers(device, sizes + dcb["buffer_size"][len(sizes) :], mapping + dcb["prio_buffer"][len(mapping) :])
        except ValueError:
            raise Failed(out="Buffers commands error\n") from None
    if "ratelimit" in said:
        rates = _integers(said["ratelimit"][-1], "ratelimit", 1_000_000)
        if len(rates) != 8:
            raise Failed(out="ratelimit must have 8 items\n")
        try:
            set_maxrate(device, [rate * 1_000_000 for rate in rates])
        except ValueError:
            return "Rate limit is not supported on your system!\n" + _shown(dcb, "all" in said)
    return _shown(dcb, "all" in said)


def _integers(text: str, what: str, most: int) -> list[int]:
    values = []
    for part in text.split(","):
        if not part.isdigit() or int(part) > most:
            raise Failed(out=f"Bad value for {what}: {part} is not in the range 0..{most}\n{USAGE}")
        values.append(int(part))
    if len(values) > 8:
        raise Failed(out=f"Too many items for {what}\n")
    return values


def _map_dscp(dcb: dict[str, Any], entry: str) -> None:
    action, *rest = entry.split(",")
    if action == "flush":
        dcb["dscp_prio"] = {}
        return
    if action not in ("set", "del") or len(rest) != 2 or int(rest[0]) > 63 or int(rest[1]) > 7:
        raise Failed(code=1)
    if action == "set":
        dcb["dscp_prio"][rest[0]] = int(rest[1])
    elif dcb["dscp_prio"].get(rest[0]) == int(rest[1]):
        del dcb["dscp_prio"][rest[0]]


def _shown(dcb: dict[str, Any], everything: bool) -> str:
    lines = [f"DCBX mode: {'OS' if dcb['dcbx'] == 'os' else 'Firmware'} controlled"]
    lines.append(f"Priority trust state: {'dscp' if dcb['dscp_prio'] else 'pcp'}")
    if dcb["dscp_prio"]:
        lines.append("dscp2prio mapping:")
        for prio in PRIORITIES:
            codes = sorted((int(dscp) for dscp, to in dcb["dscp_prio"].items() if to == prio), reverse=True)
            for start in range(0, len(codes), 8):
                lines.append(f"\tprio:{prio} dscp:" + "".join(f"{code:02d}," for code in codes[start : start + 8]))
    sizes = "".join(f"{size}," for size in dcb["buffer_size"])
    lines.append(f"Receive buffer size (bytes): {sizes}max_buffer_size={dcb['total_size']}")
    lines.append(f"Cable len: {dcb['cable_len']}")
    lines.append("PFC configuration:")
    lines.append("\tpriority    0   1   2   3   4   5   6   7")
    lines.append("\tenabled     " + "".join(f"{bit}   " for bit in dcb["pfc"]))
    lines.append("\tbuffer      " + "".join(f"{buffer}   " for buffer in dcb["prio_buffer"]))
    for tc in PRIORITIES if everything else sorted(set(dcb["prio_tc"])):
        rate = dcb["maxrate_kbps"][tc]
        limit = f"{rate / 1_000_000:.1f} Gbps" if rate else "unlimited"
        share = f", bw: {dcb['tc_bw'][tc]}%" if dcb["tsa"][tc] == "ets" else ""
        lines.append(f"tc: {tc} ratelimit: {limit}, tsa: {dcb['tsa'][tc]}{share}")
        lines += [f"\t priority:  {prio}" for prio in PRIORITIES if dcb["prio_tc"][prio] == tc]
    return "\n".join(lines) + "\n"


def dcb(state: State, argv: list[str]) -> str:
    """``dcb [-j] pfc|buffer|maxrate|app|dcbx show|set dev X …``; errors as iproute2 prints them, exit 1 or 2."""
    json_wanted = "-j" in argv
    words = [word for word in argv if word not in ("-j", "-s", "-p")]
    if len(words) < 4 or words[2] != "dev":
        raise Failed("dcb: bad usage\n")
    subject, verb, name = words[0], words[1], words[3]
    if name not in state["devices"]:
        raise Failed(f"Device {name} not found\n" if verb == "show" else "Attribute write: No such device\n", 1)
    device = state["devices"][name]
    own = device["dcb"]
    if verb == "show":
        shown = _dcb_shown(subject, own)
        if json_wanted:
            return json.dumps(shown, separators=(",", ":")) + "\n"
        return " ".join(f"{key.replace('_', '-')} {value}" for key, value in shown.items()) + "\n"
    changes = _mappings(words[4:])
    try:
        if subject == "pfc":
            bits = {"on": 1, "off": 0}
            set_pfc(device, _merged(own["pfc"], {k: bits[v] for k, v in changes["prio-pfc"].items()}))
        elif subject == "maxrate":
            kbps = {key: _kbps(value, state) for key, value in changes["tc-maxrate"].items()}
            set_maxrate(device, _merged(own["maxrate_kbps"], kbps))
        elif subject == "buffer":
            sizes = {key: int(value) for key, value in changes.get("buffer-size", {}).items()}
            mapping = {key: int(value) for key, value in changes.get("prio-buffer", {}).items()}
            set_buffers(device, _merged(own["buffer_size"], sizes), _merged(own["prio_buffer"], mapping))
    except ValueError as error:
        raise Failed(f"Attribute write: {error}\n") from None
    except KeyError as error:
        raise Failed(f"What is {error}?\n") from None
    return ""


def _dcb_shown(subject: str, own: dict[str, Any]) -> dict[str, Any]:
    if subject == "pfc":
        return {
            "pfc_cap": 8, "macsec_bypass": False, "delay": own["cable_len"], "prio_pfc": [bool(b) for b in own["pfc"]],
        }  # fmt: skip
    if subject == "maxrate":
        return {"tc_maxrate": [rate * 125 for rate in own["maxrate_kbps"]]}
    if subject == "buffer":
        return {
            "prio_buffer": own["prio_buffer"], "buffer_size": own["buffer_size"], "total_size": own["total_size"],
        }  # fmt: skip
    if subject == "app":
        return {
            "dscp_prio": [[int(dscp), prio] for dscp, prio in sorted(own["dscp_prio"].items(), key=lambda e: int(e[0]))]
        }
    if subject == "dcbx":
        host = {"host": own["dcbx"] == "os", "lld-managed": False, "cee": True, "ieee": True, "static": False}
        return {name: True for name, value in host.items() if value}
    raise Failed(f'Object "{subject}" is unknown, try "dcb help".\n', 1)


def _mappings(words: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    key = ""
    for word in words:
        left, colon, right = word.partition(":")
        if colon:
            found[key][left] = right
        else:
            key = word
            found[key] = {}
    return found


def _merged(old: list[int], changes: dict[str, int]) -> list[int]:
    return [changes.get(str(index), changes.get("all", value)) for index, value in enumerate(old)]


def _kbps(text: str, state: State) -> int:
    units = {"gbit": 1_000_000, "mbit": 1_000, "kbit": 1}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(number) :].lower()
    kbps = int(float(number) * units[unit]) if unit else int(float(number)) // 1000
    return kbps if state.get("iproute2_dcb_units_fixed") else kbps * 125


TOOLS: dict[str, Tool] = {"mlnx_qos": mlnx_qos, "dcb": dcb}
