"""What an Ansible inventory says of its hosts, and what the hosts say of themselves: read only, nothing is changed.

`genie.topology.inventory` draws the network from it, `genie.fabric.inventory` runs on it. The inventory is read by
``ansible-inventory`` with the formats INI and YAML only: no scripts, no plugins, no templates, nothing of the user's
Ansible configuration. Hosts that do not say ``genie_allowed: true`` are refused before anything is contacted.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from genie.errors import ConfigError, EnvironmentUnfit, GenieError, PlanError, closest
from genie.fabric.ssh import SshLinks, SshTarget, require_ssh
from genie.rdma import remote
from genie.rdma.model import RdmaDevice
from genie.topology.model import Ecn
from genie.units import parse_rate_bps

LOCK = "/run/lock/genie.lock"
DEFAULT_STATE_DIR = "/run/genie"
ROLES = ("host", "leaf", "spine", "switch")
ARCHITECTURE = "x86_64"
WANTED_TOOLS = ("flock", "timeout", "sha256sum", "od", "head")
OPTIONAL_TOOLS = ("tc", "ip", "nft", "ethtool")
_SHOWN = 8
_INVENTORY_TIMEOUT_S = 60.0
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9_.:%-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}")
_FOLDER = re.compile(r"/[A-Za-z0-9_./+-]{1,80}")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}")
_PLATFORM = re.compile(r"[a-z0-9_]{1,32}")
_RDMA_PORT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(:[1-9][0-9]?)?")
_UNCHECKED_KEYS = re.compile(r"stricthostkeychecking[= ]*(no|off)", re.IGNORECASE)
_OURS = frozenset({
    "genie_allowed", "genie_address", "genie_interface", "genie_rate", "genie_platforms", "genie_role", "genie_links",
    "genie_state_dir", "genie_rdma_devices",
})  # fmt: skip
CONNECTION_KEYS = (
    "ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file", "ansible_ssh_common_args",
    "ansible_ssh_extra_args", "ansible_become",
)  # fmt: skip
_REFUSED_KEYS = {
    "ansible_password": "a password would have to be typed for every command",
    "ansible_ssh_pass": "a password would have to be typed for every command",
    "ansible_become_password": "a password would have to be typed for every command",
    "ansible_become_pass": "a password would have to be typed for every command",
    "ansible_ssh_executable": "only the machine's own ssh is run",
}


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One host as the inventory describes it. ``address`` and ``interface`` "" and ``rate_bps`` 0: to be read there.

    ``connection``: the user's own Ansible connection variables; ``links``: interface → "peer/interface";
    ``rdma_devices``: its rails in the order of its ranks, "mlx5_0" or "mlx5_0:2" (`genie.rdma.rails`).
    """

    name: str
    target: SshTarget
    connection: Mapping[str, Any]
    address: str = ""
    interface: str = ""
    rate_bps: int = 0
    platforms: tuple[str, ...] = ("linux",)
    role: str = "host"
    links: Mapping[str, str] = field(default_factory=dict)
    state_dir: str = DEFAULT_STATE_DIR
    rdma_devices: tuple[str, ...] = ()

    @property
    def is_linux(self) -> bool:
        """Whether our programs can run there: hosts always, switches where they say so."""
        return self.role == "host" or "linux" in self.platforms


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What one host said of itself. ``management``: interfaces that faults must leave alone (the default route's, and
    the one the ssh connection came by). ``seen_from``: our own address as the host sees it. ``lock``: whose run has the
    host; ``warden``: the file of a fault's warden that lives there; "" for none. ``marks``: thresholds of interfaces
    whose red marks. ``rdma``: interface → the port of an RDMA device behind it, "mlx5_0:1". ``rdma_devices``: all of
    them, as sysfs shows them; ``libraries``: of `remote.LIBRARIES` those its loader knows, None where it was not asked.
    """

    name: str
    kernel: str
    architecture: str
    uid: int
    cpus: int
    boot_id: str
    address: str
    interface: str
    ifindex: int
    mtu: int
    rate_bps: int
    management: frozenset[str]
    seen_from: str
    free_bytes: int
    tools: frozenset[str]
    interfaces: Mapping[str, int]
    lock: str = ""
    warden: str = ""
    marks: Mapping[str, Ecn] = field(default_factory=dict)
    rdma: Mapping[str, str] = field(default_factory=dict)
    rdma_devices: tuple[RdmaDevice, ...] = ()
    libraries: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The inventory and its hosts, in the inventory's order. ``facts`` lacks switches that are not ours to run on."""

    path: Path
    entries: tuple[HostEntry, ...]
    facts: Mapping[str, HostFacts]

    def entry(self, name: str) -> HostEntry:
        """The entry of a node. Raises PlanError for any other name."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        names = [entry.name for entry in self.entries]
        raise PlanError(f"no host {name!r} in {self.path}", hint=closest(name, names))


# -- the inventory ------------------------------------------------------------------------------------------------


def read_inventory(path: Path, group: str) -> tuple[HostEntry, ...]:
    """Hosts of ``group`` as the inventory describes them; contacts nobody. Raises ConfigError or PlanError by name."""
    if not path.is_file() and not path.is_dir():
        raise ConfigError(f"there is no file {str(path)!r}", key="fabric.inventory")
    listed = _listed(path)
    variables = listed.get("_meta", {}).get("hostvars", {})
    names = _members(listed, group, path)
    entries = tuple(_entry(name, variables.get(name, {})) for name in names)
    # A section of variables in an INI file has nothing but text.
    refused = [host for host in names if str(variables.get(host, {}).get("genie_allowed")).lower() != "true"]
    if refused:
        raise PlanError(
            f"{_named(refused)}: the inventory does not say genie_allowed: true, so nothing is run there",
            hint="set it for hosts that GENIE may send traffic from, change and disturb (docs/inventory.md)",
        )
    if not any(entry.role == "host" for entry in entries):
        raise PlanError(f"{path}: group {group!r} has no hosts for ranks to live on")
    return entries


def _listed(path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="genie-inventory-") as folder:
        config = Path(folder) / "ansible.cfg"
        config.write_text("[defaults]\n")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment |= {
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": folder,
            "ANSIBLE_LOCAL_TEMP": folder,
            "ANSIBLE_INVENTORY_ENABLED": "yaml,ini",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_DEPRECATION_WARNINGS": "0",
            "LC_ALL": "C.UTF-8",
        }
        argv = [sys.executable, "-m", "ansible", "inventory", "-i", str(path.absolute()), "--list"]
        try:
            done = subprocess.run(
                argv, capture_output=True, env=environment, timeout=_INVENTORY_TIMEOUT_S, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"{path} was not read within {_INVENTORY_TIMEOUT_S:g} s", key="fabric.inventory"
            ) from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[-800:]
        raise ConfigError(
            f"{path} is no inventory in Ansible's INI or YAML form: {words}",
            key="fabric.inventory",
            hint="scripts and inventory plugins are not run; docs/inventory.md has an example",
        )
    listed = json.loads(done.stdout)
    if not isinstance(listed, dict):
        raise ConfigError(f"ansible-inventory said no mapping of {path}", key="fabric.inventory")
    return listed


def _members(listed: Mapping[str, Any], group: str, path: Path) -> list[str]:
    """Hosts of a group and of its children, each once, in the inventory's order."""
    groups = {"all", *(name for name in listed if name != "_meta")}
    if group not in groups:
        raise ConfigError(f"{path} has no group {group!r}; {closest(group, groups)}", key="fabric.group")
    found: dict[str, None] = {}
    waiting = [group]
    seen = set()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        content = listed.get(name, {})
        found |= dict.fromkeys(content.get("hosts", ()))
        waiting = [*content.get("children", ()), *waiting]
    if not found:
        raise ConfigError(f"{path}: group {group!r} has no hosts", key="fabric.group")
    return list(found)


