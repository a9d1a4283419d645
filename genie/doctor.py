"""What this machine can do for GENIE, and what to do about what it cannot. ``genie doctor`` prints it.

Each `Finding` answers one question with a fact read from this machine; a "no" always says what would change it, and
whom it concerns. Changes nothing (kernel features are tried in a namespace that ends with the question), imports
none of the heavy packages it asks about, takes well under a second.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit
from genie.fabric.probe import Probe, probe
from genie.rdma.discovery import HOW_TO_GET_PYVERBS, SYSFS, find_pyverbs, sysfs_devices
from genie.rdma.model import ACTIVE, ETHERNET, RdmaDevice, RdmaPort, nccl_gid_index
from genie.transport import TRANSPORTS, RankPlace
from genie.transport.built import PACKAGES, refuse_missing, refuse_unfit_hosts
from genie.units import format_rate

_GOOD_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen", "s390-tod", "timebase"}
_MEMLOCK_BYTES = 64 << 20
_OPEN_FILES = 4096
SOFT_ROCE = "without hardware: modprobe rdma_rxe, rdma link add rxe0 type rxe netdev IF (or make lab)"
_ADMIN_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"

_QDISCS = (
    ("tbf", "shapes every port of the embedded fabric", "load the module: modprobe sch_tbf"),
    ("clsact", "holds the marking program", "load the module: modprobe sch_ingress"),
    ("red", "marks ECN, for root and others alike", "load the module (Debian and Ubuntu have it): modprobe sch_red"),
    ("netem", "delays packets, for latency faults", "load the module (Debian and Ubuntu have it): modprobe sch_netem"),
    ("htb", "limits classes of traffic; only some faults want it", "load the module: modprobe sch_htb"),
)

_BINARIES = (
    ("genie-agent", "runs the ranks"),
    ("genie-port", "reads and marks ports"),
    ("genie-warden", "opens and ends faults in time, and takes them back if nobody else does"),
    ("genie-load", "sends another tenant's traffic"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``detail`` is the fact, ``remedy`` what to do about a no ("" if there is nothing to do)."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _find_program(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_ADMIN_FOLDERS}") or ""


def _examine_namespaces(found: Probe) -> Iterator[Finding]:
    if found.unfit:
        yield Finding("private networks", False, found.unfit, found.remedy)
        return
    how = "rootless, through a user namespace" if found.user_namespace else "as root"
    yield Finding("private networks", True, "; ".join([how, *found.notes]))


def _examine_kernel(found: Probe) -> Iterator[Finding]:
    for kind, purpose, remedy in _QDISCS:
        has = found.has(kind)
        yield Finding(
            f"qdisc {kind}", has, purpose if has else f"{_why(found, kind)} ({purpose})", "" if has else remedy
        )
    delays = found.has("detour")
    remedy = "" if delays else "load what the command lacks: modprobe -a ifb cls_matchall act_mirred sch_netem"
    detail = "latency faults delay what arrives, beside the port's own queue" if delays else _why(found, "detour")
    yield Finding("delay on arrival", delays, detail, remedy)
    has_nft = found.has("nft")
    remedy = "" if has_nft else "apt-get install nftables; kernel with CONFIG_NF_TABLES_NETDEV"
    purpose = "loses packets, drops, marks and sorts them, for faults of links and hosts"
    yield Finding("nft rules", has_nft, purpose if has_nft else f"{_why(found, 'nft')} ({purpose})", remedy)
    has_bpf = found.has("bpf")
    remedy = "" if has_bpf else "run as root, with genie-port built; not needed where qdisc red is there"
    yield Finding("tc-BPF marking", has_bpf, "marks ECN without sch_red" if has_bpf else _why(found, "bpf"), remedy)
    marks = found.has("red") or has_bpf
    detail = "ports can mark, so ECN faults work" if marks else "ports cannot mark, so ECN faults are refused"
    yield Finding("ECN marking", marks, detail, "" if marks else "run as root, or on a kernel with sch_red")


def _why(found: Probe, feature: str) -> str:
    return found.missing.get(feature) or "not tried, since there are no private networks"


def _examine_network() -> Iterator[Finding]:
    for program in ("ip", "tc"):
        path = _find_program(program)
        yield Finding(f"program {program}", bool(path), path or "not found", "" if path else "apt-get install iproute2")
    controls = _read("/proc/sys/net/ipv4/tcp_available_congestion_control").split()
    default = _read("/proc/sys/net/ipv4/tcp_congestion_control")
    hears_ecn = [name for name in ("cubic", "reno", "dctcp") if name in controls]
    yield Finding(
        "congestion control",
        "cubic" in controls,
        f"{' '.join(controls) or 'unknown'}; default {default or 'unknown'}, which fabrics do not use"
        if default not in hears_ecn
        else f"{' '.join(controls)}; default {default}",
        "" if "cubic" in controls else "modprobe tcp_cubic, or fabric.congestion=reno; bbr ignores ECN",
    )
    seed = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists()
    yield Finding(
        "repeatable paths",
        seed,
        "flows take the same ECMP paths in every run" if seed else "no fib_multipath_hash_seed: paths differ by run",
        "" if seed else "kernel 6.11 or newer; until then compare several runs",
    )
    steering = Path("/proc/sys/net/core/rps_default_mask").exists()
    yield Finding(
        "packet order",
        steering,
        "flows are steered to one CPU" if steering else "no rps_default_mask: veth can reorder packets under load",
        "" if steering else "kernel 6.3 or newer; until then distrust retransmits on idle links",
    )


def _examine_rdma(sysfs: Path = SYSFS) -> Iterator[Finding]:
    """What transports that speak verbs or libfabric would find here. Without any of it transport=tcp runs as ever."""
    verbs = sysfs.with_name("infiniband_verbs").is_dir()
    yield Finding(
        "RDMA in the kernel",
        verbs,
        "programs can ask for verbs" if verbs else "no ib_uverbs: no program can ask for verbs",
        "" if verbs else f"only transport=verbs needs it: modprobe ib_uverbs; {SOFT_ROCE}",
    )
    devices = sysfs_devices(sysfs)
    active = [(device, port) for device in devices for port in device.ports if port.state == ACTIVE]
    yield Finding(
        "RDMA devices",
        bool(active),
        "; ".join(_device_text(device) for device in devices) or "none",
        "" if active else "bring its interface up (ip link set IF up)" if devices else SOFT_ROCE,
    )
    routed = bool(active) and all(port.is_routed for _, port in active)
    yield Finding(
        "RDMA addresses",
        routed,
        "; ".join(_address_text(device.name, port) for device, port in active) or "no port that is active",
        "" if routed else "give each port's interface an IPv4 address (ip address add), or say transport.gid_index",
    )
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    enough = hard == resource.RLIM_INFINITY or hard >= _MEMLOCK_BYTES or os.geteuid() == 0
    yield Finding(
        "locked memory",
        enough,
        f"limit of bytes: {_limit(hard)}" + (", which root may raise" if os.geteuid() == 0 else ""),
        "" if enough else "only RDMA needs it: 'memlock unlimited' in /etc/security/limits.conf",
    )
    yield from _examine_rdma_software()


def _examine_rdma_software() -> Iterator[Finding]:
    for library, purpose, package in (
        ("libibverbs.so.1", "transport=verbs loads it", "libibverbs1 ibverbs-providers"),
        ("libfabric.so.1", "transport=ofi loads it", "libfabric1"),
    ):
        problem = _load(library)
        remedy = f"apt-get install {package}" if problem else ""
        yield Finding(f"library {library}", not problem, problem or purpose, remedy)
    for transport, purpose in (
        ("verbs", "runs ranks on RDMA and libfabric"),
        ("gloo", "runs ranks of transport=gloo"),
    ):
        program = TRANSPORTS[transport][0].agent
        try:
            yield Finding(f"program {program}", True, f"{purpose}: {find_binary(program)}")
        except EnvironmentUnfit as error:
            package = PACKAGES[transport]
            hint = f"apt-get install {package}, then build GENIE again (scripts/setup)"
            yield Finding(f"program {program}", False, f"{error.message} ({purpose})", hint)
    pyverbs = find_pyverbs()
    yield Finding(
        "pyverbs",
        bool(pyverbs),
        pyverbs or "not found: MTUs and limits of devices are not read",
        "" if pyverbs else f"optional: {HOW_TO_GET_PYVERBS}",
    )
    tools = [name for name in ("ib_write_bw", "ib_write_lat") if _find_program(name)]
    yield Finding(
        "perftest",
        len(tools) == 2,
        "genie preflight measures RDMA with it" if len(tools) == 2 else f"found {', '.join(tools) or 'none of it'}",
        "" if len(tools) == 2 else "optional, genie preflight then uses GENIE's engine: apt-get install perftest",
    )


def _examine_transports() -> Iterator[Finding]:
    """What ``fabric=loopback`` with each transport's defaults would be told here, in the plan's own words."""
    for name, (kind, purpose) in TRANSPORTS.items():
        transport = kind()
        try:
            refuse_missing(transport)
            refuse_unfit_hosts(transport, [RankPlace(0, "here")], lambda _: "127.0.0.1", None)
        except EnvironmentUnfit as error:
            yield Finding(f"transport={name}", False, error.message, error.hint)
        else:
            yield Finding(f"transport={name}", True, purpose)


def _device_text(device: RdmaDevice) -> str:
    ports = [
        f"port {port.number} {port.state.lower()}, {port.link_layer}"
        + (f", {format_rate(port.rate_bps)}" if port.rate_bps else "")
        for port in device.ports
    ]
    return f"{device.name}{f' ({device.driver})' if device.driver else ''}: {', '.join(ports) or 'no port'}"


def _address_text(device: str, port: RdmaPort) -> str:
    gid = next((gid for gid in port.gids if gid.index == port.chosen.index), None)
    shown = f"GID {port.chosen.index} ({gid.type} {gid.text})" if gid else f"GID {port.chosen.index}"
    text = f"{device} port {port.number}: {shown}: {port.chosen.why}"
    nccl = nccl_gid_index(port.gids)
    if port.link_layer == ETHERNET and port.gids and nccl != port.chosen.index:
        text += f"; NCCL would take GID {nccl}"
    return text


def _load(library: str) -> str:
    """Why a shared library cannot be loaded, in a sentence part; "" if it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return "not found" if "No such file" in str(error) else str(error)
    return ""


