"""ecnconfig and pfcwd on a SONiC switch, with what makes them traps for a tool that changes one port and puts it back.

Sources: sonic-net/sonic-utilities ``scripts/ecnconfig`` @0ed3461 (still so @691b1bbc4) and ``pfcwd/main.py``
@691b1bbc4. Of ecnconfig: (1) ``-q 3 off`` takes the profile from queue 3 of every port in DEVICE_NEIGHBOR; (2) ``on``
binds AZURE_LOSSLESS, whatever was bound before; (3) the status shown is that of the first port, and a profile of any
other name shows as "off". Of pfcwd: ``stop`` without ports stops it on all; ``start`` writes the whole entry anew (with
a ``pfc_stat_history`` that it may not have had) and passes over ports without PFC with a warning and exit 0.
"""

from __future__ import annotations

from itertools import pairwise

from sonic import ports_of
from standin import Failed, State, Tool

FIELDS = {
    "-gmin": "green_min_threshold", "-gmax": "green_max_threshold", "-gdrop": "green_drop_probability",
    "-ymin": "yellow_min_threshold", "-ymax": "yellow_max_threshold", "-ydrop": "yellow_drop_probability",
    "-rmin": "red_min_threshold", "-rmax": "red_max_threshold", "-rdrop": "red_drop_probability",
}  # fmt: skip


def _refused(message: str) -> Failed:
    return Failed(f"Exception caught:  {message}\n")


def ecnconfig(state: State, argv: list[str]) -> str:
    """``-l``; ``-p PROFILE -gmin N …``; ``-q QUEUES [on|off]``."""
    said = {word: value for word, value in pairwise(argv) if word.startswith("-")}
    config = state["config"]
    if "-l" in argv:
        out = ""
        for key, fields in config.items():
            if key.startswith("WRED_PROFILE|"):
                rows = "".join(f"{field}  {value}\n" for field, value in fields.items())
                out += f"Profile: {key.partition('|')[2]}\n{rows}\n"
        return out
    if "-p" in said:
        return _set_profile(state, said)
    if "-q" not in said:
        raise Failed()
    neighbours = sorted(
        (key.partition("|")[2] for key in config if key.startswith("DEVICE_NEIGHBOR|")), key=lambda n: int(n[8:])
    )
    if not neighbours:
        raise _refused("No active ports detected in table 'DEVICE_NEIGHBOR'")
    queues = said["-q"].split(",")
    if argv[-1] not in ("on", "off"):
        bound = [config.get(f"QUEUE|{neighbours[0]}|{queue}", {}).get("wred_profile") for queue in queues]
        shown = [
            f"queue {q}: {'on' if name == 'AZURE_LOSSLESS' else 'off'}\n" for q, name in zip(queues, bound, strict=True)
        ]
        return "ECN status:\n" + "".join(shown)
    if not state["is_root"]:
        raise Failed("Root privileges required for this operation\n")
    for queue in queues:
        for port in neighbours:
            entry = config.setdefault(f"QUEUE|{port}|{queue}", {})
            if argv[-1] == "on":
                entry["wred_profile"] = "AZURE_LOSSLESS"
            else:
                entry.pop("wred_profile", None)
            if not entry:
                del config[f"QUEUE|{port}|{queue}"]
    return ""


def _set_profile(state: State, said: dict[str, str]) -> str:
    profile = state["config"].get(f"WRED_PROFILE|{said['-p']}")
    changes = {FIELDS[word]: value for word, value in said.items() if word in FIELDS}
    if not changes:
        raise _refused("Input arguments error. Specify at least one threshold parameter to set")
    if profile is None:
        raise _refused(f"Input arguments error. Invalid WRED profile {said['-p']} for namespace None")
    after = {**profile, **changes}
    bad = [v for f, v in changes.items() if not v.isdigit() or ("probability" in f and int(v) > 100)]
    for colour in ("green", "yellow", "red"):
        low, high = after.get(f"{colour}_min_threshold"), after.get(f"{colour}_max_threshold")
        if low and high and low.isdigit() and high.isdigit() and int(low) > int(high):
            bad.append(low)
    if bad:
        raise Failed(
            "Exception caught:  Input arguments error. Invalid WRED profile parameters\n", 1, f"Invalid ({bad[0]}).\n"
        )
    profile.update(changes)
    return ""


def pfcwd(state: State, argv: list[str]) -> str:
    """``show config``, ``show stats``, ``stop [PORT…]``, ``start [--action A] [--restoration-time MS] PORT… MS``."""
    config, ports = state["config"], ports_of(state)
    if argv[:2] == ["show", "config"]:
        out = f"Changed polling interval to {config.get('PFC_WD|GLOBAL', {}).get('POLL_INTERVAL', '')}ms\n"
        out += "     PORT    ACTION    DETECTION TIME    RESTORATION TIME    HISTORY\n"
        for port in argv[2:] or ports:
            own = config.get(f"PFC_WD|{port}")
            if own:
                times = f"{own.get('detection_time', 'N/A'):>16}  {own.get('restoration_time', 'infinite'):>18}"
                out += (
                    f"{port:>9}  {own.get('action', 'drop'):>8}  {times}  {own.get('pfc_stat_history', 'disable'):>9}\n"
                )
        return out
    if argv[:2] == ["show", "stats"]:
        out = "  QUEUE    STATUS    STORM DETECTED/RESTORED    TX OK/DROP    RX OK/DROP"
        out += "    TX LAST OK/DROP    RX LAST OK/DROP\n"
        for name, storms in sorted(state["counters"].items()):
            if name.endswith(":storms"):
                out += f"{name.removesuffix(':storms')}  operational  {storms}/{storms}  0/0  0/0  0/0  0/0\n"
        return out
    if not state["is_root"]:
        raise Failed("Root privileges are required for this operation\n")
    if argv[0] == "stop":
        for port in argv[1:] or ports:
            config.pop(f"PFC_WD|{port}", None)
        return ""
    if argv[0] == "start":
        return _start(state, argv[1:])
    raise Failed(f"Error: No such command '{argv[0]}'.\n", 2)


def _start(state: State, words: list[str]) -> str:
    said: dict[str, str] = {}
    names: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--action", "-a", "--restoration-time", "-r"):
            said[word.lstrip("-")[0]] = rest.pop(0)
        else:
            names.append(word)
    *ports, detection = names
    if not detection.isdigit() or not 100 <= int(detection) <= 5000:
        raise Failed(f"Error: Invalid value for 'DETECTION_TIME': {detection} is not in the range 100<=x<=5000.\n", 2)
    unknown = [port for port in ports if port != "all" and port not in ports_of(state)]
    if unknown:
        raise Failed(out="Failed to run command, invalid options:\n" + "".join(f"{port}\n" for port in unknown))
    out = ""
    if "r" not in said:
        out = f"restoration time not defined; default to 2 times detection time: {2 * int(detection)} ms\n"
    entry = {"detection_time": detection, "restoration_time": said.get("r", str(2 * int(detection)))}
    if "a" in said:
        entry["action"] = said["a"]
    for port in ports_of(state) if "all" in ports or not ports else ports:
        if "pfc_enable" not in state["config"].get(f"PORT_QOS_MAP|{port}", {}):
            out += f"SKIPPED: PFC is not enabled on port: {port}\n"
            continue
        history = state["config"].get(f"PFC_WD|{port}", {}).get("pfc_stat_history", "disable")
        state["config"][f"PFC_WD|{port}"] = {**entry, "pfc_stat_history": history}
    return out


TOOLS: dict[str, Tool] = {"ecnconfig": ecnconfig, "pfcwd": pfcwd}
