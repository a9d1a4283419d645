"""A SONiC switch: sonic-db-cli, config, show and pfcwd over its databases, with orchestration as far as it matters.

CONFIG_DB is the state's ``config``, of ``TABLE|KEY`` → fields. What swss would make of it (APPL_DB's port table,
ASIC_DB's queue) is derived whenever it is asked for, so a test can read a change back by another path than it was made.
Nothing checks what sonic-db-cli writes, as nothing does on a switch. ``config save`` is kept in ``saved``: no test may
find it true.

Sources: sonic-net/sonic-swss @e6b0c5b5d ``orchagent/pfc_detect_*.lua``, ``pfc_restore.lua``, ``pfcactionhandler.cpp``
(the watchdog, DEBUG_STORM, "stormed"), ``qosorch.cpp`` (a port's scheduler); sonic-net/sonic-utilities @691b1bbc4
``config/main.py``, ``scripts/portconfig``, ``pfc/main.py``, ``pfcwd/main.py`` (messages, checks, exit codes: several
refusals exit 0), ``tests/`` for tables; sonic-swss-common
``sonic-db-cli/sonic-db-cli.cpp`` and its reply formatter (HGETALL prints a Python dictionary, KEYS a line a key,
numbers as numbers, nil as an empty line).
"""

from __future__ import annotations

import fnmatch
from typing import Any

from standin import Failed, State, Tool

ROOT_NEEDED = "Root privileges are required for this operation\n"


def switch(**changed: Any) -> State:
    """Three ports, two of them with neighbours; queue 3 of each marks by a profile, one of them the operator's own."""
    ports = ("Ethernet0", "Ethernet4", "Ethernet8")
    config: dict[str, dict[str, str]] = {
        "DEVICE_METADATA|localhost": {"hostname": "leaf0", "default_pfcwd_status": "enable", "type": "ToRRouter"},
        "WRED_PROFILE|AZURE_LOSSLESS": wred("1000000", "2000000", "5"),
        "WRED_PROFILE|CUSTOM_400G": wred("250000", "1500000", "10"),
        "PFC_WD|GLOBAL": {"POLL_INTERVAL": "200"},
        "PORT_QOS_MAP|global": {"dscp_to_tc_map": "AZURE"},
    }
    for index, name in enumerate(ports):
        config[f"PORT|{name}"] = {
            "admin_status": "up", "alias": f"etp{index + 1}", "speed": "400000", "mtu": "9100", "fec": "rs",
            "lanes": ",".join(str(index * 4 + lane) for lane in range(4)),
        }  # fmt: skip
        profile = "CUSTOM_400G" if name == "Ethernet0" else "AZURE_LOSSLESS"
        config[f"QUEUE|{name}|3"] = {"scheduler": "scheduler.1", "wred_profile": profile}
        config[f"QUEUE|{name}|4"] = {"scheduler": "scheduler.1", "wred_profile": profile}
        config[f"PORT_QOS_MAP|{name}"] = {"pfc_enable": "3,4", "pfcwd_sw_enable": "3,4", "tc_to_queue_map": "AZURE"}
        config[f"PFC_WD|{name}"] = {"action": "drop", "detection_time": "200", "restoration_time": "200"}
        config[f"BUFFER_PG|{name}|3-4"] = {"profile": "pg_lossless_400000_5m_profile"}
        if name != "Ethernet8":
            config[f"DEVICE_NEIGHBOR|{name}"] = {"name": f"server{index}", "port": "eth0"}
    config["BUFFER_PROFILE|pg_lossless_400000_5m_profile"] = {
        "dynamic_th": "0", "pool": "ingress_lossless_pool", "size": "18432", "xoff": "165888", "xon": "18432",
    }  # fmt: skip
    return {
        "platform": "sonic",
        "config": config,
        "supported_speeds": "400000,200000,100000",
        "supported_fecs": "rs,none",
        "peer_down": [],
        "counters": {},
        "checkpoints": {},
        "is_root": True,
        "saved": False,
        "orch_lag": 0,
        "queue_counters": {},
        "watchdog_polls": 2,
        **changed,
    }


def wred(minimum: str, maximum: str, probability: str) -> dict[str, str]:
    """A WRED profile that marks green packets."""
    return {
        "ecn": "ecn_all", "wred_green_enable": "true", "green_min_threshold": minimum,
        "green_max_threshold": maximum, "green_drop_probability": probability,
    }  # fmt: skip


def ports_of(state: State) -> list[str]:
    """The switch's ports, in order."""
    return sorted(
        (key.partition("|")[2] for key in state["config"] if key.startswith("PORT|")), key=lambda n: int(n[8:])
    )