def _examine_programs() -> Iterator[Finding]:
    for binary, purpose in _BINARIES:
        try:
            yield Finding(f"program {binary}", True, f"{purpose}: {find_binary(binary)}")
        except EnvironmentUnfit as error:
            yield Finding(f"program {binary}", False, f"{error.message} ({purpose})", error.hint)
    clang = _find_program("clang")
    yield Finding(
        "BPF compiler",
        bool(clang),
        clang or "no clang: the marking program that came with GENIE is used",
        "" if clang else "only needed to change native/bpf/marker.c: apt-get install clang",
    )
    version, runner = _version("ansible-core"), _version("ansible-runner")
    yield Finding(
        "Ansible",
        bool(version and runner),  # as packages of this interpreter; the installed scripts are not used
        f"makes and takes back faults: core {version or 'missing'}, runner {runner or 'missing'}",
        "" if version and runner else "faults need it: pip install ansible-core ansible-runner",
    )
    client = _find_program("ssh")
    yield Finding(
        "program ssh",
        bool(client),
        f"reaches the hosts of an inventory: {client or 'not found'}",
        "" if client else "only fabric=inventory and faults on real hosts need it: apt-get install openssh-client",
    )
    mlflow = _version("mlflow-skinny") or _version("mlflow")
    server = _version("mlflow")
    yield Finding(
        "MLflow",
        bool(mlflow),
        f"{mlflow}, {'with' if server else 'without'} its web pages" if mlflow else "not installed",
        "" if mlflow else "runs are kept in their folders all the same; to log them: pip install mlflow-skinny",
    )