def _entry(name: str, variables: Mapping[str, Any]) -> HostEntry:
    if not _NODE_NAME.fullmatch(name):
        raise PlanError(
            f"host {name!r} of the inventory is no name of a node: expected up to 63 letters, digits, '_', '.', '-'",
            hint="give it a short name and its address as ansible_host",
        )
    say = _Reader(name, variables)
    for key in variables:
        if key.startswith("genie_") and key not in _OURS:
            raise PlanError(f"host {name}: there is no variable {key!r}; {closest(key, _OURS)}")
        if key in _REFUSED_KEYS:
            raise PlanError(f"host {name}: {key} is not used: {_REFUSED_KEYS[key]}", hint="use a key, or ssh-agent")
    connection = say.text("ansible_connection") or "ssh"
    role = say.text("genie_role") or "host"
    if role not in ROLES:
        raise PlanError(f"host {name}: genie_role is {role!r}; {closest(role, ROLES)}")
    if connection not in ("ssh", "smart") and role == "host":
        raise PlanError(f"host {name}: ansible_connection is {connection!r}, expected ssh")
    rate = variables.get("genie_rate", "")
    links = variables.get("genie_links") or {}
    if not isinstance(links, Mapping):
        raise PlanError(f"host {name}: genie_links is no mapping of interface to peer/interface")
    address = say.text("genie_address")
    if address:
        _check_address(name, address)
    kept = {key: variables[key] for key in CONNECTION_KEYS if key in variables}
    if role != "host":  # switches are reached by Ansible alone, by whatever connection their platform has
        kept |= {key: variables[key] for key in variables if key.startswith(("ansible_", "genie_sonic", "genie_nvue"))}
    return HostEntry(
        name=name,
        target=_target(name, say),
        connection=kept,
        address=address,
        interface=say.text("genie_interface", _INTERFACE),
        rate_bps=parse_rate_bps(str(rate), key=f"host {name}: genie_rate") if rate != "" else 0,
        platforms=say.words("genie_platforms", _PLATFORM) or ("linux",),
        role=role,
        links={str(here): str(there) for here, there in links.items()},
        state_dir=say.text("genie_state_dir", _FOLDER) or DEFAULT_STATE_DIR,
        rdma_devices=say.words("genie_rdma_devices", _RDMA_PORT),
    )