def _database(state: State, name: str) -> dict[str, dict[str, str]]:
    if name == "CONFIG_DB":
        return state["config"]
    config = state["config"]
    if name == "APPL_DB":
        found = {}
        for port in ports_of(state):
            own = config[f"PORT|{port}"]
            is_up = own.get("admin_status") == "up" and port not in state["peer_down"]
            found[f"PORT_TABLE:{port}"] = {**own, "oper_status": "up" if is_up else "down"}
        return found
    if name == "STATE_DB":
        speeds, fecs = state["supported_speeds"], state["supported_fecs"]
        return {f"PORT_TABLE|{port}": {"supported_speeds": speeds, "supported_fecs": fecs} for port in ports_of(state)}
    if name == "COUNTERS_DB":
        names = {f"{port}:{queue}": _oid(port, queue) for port in ports_of(state) for queue in range(8)}
        return {"COUNTERS_QUEUE_NAME_MAP": names, **_watched(state)}
    if name == "ASIC_DB":
        config = _orchestrated(state)
        profiles = sorted(key.partition("|")[2] for key in config if key.startswith("WRED_PROFILE|"))
        queues = {}
        for port in ports_of(state):
            for queue in range(8):
                bound = config.get(f"QUEUE|{port}|{queue}", {}).get("wred_profile", "")
                oid = f"oid:0x1300000000{profiles.index(bound):04x}" if bound in profiles else "oid:0x0"
                queues[f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{_oid(port, queue)}"] = {
                    "SAI_QUEUE_ATTR_WRED_PROFILE_ID": oid
                }
        return queues
    raise Failed(f"Invalid database name input : '{name}'\n")


def _orchestrated(state: State) -> dict[str, dict[str, str]]:
    """CONFIG_DB as the ASIC was told of it: ``orch_lag`` looks behind."""
    seen = state.setdefault("asic", {key: dict(fields) for key, fields in state["config"].items()})
    if seen == state["config"]:
        state["lag"] = 0
    elif state.setdefault("lag", 0) < state["orch_lag"]:
        state["lag"] += 1
    else:
        state["asic"] = seen = {key: dict(fields) for key, fields in state["config"].items()}
        state["lag"] = 0
    return seen


def _watched(state: State) -> dict[str, dict[str, str]]:
    """Queues that the PFC watchdog watches: each look is a poll of its detector, which believes DEBUG_STORM."""
    found = {}
    for port in ports_of(state):
        watchdog = state["config"].get(f"PFC_WD|{port}")
        for queue in state["config"].get(f"PORT_QOS_MAP|{port}", {}).get("pfc_enable", "").split(","):
            if not watchdog or not queue:
                continue
            key = f"COUNTERS:{_oid(port, int(queue))}"
            own = state["queue_counters"].setdefault(key, {"PFC_WD_STATUS": "operational"})
            wanted = "stormed" if own.get("DEBUG_STORM") == "enabled" else "operational"
            polls = state.setdefault("polls", {})
            if own["PFC_WD_STATUS"] != wanted:
                polls[key] = polls.get(key, 0) + 1
                if polls[key] > state["watchdog_polls"]:
                    own["PFC_WD_STATUS"], polls[key] = wanted, 0
                    if wanted == "stormed" and watchdog.get("action", "drop") == "drop":
                        own |= {"PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS_LAST": "1234"}
            found[key] = own
    return found


def _oid(port: str, queue: int) -> str:
    return f"oid:0x15000000{int(port[8:]):04x}{queue:02x}"


def sonic_db_cli(state: State, argv: list[str]) -> str:
    """``sonic-db-cli DB KEYS|HGETALL|HGET|HSET|HDEL|DEL|EXISTS …``; writes to CONFIG_DB and to queues' counters."""
    name, verb, *words = argv
    tables = _database(state, name)
    verb = verb.upper()
    key = words[0] if words else ""
    if verb == "KEYS":
        return "\n".join(sorted(fnmatch.filter(tables, key))) + "\n"
    if verb == "HGETALL":
        return f"{tables.get(key, {})!r}\n"
    if verb == "HGET":
        return f"{tables.get(key, {}).get(words[1], '')}\n"
    if verb == "EXISTS":
        return f"{int(key in tables)}\n"
    if verb == "HSET":
        if len(words) % 2 == 0:
            raise Failed("ERR wrong number of arguments for 'hset' command: Input/output error\n")
        fields = dict(zip(words[1::2], words[2::2], strict=True))
        new = len(set(fields) - set(tables.get(key, {})))
        tables.setdefault(key, {}).update(fields)
        return f"{new}\n"
    if verb in ("HDEL", "DEL"):
        if verb == "DEL":
            return f"{int(tables.pop(key, None) is not None)}\n"
        gone = [field for field in words[1:] if tables.get(key, {}).pop(field, None) is not None]
        if key in tables and not tables[key]:
            del tables[key]  # redis has no empty hashes
        return f"{len(gone)}\n"
    raise Failed(f"ERR unknown command '{verb}': Input/output error\n")