def _examine_machine() -> Iterator[Finding]:
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    resolution_ns = round(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9)
    good = source in _GOOD_CLOCKS and resolution_ns <= 1_000
    remedy = (
        ""
        if good
        else "each look at this clock is slow or coarse: boot with clocksource=tsc, if the CPU has a stable one"
    )
    yield Finding("clock", good, f"{source}, resolution {resolution_ns} ns", remedy)
    cores = len(os.sched_getaffinity(0))
    remedy = "" if cores >= 2 else "give it two: with one, ranks and the emulated network wait for each other"
    yield Finding("cores", cores >= 2, f"{cores} usable", remedy)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding(
        "open files",
        hard >= _OPEN_FILES or hard == resource.RLIM_INFINITY,
        f"limit {_limit(soft)}, can be raised to {_limit(hard)}",
        "" if hard >= _OPEN_FILES or hard == resource.RLIM_INFINITY else "ulimit -Hn 65536: a rank has a socket a peer",
    )


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def examine() -> list[Finding]:
    """Every question and its answer, most important first."""
    found = probe()
    return [
        *_examine_namespaces(found),
        *_examine_kernel(found),
        *_examine_network(),
        *_examine_rdma(),
        *_examine_transports(),
        *_examine_programs(),
        *_examine_machine(),
    ]


def render(findings: Sequence[Finding]) -> str:
    """Plain text, one line a finding and one more for what to do about a no."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{'yes' if finding.ok else 'no ':<4} {finding.name:<{width}}  {finding.detail}")
        if not finding.ok and finding.remedy:
            lines.append(f"{'':<4} {'':<{width}}  → {finding.remedy}")
    return "\n".join(lines)