def _check_address(name: str, address: str) -> None:
    try:
        IPv4Address(address)
    except ValueError as error:
        raise PlanError(f"host {name}: genie_address is {address!r}, expected an IPv4 address") from error


def _target(name: str, say: _Reader) -> SshTarget:
    arguments: list[str] = []
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        text = say.text(key)
        if _UNCHECKED_KEYS.search(text):
            raise PlanError(f"host {name}: {key} switches the check of host keys off, which GENIE needs")
        try:
            arguments += shlex.split(text)
        except ValueError as error:
            raise PlanError(f"host {name}: {key} cannot be read: {error}") from error
    port = say.variables.get("ansible_port", 0)
    if not (str(port).isdigit() and int(port) < 65536):
        raise PlanError(f"host {name}: ansible_port is {port!r}, expected a number below 65536")
    become = say.variables.get("ansible_become", False)
    if str(become).lower() not in ("true", "false", "yes", "no"):
        raise PlanError(f"host {name}: ansible_become is {become!r}, expected true or false")
    key = say.text("ansible_ssh_private_key_file")
    return SshTarget(
        address=say.text("ansible_host", _ADDRESS) or name,
        port=int(port),
        user=say.text("ansible_user", _USER),
        key=str(Path(key).expanduser()) if key else "",
        arguments=tuple(arguments),
        become=str(become).lower() in ("true", "yes"),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Variables of one host, each checked as it is taken."""

    host: str
    variables: Mapping[str, Any]

    def text(self, key: str, grammar: re.Pattern[str] | None = None) -> str:
        value = self.variables.get(key, "")
        if not isinstance(value, str):
            raise PlanError(f"host {self.host}: {key} is {value!r}, expected text")
        if "{{" in value or any(ord(character) < 32 for character in value):
            raise PlanError(
                f"host {self.host}: {key} is {value!r}; templates and control characters are not resolved here"
            )
        if value and grammar is not None and not grammar.fullmatch(value):
            raise PlanError(f"host {self.host}: {key} is {value!r}, which does not fit {grammar.pattern}")
        return value

    def words(self, key: str, grammar: re.Pattern[str]) -> tuple[str, ...]:
        value = self.variables.get(key, ())
        found = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [value]
        for word in found:
            if not isinstance(word, str) or not grammar.fullmatch(word):
                raise PlanError(f"host {self.host}: {key} has {word!r}, which does not fit {grammar.pattern}")
        return tuple(found)


# -- the hosts ----------------------------------------------------------------------------------------------------

# One command a host; reads only. $1 is the ssh connection: "our address, our port, its address, its port".
_LOOK = (
    """
echo ssh "$1"
echo arch $(uname -m); echo kernel $(uname -r); echo uid $(id -u)
echo cpus $(grep -c ^processor /proc/cpuinfo)
echo boot $(cat /proc/sys/kernel/random/boot_id)
for t in TOOLS; do if command -v $t >/dev/null 2>&1; then echo tool $t; fi; done
awk 'NR > 1 && $2 == "00000000" && $8 == "00000000" { print "default", $1 }' /proc/net/route
for d in /sys/class/net/*; do
  i=${d##*/}
  echo if $i $(cat $d/ifindex) $(cat $d/mtu) $(cat $d/speed 2>/dev/null || echo -1) $(cat $d/operstate)
