"""What this machine's kernel can emulate, found out in a throw-away fabric that nobody sees.

`genie.fabric.netns` and `genie.doctor` ask; the answer is kept for the life of the process. Nothing is changed
outside namespaces that end with the question.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit, RunAborted
from genie.fabric.base import Completed
from genie.fabric.client import HolderClient
from genie.fabric.holder import BPF_DIR

MARKER_OBJECT = Path(__file__).with_name("marker.bpf.o")
PINNED_MARKER = f"{BPF_DIR}/marker"
_TIMEOUT_S = 10.0
_DEVICE = "probe0"

_QDISC_TRIALS = {
    "tbf": "root handle 7e1e: tbf rate 100mbit burst 10000b limit 100000b",
    "red": "root red limit 100000 min 20000 max 60000 avpkt 1500 burst 23 bandwidth 100mbit probability 0.1 ecn nodrop",
    "netem": "root netem delay 1ms",
    "htb": "root htb",
    "fq": "root fq",
    "fq_codel": "root fq_codel",
    "clsact": "clsact",
}
_DETOUR_TRIAL = (
    ("ip", "link", "add", "name", "probe2", "type", "ifb"),
    ("tc", "qdisc", "add", "dev", "probe2", "root", "netem", "delay", "1ms"),
    ("tc", "filter", "add", "dev", _DEVICE, "ingress", "pref", "7", "protocol", "all", "matchall",
     "action", "mirred", "egress", "redirect", "dev", "probe2"),
)  # fmt: skip
_LOSS_TRIAL = f"""table netdev genie_probe {{
  chain trial {{ type filter hook ingress device "{_DEVICE}" priority 0; numgen random mod 1000 < 1 counter drop; }}
}}
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """``unfit`` is "" where namespaces can be had. ``missing`` maps what cannot be had to the reason."""

    unfit: str
    remedy: str
    user_namespace: bool
    notes: tuple[str, ...]
    missing: dict[str, str]

    def has(self, feature: str) -> bool:
        """Whether ``feature`` (a qdisc, "nft", "bpf") works here."""
        return not self.unfit and feature not in self.missing


def _first_line(completed: Completed) -> str:
    lines = [line.strip() for line in (completed.stderr + completed.stdout).splitlines() if line.strip()]
    return lines[0].removeprefix("Error: ").removesuffix(".") if lines else f"exit code {completed.returncode}"


def load_marker_argv() -> list[str]:
    """The command that loads and pins the marking program inside a fabric. Raises EnvironmentUnfit if not built."""
    if not MARKER_OBJECT.is_file():
        raise EnvironmentUnfit(f"the marking program {MARKER_OBJECT} is missing from this installation")
    return [str(find_binary("genie-port")), "marker", "load", "--object", str(MARKER_OBJECT), "--pin", BPF_DIR]


def _try_marker(client: HolderClient) -> str:
    """Why the marking program does not load and attach here; empty if it does."""
    if client.user_namespace:
        return "loading a tc-BPF program needs root, and this run is in a user namespace"
    try:
        argv = load_marker_argv()
    except EnvironmentUnfit as error:
        return error.message
    loaded = client.run("", argv, timeout_s=_TIMEOUT_S)
    if loaded.returncode != 0:
        return _first_line(loaded)
    attach = f"filter add dev {_DEVICE} egress protocol ip bpf direct-action object-pinned {PINNED_MARKER}"
    attached = client.run("", ["tc", *attach.split()], timeout_s=_TIMEOUT_S)
    return "" if attached.returncode == 0 else _first_line(attached)


def _try_all(client: HolderClient) -> dict[str, str]:
    missing: dict[str, str] = {}
    made = client.run("", ["ip", "link", "add", "name", _DEVICE, "type", "veth", "peer", "name", "probe1"])
    if made.returncode != 0:
        return dict.fromkeys([*_QDISC_TRIALS, "nft", "detour", "bpf"], f"no veth interfaces: {_first_line(made)}")
    for kind, arguments in _QDISC_TRIALS.items():
        # One after the other: each takes the place of the one before as the interface's root.
        verb = "add" if kind == "clsact" else "replace"
        tried = client.run("", ["tc", "qdisc", verb, "dev", _DEVICE, *arguments.split()], timeout_s=_TIMEOUT_S)
        if tried.returncode != 0:
            missing[kind] = f"kernel without sch_{kind}: {_first_line(tried)}"
    try:
        nft = client.run("", ["nft", "-f", "-"], _LOSS_TRIAL.encode(), _TIMEOUT_S)
        if nft.returncode != 0:
            missing["nft"] = f"nft refused a drop rule: {_first_line(nft)}"
    except RunAborted as error:
        missing["nft"] = error.message
    for argv in _DETOUR_TRIAL:
        tried = client.run("", argv, timeout_s=_TIMEOUT_S)
        if tried.returncode != 0:
            missing["detour"] = f"packets cannot be delayed: {' '.join(argv)}: {_first_line(tried)}"
            break
    refusal = missing.get("clsact") or _try_marker(client)
    if refusal:
        missing["bpf"] = refusal
    return missing


@functools.cache
def probe() -> Probe:
    """What can be had here. About 0.1 s the first time, then remembered."""
    try:
        client = HolderClient()
    except EnvironmentUnfit as error:
        return Probe(error.message, error.hint, False, (), {})
    try:
        return Probe("", "", client.user_namespace, client.notes, _try_all(client))
    except RunAborted as error:
        return Probe(error.message, "apt-get install iproute2", client.user_namespace, client.notes, {})
    finally:
        client.close()