def config(state: State, argv: list[str]) -> str:
    """``config interface …``, ``config save|checkpoint|rollback``; click's usage errors exit 2."""
    if not state["is_root"]:
        raise Failed(out=ROOT_NEEDED, code=1)
    words = [word for word in argv if word not in ("-y", "-v")]
    if words[0] == "save":
        state["saved"] = True
        return "Running command: /usr/local/bin/sonic-cfggen -d --print-data > /etc/sonic/config_db.json\n"
    if words[0] in ("checkpoint", "rollback"):
        return _checkpoint(state, words)
    if words[0] != "interface":
        raise Failed(f'Error: No such command "{words[0]}".\n', 2)
    if words[1:3] == ["pfc", "priority"]:
        return _pfc_priority(state, *words[3:6])
    verb, port, *rest = words[1:]
    own = state["config"].get(f"PORT|{port}")
    if verb in ("shutdown", "startup"):
        if own is None:
            raise Failed("Error: Interface name is invalid. Please enter a valid interface name!!\n", 2)
        own["admin_status"] = "down" if verb == "shutdown" else "up"
        return ""
    if verb == "mtu" and not (rest[0].isdigit() and 68 <= int(rest[0]) <= 9216):
        raise Failed(f"Error: Invalid value for '<interface_mtu>': {rest[0]} is not in the range 68<=x<=9216.\n", 2)
    if own is None:
        raise Failed(f"Invalid port {port}\n")
    if verb == "speed" and rest[0] not in state["supported_speeds"].split(","):
        raise Failed(out=f"Invalid speed specified: {rest[0]}\nValid speeds:{state['supported_speeds']}\n")
    if verb == "fec" and rest[0] not in state["supported_fecs"].split(","):
        raise Failed(out=f"fec {rest[0]} is not in {state['supported_fecs'].split(',')}\n")
    if verb not in ("speed", "mtu", "fec"):
        raise Failed(f'Error: No such command "{verb}".\n', 2)
    own[verb] = rest[0]
    return ""


def _checkpoint(state: State, words: list[str]) -> str:
    name = words[1]
    if words[0] == "checkpoint":
        state["checkpoints"][name] = {key: dict(fields) for key, fields in state["config"].items()}
        return "Checkpoint created successfully.\n"
    if name not in state["checkpoints"]:
        raise Failed(
            f"Failed to rollback config\nError: Checkpoint '{name}' does not exist\n",
            2,
        )
    state["config"] = {key: dict(fields) for key, fields in state["checkpoints"][name].items()}
    return "Config rolled back successfully.\n"


def _pfc_priority(state: State, port: str, priority: str, status: str) -> str:
    if priority not in "01234567" or status not in ("on", "off"):
        raise Failed(f"Error: Invalid value: {priority} {status}\n", 2)
    own = state["config"].get(f"PORT_QOS_MAP|{port}")
    if own is None:
        return f"Cannot find interface {port}\n"
    enabled = [prio for prio in own.get("pfc_enable", "").split(",") if prio]
    if (status == "on") == (priority in enabled):
        already = "has already been enabled" if status == "on" else "is not enabled"
        return f"Priority {priority} {already} on {port}\n"
    enabled = sorted({*enabled, priority} - (set() if status == "on" else {priority}))
    own["pfc_enable"] = ",".join(enabled)
    return ""


def show(state: State, argv: list[str]) -> str:
    """``show pfc counters|priority``, ``show queue counters PORT``, ``show interfaces status``."""
    if argv[:2] == ["pfc", "counters"]:
        out = ""
        for side in ("Rx", "Tx"):
            header = "  ".join(f"{f'PFC{prio}':>6}" for prio in range(8))
            out += f"{f'Port {side}':>11}  {header}\n{'-' * 11}  " + "  ".join(["------"] * 8) + "\n"
            for port in ports_of(state):
                values = state["counters"].get(f"{port}:pfc_{side.lower()}", [0] * 8)
                out += f"{port:>11}  " + "  ".join(f"{value:>6,}" for value in values) + "\n"
            out += "\n"
        return out
    if argv[:2] == ["pfc", "priority"]:
        ports = argv[2:] or ports_of(state)
        rows = [(port, state["config"].get(f"PORT_QOS_MAP|{port}", {}).get("pfc_enable", "N/A")) for port in ports]
        return "Interface    Lossless priorities\n-----------  ---------------------\n" + "".join(
            f"{p:<11}  {e}\n" for p, e in rows
        )
    if argv[:2] == ["queue", "counters"]:
        port = argv[2]
        out = "     Port    TxQ    Counter/pkts    Counter/bytes    Drop/pkts    Drop/bytes\n"
        out += "  ".join("-" * width for width in (9, 5, 14, 15, 11, 12)) + "\n"
        for queue in range(8):
            dropped = state["counters"].get(f"{port}:{queue}:drops", 0)
            out += f"{port:>9}  {f'UC{queue}':>5}  {0:>14}  {0:>15}  {dropped:>11}  {0:>12}\n"
        return out
    raise Failed(f'Error: No such command "{" ".join(argv)}".\n', 2)


TOOLS: dict[str, Tool] = {"sonic-db-cli": sonic_db_cli, "config": config, "show": show}