done
for d in /sys/class/infiniband/*/ports/*; do
  i=$(cat $d/gid_attrs/ndevs/0 2>/dev/null) || continue
  r=${d#/sys/class/infiniband/}; echo rdma $i ${r%%/*}:${r##*/}
done
RDMA
ip -o -4 addr show 2>/dev/null | awk '{ print "addr", $2, $4 }'
p=STATE; while [ ! -d "$p" ]; do p=$(dirname "$p"); done
echo free $(df -Pk "$p" | awk 'NR == 2 { print $4 }')
printf 'queues %s\n' "$(tc -j -d qdisc show 2>/dev/null | tr -d ' \n')"
if [ -e LOCK ] && ! flock -n LOCK true 2>/dev/null; then echo lock $(head -c 200 LOCK); fi
for f in STATE/*/*/alive; do if [ -e "$f" ] && ! flock -n "$f" true; then echo warden "$f"; fi; done
""".replace("TOOLS", " ".join((*WANTED_TOOLS, *OPTIONAL_TOOLS)))
    .replace("LOCK", LOCK)
    .replace("\nRDMA\n", remote.LOOK)
)


def look(links: SshLinks, entries: Iterable[HostEntry]) -> dict[str, HostFacts]:
    """Ask every Linux node about itself, all at once.

    Raises EnvironmentUnfit that names each one that cannot serve, and what to do about it.
    """
    linux = [entry for entry in entries if entry.is_linux]
    unreachable = links.open()
    facts: dict[str, HostFacts] = {}
    problems = {name: f"cannot be reached by ssh: {words}" for name, words in unreachable.items()}
    reached = [entry for entry in linux if entry.name not in unreachable]
    with ThreadPoolExecutor(16) as pool:
        for entry, answer in zip(reached, pool.map(lambda entry: _ask(links, entry), reached), strict=True):
            if isinstance(answer, HostFacts):
                facts[entry.name] = answer
            else:
                problems[entry.name] = answer
    problems |= same_addresses(facts)
    if problems:
        shown = [f"{name}: {problems[name]}" for name in list(problems)[:_SHOWN]]
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise EnvironmentUnfit(
            f"{len(problems)} of {len(linux)} hosts of the inventory cannot serve: {'; '.join(shown)}{more}",
            hint="nothing was changed on any host; docs/inventory.md says what a host needs",
        )
    return facts


def same_addresses(facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Why a host cannot serve beside one before it: by name, where its data address is that of the other. Pure."""
    first: dict[str, str] = {}
    return {
        name: f"has the address {own.address}, as {first[own.address]} has: is it one machine under two names?"
        for name, own in facts.items()
        if own.address and first.setdefault(own.address, name) != name
    }


def _ask(links: SshLinks, entry: HostEntry) -> HostFacts | str:
    try:
        done = links.run(entry.name, _LOOK.replace("STATE", shlex.quote(entry.state_dir)))
    except GenieError as error:
        return error.message
    if done.returncode != 0:
        return f"reading it failed with status {done.returncode}: {' '.join(done.stderr.split())[-300:]}"
    try:
        return judge_facts(entry, done.stdout)
    except (ValueError, IndexError) as error:
        return f"said what cannot be read: {error}"


