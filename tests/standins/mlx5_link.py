"""ethtool, mlxlink, ip, devlink and rdma on a ConnectX host: the link, its peer, the rings, the counters.

A link trains to the fastest speed that both ends allow, and flaps whenever what an end allows changes; a peer that has
only auto-negotiation leaves a forced end without a link. ``training_looks``: how often one sees no link yet after that.

Sources: ethtool(8) and ethtool 6.1 ``netlink/settings.c`` (what it prints; without ``advertise``, ``autoneg on``
advertises all that is supported; "Unknown!" while there is no link); Linux ``mlx5/core/en_ethtool.c`` (a speed the
port lacks is refused, channels restart for ``-G``) and
``Documentation/networking/.../mlx5/counters.rst``; mstflint ``mlxlink/modules/mlxlink_commander.cpp`` @b9d9e844 (JSON
layout; DN is verified after 2 s and fails where KEEP_ETH_LINK_UP holds the port); iproute2 ``ip/iplink.c``,
``devlink/devlink.c``, ``rdma/stat.c``. The wait of mlxlink is left out.

Not in a source: which non-zero exit code each failure of ethtool has, and the longest MTU of every card.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from mlx5_qos import port
from standin import Failed, State, Tool

MODES = {
    25_000: ("25000baseCR/Full", 31), 50_000: ("50000baseCR/Full", 54), 100_000: ("100000baseCR2/Full", 59),
    200_000: ("200000baseCR4/Full", 66), 400_000: ("400000baseCR8/Full", 73),
}  # fmt: skip
"""Speed in Mb/s → (name, bit) of the link mode of this port, of include/uapi/linux/ethtool.h."""
MLX_SPEEDS = {"25G": 25_000, "50G_1X": 50_000, "100G_2X": 100_000, "200G_4X": 200_000, "400G_8X": 400_000}


def device(name: str = "ens1f0np0", **changed: Any) -> dict[str, Any]:
    """A port of a 200 Gb/s ConnectX whose link is up at its best, with a peer that allows every speed."""
    return {
        "pci": "0000:17:00.0",
        "rdma": "mlx5_0",
        "dcb": port(name),
        "mtu": 9000,
        "admin_up": True,
        "port_up": True,
        "keep_link_up": False,
        "supported": [25_000, 50_000, 100_000, 200_000],
        "advertised": [25_000, 50_000, 100_000, 200_000],
        "autoneg": True,
        "forced": 0,
        "peer_speeds": [25_000, 50_000, 100_000, 200_000],
        "peer_needs_autoneg": False,
        "speed": 200_000,
        "carrier": True,
        "link_down_events_phy": 0,
        "training_looks": 0,
        "still_training": 0,
        "rx_ring": 1024,
        "tx_ring": 1024,
        "ring_most": 8192,
        "pause": {"autoneg": False, "rx": False, "tx": False},
        "hw_counters": {"np_ecn_marked_roce_packets": 10, "np_cnp_sent": 10, "rp_cnp_handled": 7},
        **changed,
    }


def host(**changed: Any) -> State:
    """The state of a host with one such port."""
    return {"platform": "mlx5", "devices": {"ens1f0np0": device(**changed)}, "sysfs": "", "rates": {}, "netdevs": {}}


def train(state: State, name: str, *, flap: bool = True) -> None:
    """Bring the link to what both ends allow now; count the flap if it was up; show it in sysfs."""
    own = state["devices"][name]
    if flap and own["carrier"]:
        own["link_down_events_phy"] += 1
    wanted = own["advertised"] if own["autoneg"] else [own["forced"]]
    common = [speed for speed in wanted if speed in own["peer_speeds"]]
    refused = not own["autoneg"] and own["peer_needs_autoneg"]
    is_up = own["port_up"] and (own["admin_up"] or own["keep_link_up"]) and bool(common) and not refused
    own["still_training"] = own["training_looks"]
    own["carrier"] = is_up
    own["speed"] = max(common) if is_up else 0
    show_link(state, name)


def show_link(state: State, name: str) -> None:
    """Write speed, carrier and MTU into the fake sysfs, if there is one."""
    own = state["devices"][name]
    folder = Path(state["sysfs"] or "/nonexistent") / "class/net" / name
    if folder.is_dir():
        seen = own["carrier"] and own["admin_up"]
        values = {"speed": own["speed"] if seen else -1, "carrier": int(seen), "mtu": own["mtu"]}
        for key, value in {**values, "operstate": "up" if seen else "down"}.items():
            (folder / key).write_text(f"{value}\n", encoding="ascii")


def _device(state: State, name: str, message: str) -> dict[str, Any]:
    if name not in state["devices"]:
        raise Failed(message)
    return state["devices"][name]


def ethtool(state: State, argv: list[str]) -> str:
    """Show, ``-s`` speed, autoneg, advertise; ``-G``/``-g``; ``-A``/``-a``; ``-S``. Failures exit as ethtool does."""
    options = [word for word in argv if word.startswith("-")]
    option = options[0] if options else ""
    name = argv[1] if option else argv[0]
    own = _device(state, name, "netlink error: no device matches name (offset 24)\nnetlink error: No such device\n")
    rest = dict(zip(argv[2::2], argv[3::2], strict=False))
    if option == "-s":
        return _set_link(state, name, own, rest)
    if option == "-g":
        return (
            f"Ring parameters for {name}:\nPre-set maximums:\nRX:\t\t{own['ring_most']}\nRX Mini:\tn/a\n"
            f"RX Jumbo:\tn/a\nTX:\t\t{own['ring_most']}\nCurrent hardware settings:\nRX:\t\t{own['rx_ring']}\n"
            f"RX Mini:\tn/a\nRX Jumbo:\tn/a\nTX:\t\t{own['tx_ring']}\n"
        )
    if option == "-G":
        for side in ("rx", "tx"):
            if side in rest:
                if int(rest[side]) > own["ring_most"]:
                    raise Failed("netlink error: Invalid argument\n", 1)
                own[f"{side}_ring"] = int(rest[side])
        return ""
    if option == "-a":
        pause = own["pause"]
        shown = {key: "on" if pause[key] else "off" for key in pause}
        head = f"Pause parameters for {name}:\nAutonegotiate:\t{shown['autoneg']}\n"
        return f"{head}RX:\t\t{shown['rx']}\nTX:\t\t{shown['tx']}\n"
    if option == "-A":
        wanted = {**own["pause"], **{key: value == "on" for key, value in rest.items()}}
        if (wanted["rx"] or wanted["tx"]) and any(own["dcb"]["pfc"]):
            raise Failed("netlink error: Invalid argument\n")
        if wanted == own["pause"]:
            raise Failed("", 78)
        own["pause"] = wanted
        return ""
    if option == "-S":
        counters = {"link_down_events_phy": own["link_down_events_phy"]}
        pfc = {f"rx_prio{prio}_pause": 0 for prio in range(8) if own["dcb"]["pfc"][prio]}
        return "NIC statistics:\n" + "".join(f"     {key}: {value}\n" for key, value in {**counters, **pfc}.items())
    return _shown_link(name, own)


def _set_link(state: State, name: str, own: dict[str, Any], rest: dict[str, str]) -> str:
    autoneg = {"on": True, "off": False}.get(rest.get("autoneg", ""), own["autoneg"])
    speed = int(rest.get("speed", own["forced"] or own["speed"] or max(own["supported"])))
    advertised = own["advertised"]
    if autoneg and "advertise" in rest:
        mask = int(rest["advertise"], 16)
        advertised = [speed for speed in own["supported"] if mask >> MODES[speed][1] & 1]
    elif autoneg and "autoneg" in rest:
        advertised = [speed] if "speed" in rest else list(own["supported"])
    if (not autoneg and speed not in own["supported"]) or (autoneg and not advertised):
        raise Failed("netlink error: link settings update failed\nnetlink error: Invalid argument\n", 75)
    after = (autoneg, advertised, speed if not autoneg else 0)
    if after != (own["autoneg"], own["advertised"], own["forced"]):
        own["autoneg"], own["advertised"], own["forced"] = after
        train(state, name)
    return ""


def _modes(speeds: list[int]) -> str:
    return ("\n\t" + " " * 24).join(MODES[speed][0] for speed in speeds) or "Not reported"


def _shown_link(name: str, own: dict[str, Any]) -> str:
    seen = own["carrier"] and own["admin_up"] and not own["still_training"]
    own["still_training"] = max(0, own["still_training"] - 1)
    rows = [
        "Supported ports: [ Backplane ]",
        f"Supported link modes:   {_modes(own['supported'])}",
        "Supported pause frame use: Symmetric",
        "Supports auto-negotiation: Yes",
        "Supported FEC modes: None\t RS",
        f"Advertised link modes:  {_modes(own['advertised'])}",
        "Advertised pause frame use: Symmetric",
        f"Advertised auto-negotiation: {'Yes' if own['autoneg'] else 'No'}",
        "Advertised FEC modes: RS",
        f"Speed: {str(own['speed']) + 'Mb/s' if seen else 'Unknown!'}",
        f"Duplex: {'Full' if seen else 'Unknown! (255)'}",
        f"Auto-negotiation: {'on' if own['autoneg'] else 'off'}",
        "Port: Direct Attach Copper",
        "PHYAD: 0",
        "Transceiver: internal",
        "Supports Wake-on: d",
        "Wake-on: d",
        f"Link detected: {'yes' if seen else 'no'}",
    ]
    return f"Settings for {name}:\n" + "".join(f"\t{row}\n" for row in rows)


def mlxlink(state: State, argv: list[str]) -> str:
    """``-d mlx5_0 [--json] [--speeds S,…] [--port_state UP|DN|TG]``; a failure in JSON has its status, exit 1."""
    said = dict(pairwise(argv))
    wanted = said.get("-d", "")
    name = next((name for name, own in state["devices"].items() if wanted in (own["rdma"], own["pci"])), "")
    if not name:
        raise Failed(out=_mlx_json({}, 1, "MFE_BAD_PARAMS"))
    own = state["devices"][name]
    change = said.get("--port_state") or said.get("-a")
    if change in ("DN", "TG"):
        own["port_up"] = False
        if own["keep_link_up"]:
            own["port_up"] = True
            raise Failed(out=_mlx_json({}, 1, "port is not Down, for some reasons:"))
        train(state, name)
    if change in ("UP", "TG"):
        own["port_up"] = True
        train(state, name, flap=False)
    speeds = said.get("--speeds") or said.get("-s")
    if speeds:
        asked = [MLX_SPEEDS.get(speed, 0) for speed in speeds.split(",")]
        if not all(speed in own["supported"] for speed in asked):
            raise Failed(out=_mlx_json({}, 1, f"{speeds} is not supported by Device!"))
        own["advertised"], own["autoneg"], own["forced"] = sorted(asked), "--link_mode_force" not in argv, 0
        if not own["autoneg"]:
            own["forced"] = asked[0]
        train(state, name)
    enabled = [key for key, speed in MLX_SPEEDS.items() if speed in own["advertised"]][::-1]
    supported = [key for key, speed in MLX_SPEEDS.items() if speed in own["supported"]][::-1]
    running = next((key for key, speed in MLX_SPEEDS.items() if speed == own["speed"]), "N/A").split("_")[0]
    return _mlx_json(
        {
            "Operational Info": {
                "State": "Active" if own["carrier"] else ("Polling" if own["port_up"] else "Disable"),
                "Physical state": "ETH_AN_FSM_ENABLE" if own["carrier"] else "AN_FSM_RESET",
                "Speed": running if own["carrier"] else "N/A",
                "Auto Negotiation": "ON" if own["autoneg"] else "FORCE",
            },
            "Supported Info": {
                "Enabled Link Speed (Ext.)": {"mask": "0x0", "values": enabled},
                "Supported Cable Speed (Ext.)": {"mask": "0x0", "values": supported},
            },
        },
        0,
        "success",
    )


def _mlx_json(output: dict[str, Any], code: int, message: str) -> str:
    return json.dumps({"result": {"output": output}, "status": {"code": code, "message": message}}, indent=4) + "\n"


def ip(state: State, argv: list[str]) -> str:
    """``ip [-j] link show dev X``, ``ip link set [dev] X up|down|mtu N``."""
    words = [word for word in argv if not word.startswith("-")]
    rest = [word for word in words[2:] if word != "dev"]
    own = _device(
        state,
        rest[0],
        f'Cannot find device "{rest[0]}"\n' if words[1] == "set" else f'Device "{rest[0]}" does not exist.\n',
    )
    if words[1] == "show":
        flags = ["BROADCAST", "MULTICAST", *(["UP"] if own["admin_up"] else [])]
        if own["carrier"] and own["admin_up"]:
            flags.append("LOWER_UP")
        elif own["admin_up"]:
            flags.insert(0, "NO-CARRIER")
        link = {"ifindex": 4, "ifname": rest[0], "flags": flags, "mtu": own["mtu"], "qdisc": "mq", "group": "default"}
        return json.dumps([{**link, "operstate": "UP" if "LOWER_UP" in flags else "DOWN"}]) + "\n"
    words = rest[1:]
    while words:
        word = words.pop(0)
        if word in ("up", "down"):
            if own["admin_up"] != (word == "up"):
                own["admin_up"] = word == "up"
                train(state, rest[0], flap=word == "down" and not own["keep_link_up"])
        elif word == "mtu":
            value = int(words.pop(0))
            if not 68 <= value <= 9978:
                raise Failed(
                    "Error: mtu greater than device maximum.\n"
                    if value > 9978
                    else "Error: mtu less than device minimum.\n",
                    2,
                )
            own["mtu"] = value
            show_link(state, rest[0])
        else:
            raise Failed(f'Error: either "dev" is duplicate, or "{word}" is a garbage.\n', 255)
    return ""


def devlink(state: State, argv: list[str]) -> str:
    """``devlink [-j] port function rate show|set PORT [tx_max R]``: 0 isn't shown; JSON is bytes a second."""
    words = [word for word in argv if not word.startswith("-")]
    if words == ["port", "show"]:
        ports = {
            name: {"type": "eth", "netdev": netdev, "flavour": "pcivf"} for name, netdev in state["netdevs"].items()
        }
        if "-j" in argv:
            return json.dumps({"port": ports}, separators=(",", ":")) + "\n"
        return "".join(
            f"{name}: type eth netdev {port['netdev']} flavour pcivf controller 0 pfnum 0 vfnum 0\n"
            for name, port in ports.items()
        )
    name = words[4]
    rate = state["rates"].get(name)
    if rate is None:
        raise Failed(
            "devlink answers: No such device\n" if name.startswith("pci/") else "Wrong identification string format.\n"
        )
    if words[3] == "show":
        limits = {key: value for key, value in rate.items() if value}
        return json.dumps({"rate": {name: {"type": "leaf", **limits}}}, separators=(",", ":")) + "\n"
    for key, value in zip(words[5::2], words[6::2], strict=True):
        units = {"gbit": 125_000_000, "mbit": 125_000, "bps": 1, "": 0.125}
        number = value.rstrip("abcdefghijklmnopqrstuvwxyz")
        amount = int(float(number) * units[value[len(number) :]])
        if amount % 125_000:  # the hardware's step is 1 Mb/s
            raise Failed("Error: mlx5_core: Rate value must be in multiples of 1mbps.\n")
        rate[key] = amount
    if rate.get("tx_max") and rate.get("tx_share", 0) > rate["tx_max"]:
        raise Failed("Invalid. Expected tx_share <= tx_max or tx_share == 0.\n")
    return ""


def rdma(state: State, argv: list[str]) -> str:
    """``rdma -j statistic show link mlx5_0/1``: the hardware counters of one port."""
    link = argv[-1].partition("/")[0]
    own = next((own for own in state["devices"].values() if own["rdma"] == link), None)
    if own is None:
        raise Failed(f"Wrong device name: {link}\n", 1)
    return json.dumps([{"ifindex": 0, "ifname": link, "port": 1, **own["hw_counters"]}]) + "\n"


TOOLS: dict[str, Tool] = {"ethtool": ethtool, "mlxlink": mlxlink, "ip": ip, "devlink": devlink, "rdma": rdma}
