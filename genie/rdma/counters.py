"""What an RDMA port has counted in hardware, and what it means: loss, retries, slow receivers, congestion.

The kernel shows them as files, with each driver's own names. `read_counters` takes them on this machine,
`counters_argv` and `parse_counters` on a host that only runs commands; `explain` sorts a difference of two readings
into kinds. Names are those of the kernel's drivers (drivers/infiniband/{hw,sw}); one that is not known here is traffic
or a limit. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from genie.errors import EnvironmentUnfit

SYSFS = Path("/sys/class/infiniband")

LOSS = "loss"
RETRY = "retry"
TIMEOUT = "timeout"
GIVEN_UP = "given up"
RNR = "receiver not ready"
CONGESTION = "congestion"
CORRUPT = "corrupt"
DROP = "drop"
ERROR = "error"
KINDS = (LOSS, RETRY, TIMEOUT, GIVEN_UP, RNR, CONGESTION, CORRUPT, DROP, ERROR)


@dataclass(frozen=True, slots=True)
class Meaning:
    """``kind`` is one of `KINDS`, ``text`` what was counted."""

    kind: str
    text: str


_MLX5 = {
    "out_of_sequence": Meaning(LOSS, "packets that came out of order: one before them was lost, or paths differ"),
    "packet_seq_err": Meaning(LOSS, "NAKs for a gap in sequence that this side received: what it sent was lost"),
    "implied_nak_seq_err": Meaning(LOSS, "an ACK beyond an outstanding read or atomic: its answer was lost"),
    "duplicate_request": Meaning(RETRY, "requests received a second time: the peer sent again"),
    "local_ack_timeout_err": Meaning(TIMEOUT, "no ACK came in time: packet or ACK lost, or the path is dead"),
    "rnr_nak_retry_err": Meaning(RNR, "RNR NAKs received: the peer had posted no receive"),
    "out_of_buffer": Meaning(RNR, "dropped here, since no receive was posted"),
    "np_cnp_sent": Meaning(CONGESTION, "congestion notifications sent: marked packets arrived here"),
    "np_ecn_marked_roce_packets": Meaning(CONGESTION, "packets that arrived with a congestion mark"),
    "rp_cnp_handled": Meaning(CONGESTION, "congestion notifications that slowed a sender here"),
    "rp_cnp_ignored": Meaning(CONGESTION, "congestion notifications that were ignored"),
    "rx_icrc_encapsulated": Meaning(CORRUPT, "packets whose invariant checksum was wrong"),
    "roce_adp_retrans": Meaning(RETRY, "adaptive retransmissions"),
    "roce_adp_retrans_to": Meaning(TIMEOUT, "timeouts of adaptive retransmission"),
    "roce_slow_restart": Meaning(CONGESTION, "slow restarts"),
    "roce_slow_restart_cnps": Meaning(CONGESTION, "notifications sent by slow restart"),
    "roce_slow_restart_trans": Meaning(CONGESTION, "times that slow restart changed its state"),
    "req_cqe_error": Meaning(ERROR, "requests that ended with an error"),
    "resp_cqe_error": Meaning(ERROR, "receives that ended with an error"),
    "req_remote_access_errors": Meaning(ERROR, "requests that the peer refused: key or address not allowed"),
    "req_remote_invalid_request": Meaning(ERROR, "requests that the peer found invalid"),
    "resp_remote_access_errors": Meaning(ERROR, "requests of the peer refused here: key or address not allowed"),
    "resp_local_length_error": Meaning(ERROR, "messages longer than the receive that was posted"),
}
_RXE = {
    "out_of_seq_request": Meaning(LOSS, "requests that came out of order: one before them was lost"),
    "rcvd_seq_err": Meaning(LOSS, "NAKs for a gap in sequence that this side received: what it sent was lost"),
    "duplicate_request": Meaning(RETRY, "requests received a second time: the peer sent again"),
    "completer_retry_err": Meaning(RETRY, "times that this side went back and sent again"),
    "retry_exceeded_err": Meaning(GIVEN_UP, "requests given up after retry_count retries"),
    "retry_rnr_exceeded_err": Meaning(GIVEN_UP, "requests given up after rnr_retry retries: a slow receiver"),
    "rcvd_rnr_err": Meaning(RNR, "RNR NAKs received: the peer had posted no receive"),
    "send_rnr_err": Meaning(RNR, "RNR NAKs sent: no receive was posted here"),
    "send_err": Meaning(ERROR, "packets that could not be sent at once: the interface's queue was full, or it is down"),
    "link_downed": Meaning(ERROR, "times that the link went down"),
}
_BNXT_RE = {
    "seq_err_naks_rcvd": Meaning(LOSS, "NAKs for a gap in sequence that this side received: what it sent was lost"),
    "oos_drop_count": Meaning(LOSS, "packets dropped here, since one before them was lost"),
    "res_oos_drop_count": Meaning(LOSS, "requests dropped here, since one before them was lost"),
    "missing_resp": Meaning(LOSS, "answers that were missing"),
    "to_retransmits": Meaning(TIMEOUT, "sent again, since no ACK came in time"),
    "dup_req": Meaning(RETRY, "requests received a second time: the peer sent again"),
    "max_retry_exceeded": Meaning(GIVEN_UP, "requests given up after retry_count retries"),
    "rnr_naks_rcvd": Meaning(RNR, "RNR NAKs received: the peer had posted no receive"),
    "rx_roce_discards": Meaning(DROP, "packets dropped on arrival, for lack of a buffer"),
    "tx_roce_discards": Meaning(DROP, "packets dropped before they were sent"),
    "rx_roce_errors": Meaning(ERROR, "packets that arrived broken"),
    "tx_roce_errors": Meaning(ERROR, "packets that could not be sent"),
    "rx_ecn_marked_pkts": Meaning(CONGESTION, "packets that arrived with a congestion mark"),
    "rx_cnp_pkts": Meaning(CONGESTION, "congestion notifications received"),
    "tx_cnp_pkts": Meaning(CONGESTION, "congestion notifications sent"),
    "remote_access_err": Meaning(ERROR, "requests that the peer refused: key or address not allowed"),
    "remote_invalid_req_err": Meaning(ERROR, "requests that the peer found invalid"),
    "unrecoverable_err": Meaning(ERROR, "errors that ended a queue pair"),
    "recoverable_errors": Meaning(ERROR, "errors that were recovered from"),
}
_IRDMA = {
    "RetransSegs": Meaning(RETRY, "packets sent again"),
    "tcpRetransSegs": Meaning(RETRY, "segments sent again (iWARP)"),
    "cnpSent": Meaning(CONGESTION, "congestion notifications sent"),
    "cnpHandled": Meaning(CONGESTION, "congestion notifications that slowed a sender here"),
    "cnpIgnored": Meaning(CONGESTION, "congestion notifications that were ignored"),
    "RxECNMrkd": Meaning(CONGESTION, "packets that arrived with a congestion mark"),
    "ip4InDiscards": Meaning(DROP, "IPv4 packets dropped on arrival"),
    "ip6InDiscards": Meaning(DROP, "IPv6 packets dropped on arrival"),
    "ip4InTruncatedPkts": Meaning(CORRUPT, "IPv4 packets that were cut short"),
    "ip6InTruncatedPkts": Meaning(CORRUPT, "IPv6 packets that were cut short"),
    "ip4OutNoRoutes": Meaning(ERROR, "IPv4 packets without a route"),
    "ip6OutNoRoutes": Meaning(ERROR, "IPv6 packets without a route"),
    "rxVlanErrors": Meaning(ERROR, "packets with an unknown VLAN"),
}
_EFA = {
    "retrans_pkts": Meaning(RETRY, "packets sent again"),
    "retrans_bytes": Meaning(RETRY, "bytes sent again"),
    "retrans_timeout_events": Meaning(TIMEOUT, "times that no answer came in time, so that another path was tried"),
    "unresponsive_remote_events": Meaning(GIVEN_UP, "times that a peer did not answer"),
    "impaired_remote_conn_events": Meaning(LOSS, "times that a connection was found impaired"),
    "rx_drops": Meaning(DROP, "packets dropped on arrival"),
    "rdma_read_wr_err": Meaning(ERROR, "reads that ended with an error"),
    "rdma_write_wr_err": Meaning(ERROR, "writes that ended with an error"),
}
DRIVERS: Mapping[str, Mapping[str, Meaning]] = {
    "rxe": _RXE, "mlx5": _MLX5, "irdma": _IRDMA, "bnxt_re": _BNXT_RE, "efa": _EFA,
}  # fmt: skip
"""Driver → counter → what it means."""

_OF_MODULE = {
    "mlx5_core": "mlx5", "mlx5_ib": "mlx5", "irdma": "irdma", "ice": "irdma", "i40e": "irdma", "bnxt_en": "bnxt_re",
    "bnxt_re": "bnxt_re", "efa": "efa",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    """One counter that has a meaning here."""

    name: str
    value: int
    kind: str
    text: str


def driver_of(device: str, sysfs: Path = SYSFS) -> str:
    """The driver's name in `DRIVERS`; "" where it is none of them. Soft-RoCE has no hardware behind it."""
    folder = sysfs / device / "device"
    if (folder / "driver").exists():
        return _OF_MODULE.get((folder / "driver").resolve().name, "")
    return "rxe" if any((sysfs / device).glob("ports/*/hw_counters/completer_retry_err")) else ""