def judge_facts(entry: HostEntry, text: str) -> HostFacts | str:
    """The facts that `_LOOK` printed, or the sentence why this host cannot serve. Pure."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    repeated = ("tool", "if", "addr", "default", "rdma", *remote.WORDS)
    found = {words[0]: words[1:] for words in lines if words[0] not in repeated}
    interfaces = {words[1]: words[2:] for words in lines if words[0] == "if" and len(words) >= 5}
    addresses = [(words[1], words[2].partition("/")[0]) for words in lines if words[0] == "addr" and len(words) >= 3]
    tools = frozenset(words[1] for words in lines if words[0] == "tool")
    if missing := [name for name in ("arch", "kernel", "uid", "boot", "free") if not found.get(name)]:
        return f"did not say its {', '.join(missing)}"
    if found["arch"][0] != ARCHITECTURE:
        return f"is of architecture {found['arch'][0]}; the programs that would run there are built for {ARCHITECTURE}"
    if absent := [tool for tool in WANTED_TOOLS if tool not in tools]:
        return f"has no {', '.join(absent)} (util-linux and coreutils have them)"
    connection = found.get("ssh", [])
    seen_from, came_to = (connection[0], connection[2]) if len(connection) >= 4 else ("", "")
    management = {words[1] for words in lines if words[0] == "default" and len(words) > 1}
    management |= {interface for interface, address in addresses if address == came_to}
    data = _data_interface(entry, interfaces, addresses)
    if isinstance(data, str):
        return data
    interface, address = data
    ifindex, mtu, speed = (int(word) for word in interfaces[interface][:3]) if interface else (0, 1500, -1)
    rate_bps = entry.rate_bps or max(0, speed) * 1_000_000
    if not rate_bps and entry.role == "host":
        return f"does not know the rate of {interface} (/sys/class/net/{interface}/speed); give it as genie_rate"
    return HostFacts(
        name=entry.name,
        kernel=found["kernel"][0],
        architecture=found["arch"][0],
        uid=int(found["uid"][0]),
        cpus=int((found.get("cpus") or ["1"])[0]),
        boot_id=found["boot"][0],
        address=address,
        interface=interface,
        ifindex=ifindex,
        mtu=mtu,
        rate_bps=rate_bps,
        management=frozenset(management),
        seen_from=seen_from,
        free_bytes=int(found["free"][0]) * 1024,
        tools=tools,
        interfaces={name: int(words[0]) for name, words in interfaces.items()},
        lock=describe_holder(" ".join(found["lock"])) if "lock" in found else "",
        warden=" ".join(found.get("warden", [])),
        marks=marking_queues("".join(found.get("queues", []))),
        rdma={words[1]: words[2] for words in lines if words[0] == "rdma" and len(words) == 3},
        rdma_devices=remote.devices_of(text.splitlines()),
        libraries=remote.libraries_of(text.splitlines()),
    )


def describe_holder(text: str) -> str:
    """Who holds a host's lock, in words: the file says "RUN END", the end in Unix ns, as genie-warden writes it too."""
    run, _, end = text.strip().partition(" ")
    if not run:
        return "it does not say which"
    if not end.strip().isdigit():
        return run
    until = datetime.fromtimestamp(int(end) / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"run {run}, until {until} at the latest"


def marking_queues(text: str) -> dict[str, Ecn]:
    """Interfaces with a red that marks below a tbf, and its thresholds, from ``tc -j -d qdisc show``. Pure."""
    try:
        queues = json.loads(text)
    except ValueError:
        return {}  # no tc there, or one that speaks no JSON
    shaped = {queue.get("dev") for queue in queues if queue.get("root") and queue.get("kind") == "tbf"}
    marks = {}
    for queue in queues:
        own = queue.get("options", {})
        if queue.get("kind") == "red" and own.get("ecn") and queue.get("dev") in shaped:
            marks[str(queue["dev"])] = Ecn(int(own["min"]), int(own["max"]), float(own.get("probability", 0)))
    return marks


def _data_interface(
    entry: HostEntry, interfaces: Mapping[str, list[str]], addresses: list[tuple[str, str]]
) -> tuple[str, str] | str:
    """(interface, address) of the data network, or why there is none."""
    if entry.role != "host":
        return entry.interface, entry.address
    interface, address = entry.interface, entry.address
    if interface and interface not in interfaces:
        return f"has no interface {interface!r} (genie_interface); it has {', '.join(sorted(interfaces))}"
    if not interface and not address:
        return "gives neither genie_address nor genie_interface, so its data network is not known"
    if not address:
        of_interface = [found for name, found in addresses if name == interface]
        if len(of_interface) != 1:
            said = ", ".join(of_interface) or "none"
            return f"has not one IPv4 address on {interface} ({said}); give it as genie_address"
        address = of_interface[0]
    holders = [name for name, found in addresses if found == address]
    if not holders:
        return f"has no address {address} (genie_address); it has {', '.join(found for _, found in addresses)}"
    if interface and interface not in holders:
        return f"has address {address} (genie_address) on {holders[0]}, not on {interface} (genie_interface)"
    return interface or holders[0], address


_known: dict[tuple[Path, str, int], Survey] = {}


def survey(path: Path, group: str = "all") -> Survey:
    """Read the inventory and its hosts; once for each file as it is now, since a plan asks more than once."""
    require_ssh()
    absolute = path.expanduser().absolute()
    try:
        key = (absolute, group, absolute.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", key="fabric.inventory") from error
    if key not in _known:
        entries = read_inventory(absolute, group)
        with SshLinks(linux_targets(entries)) as links:
            _known[key] = Survey(absolute, entries, look(links, entries))
    return _known[key]


def linux_targets(entries: Iterable[HostEntry]) -> dict[str, SshTarget]:
    """How to reach each node that our programs run on."""
    return {entry.name: entry.target for entry in entries if entry.is_linux}


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"host{'s' if len(names) > 1 else ''} {shown}" + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )
