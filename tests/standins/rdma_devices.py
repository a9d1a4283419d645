"""RDMA devices that are not there: the files that the kernel shows of them, and a pyverbs that tells the same.

A tree as ``/sys/class/infiniband`` has it (Linux 6.1: rxe, mlx5), for `genie.rdma` to read; and modules named pyverbs
with as much of its classes as GENIE asks of them (version 44), for `sys.modules`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path

RXE_COUNTERS = (
    "sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
    "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed",
    "rdma_sends", "rdma_recvs", "lifespan",
)  # fmt: skip
MLX5_COUNTERS = (
    "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "out_of_buffer", "out_of_sequence",
    "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err",
    "resp_local_length_error", "resp_cqe_error", "req_cqe_error", "req_remote_invalid_request",
    "req_remote_access_errors", "resp_remote_access_errors", "resp_cqe_flush_error", "req_cqe_flush_error",
    "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps",
    "roce_slow_restart_trans", "rp_cnp_ignored", "rp_cnp_handled", "np_ecn_marked_roce_packets", "np_cnp_sent",
    "rx_icrc_encapsulated", "lifespan",
)  # fmt: skip
LINK_LOCAL = "fe80::5054:ff:fe12:3456"


@dataclass
class Port:
    """``gids``: (address, type as sysfs says it, interface), by their place in the table; None leaves one empty. A
    partition key of 0 is an empty place.
    """

    gids: Sequence[tuple[str, str, str] | None]
    state: str = "4: ACTIVE"
    link_layer: str = "Ethernet"
    rate: str = "100 Gb/sec (4X EDR)"
    counters: Mapping[str, int] = field(default_factory=dict)
    mtu: int = 3
    pkeys: Sequence[int] = (0xFFFF,)


def four_gids(ipv4: str, interface: str) -> list[tuple[str, str, str]]:
    """The table that mlx5 makes of an interface with a link-local and an IPv4 address: v1 and v2 of each."""
    mapped = f"::ffff:{ipv4}"
    return [(LINK_LOCAL, "IB/RoCE v1", interface), (LINK_LOCAL, "RoCE v2", interface),
            (mapped, "IB/RoCE v1", interface), (mapped, "RoCE v2", interface)]  # fmt: skip


def add_device(root: Path, name: str, ports: Sequence[Port], *, module: str = "", firmware: str = "22.35.2000") -> None:
    """Its folder below ``root``. ``module`` "" is a software device: no hardware behind it."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "fw_ver").write_text(firmware + "\n")
    if module:
        drivers = root.parent / "drivers" / module
        drivers.mkdir(parents=True, exist_ok=True)
        (folder / "device").mkdir()
        (folder / "device" / "driver").symlink_to(drivers)
    for number, port in enumerate(ports, 1):
        place = folder / "ports" / str(number)
        for part in ("gids", "pkeys", "gid_attrs/types", "gid_attrs/ndevs", "hw_counters"):
            (place / part).mkdir(parents=True)
        for file, text in (("state", port.state), ("link_layer", port.link_layer), ("rate", port.rate)):
            (place / file).write_text(text + "\n")
        for index, key in enumerate(port.pkeys):
            (place / "pkeys" / str(index)).write_text(f"0x{key:04x}\n")
        for index, gid in enumerate(port.gids):
            address, kind, interface = gid or ("::", "", "")
            (place / "gids" / str(index)).write_text(IPv6Address(address).exploded + "\n")
            if gid:  # the kernel answers EINVAL for the attributes of an empty entry
                (place / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
                (place / "gid_attrs" / "ndevs" / str(index)).write_text(interface + "\n")
        names = RXE_COUNTERS if not module else MLX5_COUNTERS
        for counter in names:
            (place / "hw_counters" / counter).write_text(f"{port.counters.get(counter, 0)}\n")


def pyverbs(devices: Mapping[str, Sequence[Port]]) -> dict[str, types.ModuleType]:
    """Modules for `sys.modules` that tell of ``devices``."""

    class PyverbsError(Exception):
        pass

    class Context:
        def __init__(self, name: str) -> None:
            if name not in devices:
                raise PyverbsError(f"Failed to open device {name}")
            self._ports = devices[name]

        def __enter__(self) -> Context:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def query_device(self) -> types.SimpleNamespace:
            return types.SimpleNamespace(
                fw_version="22.35.2000", max_qp=1000, max_qp_wr=8192, max_cqe=1 << 20, max_mr=4096,
                phys_port_cnt=len(self._ports),
            )  # fmt: skip

        def query_port(self, number: int) -> types.SimpleNamespace:
            port = self._ports[number - 1]
            return types.SimpleNamespace(
                state=int(port.state.partition(":")[0]), link_layer=2 if port.link_layer == "Ethernet" else 1,
                active_mtu=port.mtu, active_speed=32, active_width=2,
            )  # fmt: skip

        def query_gid_table(self, most: int) -> list[types.SimpleNamespace]:
            return [
                types.SimpleNamespace(
                    gid_str=lambda address=address: IPv6Address(address).exploded, gid_index=index, port_num=number,
                    gid_type={"IB/RoCE v1": 1, "RoCE v2": 2}.get(kind, 0), ndev_ifindex=0,
                )
                for number, port in enumerate(self._ports, 1)
                for index, gid in enumerate(port.gids) if gid for address, kind, _ in [gid]
            ]  # fmt: skip

    package, device = types.ModuleType("pyverbs"), types.ModuleType("pyverbs.device")
    errors = types.ModuleType("pyverbs.pyverbs_error")
    package.__file__ = "/standins/pyverbs/__init__.py"
    names = [types.SimpleNamespace(name=name.encode()) for name in devices]
    vars(device).update(Context=Context, get_device_list=lambda: names)
    vars(errors).update(PyverbsError=PyverbsError)
    vars(package).update(device=device, pyverbs_error=errors)
    return {"pyverbs": package, "pyverbs.device": device, "pyverbs.pyverbs_error": errors}