def driver_by_names(names: Iterable[str]) -> str:
    """The driver, by what its counters are called: for hosts that only show those. "" where none is known."""
    own = set(names)
    best = max(DRIVERS, key=lambda driver: len(own & DRIVERS[driver].keys()))
    return best if own & DRIVERS[best].keys() else ""


def read_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """All hardware counters of a port, by the driver's names; one that the driver refuses to read is not in it.

    Raises EnvironmentUnfit if there is no such port, or it has none.
    """
    folder = sysfs / device / "ports" / str(port) / "hw_counters"
    if not folder.is_dir():
        known = ", ".join(sorted(entry.name for entry in sysfs.glob("*"))) or "none"
        raise EnvironmentUnfit(
            f"port {port} of RDMA device {device!r} has no hardware counters: no {folder}",
            hint=f"devices here: {known}",
        )
    found: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and path.name != "lifespan":
            found[path.name] = int(text)
    return found


def counters_argv(device: str, port: int = 1) -> list[str]:
    """The command that shows a port's counters on any Linux host, for `parse_counters`."""
    return ["grep", "-rsH", ".", f"{SYSFS}/{device}/ports/{port}/hw_counters"]


def parse_counters(text: str) -> dict[str, int]:
    """The counters in what `counters_argv` printed: lines of path and value."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        path, colon, value = line.rpartition(":")
        name = path.rpartition("/")[2]
        if colon and value.strip().isdigit() and name != "lifespan":
            found[name] = int(value)
    return found


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What was counted in between, without what stood still. A counter that is only in one of them is left out."""
    return {name: after[name] - value for name, value in before.items() if name in after and after[name] != value}


def explain(counted: Mapping[str, int], driver: str) -> tuple[Count, ...]:
    """Those of ``counted`` that mean something, in the order of `KINDS`, the most first. ``driver`` as in `DRIVERS`."""
    meanings = DRIVERS.get(driver, {})
    found = [
        Count(name, value, meanings[name].kind, meanings[name].text)
        for name, value in counted.items()
        if value and name in meanings
    ]
    return tuple(sorted(found, key=lambda count: (KINDS.index(count.kind), -count.value, count.name)))
