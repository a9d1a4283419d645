"""RDMA devices of this machine, by pyverbs where it is there, else by what the kernel shows in sysfs.

``genie doctor`` and ``genie preflight`` ask. pyverbs is imported when a device is asked and not before: from this
interpreter's own packages, or from the distribution's (Debian's and Ubuntu's ``python3-pyverbs``), whose extension
modules fit every CPython of the same version; ``sys.path`` stays as it is. Changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import socket
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from types import ModuleType
from typing import Any

from genie.errors import EnvironmentUnfit
from genie.rdma.counters import driver_of
from genie.rdma.model import ETHERNET, INFINIBAND, ROCE_V1, ROCE_V2, Gid, RdmaDevice, RdmaPort, pkeys_of

SYSFS = Path("/sys/class/infiniband")
SYSTEM_PACKAGES = (Path("/usr/lib/python3/dist-packages"), Path("/usr/lib64/python3/site-packages"))
HOW_TO_GET_PYVERBS = (
    "apt-get install python3-pyverbs (Debian and Ubuntu; it serves every CPython of the same version). "
    "PyPI has it as source only: it compiles rdma-core, and needs cmake, ninja, libnl-3-dev, libnl-route-3-dev, "
    "libudev-dev and PIP_CONSTRAINT naming a file with cython==3.0.12"
)
_RATE = re.compile(r"([\d.]+) Gb/sec")
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_LANE_BPS = {
    1: 2_500_000_000, 2: 5_000_000_000, 4: 10_000_000_000, 8: 10_000_000_000, 16: 14_000_000_000,
    32: 25_000_000_000, 64: 50_000_000_000, 128: 100_000_000_000, 256: 200_000_000_000,
}  # fmt: skip
"""Of ibv_port_attr's active_speed, as the kernel's sysfs rounds them: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR."""

_MOST_GIDS = 1024


def find_pyverbs(folders: Sequence[Path] = SYSTEM_PACKAGES) -> str:
    """Where pyverbs would be imported from; "" if nowhere. Imports nothing of it."""
    if "pyverbs" in sys.modules:
        return str(Path(sys.modules["pyverbs"].__file__ or "").parent)
    found = importlib.util.find_spec("pyverbs")
    if found is not None and found.origin:
        return str(Path(found.origin).parent)
    folder = _system_pyverbs(folders)
    return str(folder) if folder is not None else ""


def _system_pyverbs(folders: Sequence[Path]) -> Path | None:
    """The distribution's pyverbs, if its extension modules fit this interpreter."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for folder in folders:
        if (folder / "pyverbs" / "__init__.py").is_file() and (folder / "pyverbs" / f"device{suffix}").is_file():
            return folder / "pyverbs"
    return None


def import_pyverbs(folders: Sequence[Path] = SYSTEM_PACKAGES) -> ModuleType:
    """The package pyverbs. Raises EnvironmentUnfit with how to get it.

    The distribution's is loaded as a package of its own path, so nothing else of that folder comes in sight.
    """
    try:
        return importlib.import_module("pyverbs")
    except ImportError as missing:
        folder = _system_pyverbs(folders)
        if folder is None:
            raise EnvironmentUnfit("pyverbs is not installed", hint=HOW_TO_GET_PYVERBS) from missing
    spec = importlib.util.spec_from_file_location(
        "pyverbs", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise EnvironmentUnfit(f"pyverbs in {folder} cannot be loaded", hint=HOW_TO_GET_PYVERBS)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    try:
        spec.loader.exec_module(module)
        importlib.import_module("pyverbs.device")
    except ImportError as error:
        for name in [name for name in sys.modules if name == "pyverbs" or name.startswith("pyverbs.")]:
            del sys.modules[name]
        raise EnvironmentUnfit(f"pyverbs in {folder} cannot be loaded: {error}", hint=HOW_TO_GET_PYVERBS) from error
    return module


def local_devices(*, sysfs: Path = SYSFS) -> tuple[RdmaDevice, ...]:
    """Devices of this machine: by pyverbs, or without it by sysfs alone, which lacks MTUs and limits."""
    if not device_names(sysfs):
        return ()
    try:
        return pyverbs_devices(sysfs=sysfs)
    except EnvironmentUnfit:
        return sysfs_devices(sysfs)


def device_names(sysfs: Path = SYSFS) -> tuple[str, ...]:
    """Names of the kernel's RDMA devices, in order."""
    return tuple(sorted(entry.name for entry in sysfs.glob("*")))


# -- by pyverbs ---------------------------------------------------------------------------------------------------


def pyverbs_devices(*, sysfs: Path = SYSFS) -> tuple[RdmaDevice, ...]:
    """Devices as pyverbs knows them. Raises EnvironmentUnfit without pyverbs, or where a device cannot be opened."""
    import_pyverbs()
    device: Any = importlib.import_module("pyverbs.device")
    errors: Any = importlib.import_module("pyverbs.pyverbs_error")
    found = []
    try:
        for entry in device.get_device_list():
            name = entry.name.decode() if isinstance(entry.name, bytes) else str(entry.name)
            with device.Context(name=name) as context:
                found.append(_opened(name, context, sysfs))
    except errors.PyverbsError as error:
        raise EnvironmentUnfit(
            f"RDMA devices cannot be asked: {error}",
            hint="see ls -l /dev/infiniband: each device needs its uverbs file, open to this user (modprobe ib_uverbs)",
        ) from error
    return tuple(sorted(found, key=lambda one: one.name))


def _opened(name: str, context: Any, sysfs: Path) -> RdmaDevice:
    attributes = context.query_device()
    firmware = attributes.fw_version if hasattr(attributes, "fw_version") else attributes.fw_ver
    limits = {key: int(getattr(attributes, key)) for key in ("max_qp", "max_qp_wr", "max_cqe", "max_mr")}
    table = list(context.query_gid_table(_MOST_GIDS))
    ports = tuple(
        _queried(name, number, context.query_port(number), table, sysfs)
        for number in range(1, attributes.phys_port_cnt + 1)
    )
    return RdmaDevice(name, ports, driver_of(name, sysfs), _text(firmware), limits)


def _queried(device: str, number: int, attributes: Any, table: Sequence[Any], sysfs: Path) -> RdmaPort:
    gids = tuple(_entry(device, entry, sysfs) for entry in table if entry.port_num == number)
    return RdmaPort(
        number=number,
        state=_STATES.get(int(attributes.state), str(attributes.state)),
        link_layer=ETHERNET if int(attributes.link_layer) == 2 else INFINIBAND,
        gids=gids,
        active_mtu_bytes=_MTU_BYTES.get(int(attributes.active_mtu), 0),
        rate_bps=_LANE_BPS.get(int(attributes.active_speed), 0) * _WIDTHS.get(int(attributes.active_width), 0),
        pkeys=_sysfs_pkeys(sysfs / device / "ports" / str(number)),
    )


def _entry(device: str, entry: Any, sysfs: Path) -> Gid:
    kind = {0: INFINIBAND, 1: ROCE_V1}.get(int(entry.gid_type), ROCE_V2)
    index = int(entry.gid_index)
    text = entry.gid_str() if callable(entry.gid_str) else entry.gid_str
    return Gid(index, IPv6Address(_text(text)), kind, _interface(device, entry, index, sysfs))


def _interface(device: str, entry: Any, index: int, sysfs: Path) -> str:
    number = int(getattr(entry, "ndev_ifindex", 0))
    if number:
        try:
            return socket.if_indextoname(number)
        except OSError:  # an interface of another namespace
            return ""
    return _read(sysfs / device / "ports" / str(entry.port_num) / "gid_attrs" / "ndevs" / str(index))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -- by sysfs -----------------------------------------------------------------------------------------------------


def with_pkeys(devices: Sequence[RdmaDevice], sysfs: Path = SYSFS) -> tuple[RdmaDevice, ...]:
    """The devices with the partition keys of their ports, where whoever told of them left those out."""
    return tuple(
        replace(
            device,
            ports=tuple(
                replace(port, pkeys=port.pkeys or _sysfs_pkeys(sysfs / device.name / "ports" / str(port.number)))
                for port in device.ports
            ),
        )
        for device in devices
    )


def sysfs_devices(sysfs: Path = SYSFS) -> tuple[RdmaDevice, ...]:
    """Devices as the kernel shows them. Active MTUs and limits are not there, so they stay 0 and empty."""
    return tuple(
        RdmaDevice(name, tuple(_sysfs_ports(sysfs / name)), driver_of(name, sysfs), _read(sysfs / name / "fw_ver"))
        for name in device_names(sysfs)
    )


def _sysfs_ports(folder: Path) -> Iterator[RdmaPort]:
    numbers = sorted(int(entry.name) for entry in folder.glob("ports/*") if entry.name.isdigit())
    for number in numbers:
        port = folder / "ports" / str(number)
        rate = _RATE.match(_read(port / "rate"))
        layer = _read(port / "link_layer") or INFINIBAND
        yield RdmaPort(
            number=number,
            state=_read(port / "state").partition(": ")[2],
            link_layer=layer,
            gids=tuple(_sysfs_gids(port, layer)),
            rate_bps=round(float(rate.group(1)) * 1e9) if rate else 0,
            pkeys=_sysfs_pkeys(port),
        )


def _sysfs_gids(port: Path, layer: str) -> Iterator[Gid]:
    for index in sorted(int(entry.name) for entry in port.glob("gids/*") if entry.name.isdigit()):
        try:
            address = IPv6Address(_read(port / "gids" / str(index)))
        except AddressValueError:  # an entry that went away between the listing and the reading
            continue
        if not int(address):
            continue
        kind = ROCE_V2 if _read(port / "gid_attrs" / "types" / str(index)) == ROCE_V2 else ROCE_V1
        interface = _read(port / "gid_attrs" / "ndevs" / str(index))
        yield Gid(index, address, INFINIBAND if layer == INFINIBAND else kind, interface)


def _sysfs_pkeys(port: Path) -> dict[int, int]:
    return pkeys_of({int(entry.name): _read(entry) for entry in port.glob("pkeys/*") if entry.name.isdigit()})


def _read(path: Path) -> str:
    """The text of a file of sysfs; "" where the kernel refuses it, as it does for unused entries."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
