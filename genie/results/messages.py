"""Send and receive records paired into messages: how long each took from "allowed" to "complete".

`genie.results.metrics` calls it with the records of all ranks on one clock. Pairing relies on TCP's order: on one
(sender, receiver, channel, iteration, call), the k-th message sent is the k-th received (docs/metrics.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.results.statistics import percentile


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Completion times in model ns. ``basis`` "receiver": from allowed at the sender to complete at the receiver, one
    clock; "sender": from allowed to handed to the transport, where clocks differ. ``unpaired`` records had no other
    half and are not in the numbers.
    """

    basis: str
    count: int
    unpaired: int
    p50_ns: float
    p90_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float


def message_times(
    sent: npt.NDArray[np.void], received: npt.NDArray[np.void], *, one_clock: bool, dilation: float
) -> MessageTimes | None:
    """Percentiles over all messages of ``sent`` and ``received``: arrays with the event fields and ``rank``.

    None where no message was recorded.
    """
    if one_clock:
        own, theirs, unpaired = paired(sent, received)
        durations = (theirs["t2_ns"] - own["t0_ns"]).astype(np.float64)
        basis = "receiver"
    else:
        durations, unpaired = (sent["t2_ns"] - sent["t0_ns"]).astype(np.float64), 0
        basis = "sender"
    if not len(durations):
        return None
    model = durations / dilation
    p50, p90, p99, p999 = (percentile(model, ratio) for ratio in (0.5, 0.9, 0.99, 0.999))
    return MessageTimes(basis, len(model), unpaired, p50, p90, p99, p999, float(model.max()))


def paired(
    sent: npt.NDArray[np.void], received: npt.NDArray[np.void]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], int]:
    """Both halves of each message, row by row, and how many records have no other half."""
    a = sent[_order(sent, "rank", "peer")]
    b = received[_order(received, "peer", "rank")]
    keys_a, keys_b = _keys(a, "rank", "peer"), _keys(b, "peer", "rank")
    if len(a) != len(b) or not np.array_equal(keys_a, keys_b):
        common, index_a, index_b = np.intersect1d(
            _packed(keys_a), _packed(keys_b), assume_unique=True, return_indices=True
        )
        unpaired = len(a) + len(b) - 2 * len(common)
        a, b = a[index_a], b[index_b]
    else:
        unpaired = 0
    return a, b, unpaired


def _order(records: npt.NDArray[np.void], sender: str, receiver: str) -> npt.NDArray[np.intp]:
    # lexsort takes its most significant key last
    return np.lexsort(
        (
            records["seq"],
            records["call_id"],
            records["iteration"],
            records["channel"],
            records[receiver],
            records[sender],
        )
    )


def _keys(records: npt.NDArray[np.void], sender: str, receiver: str) -> npt.NDArray[np.uint64]:
    """One row a record, (sender, receiver, channel, iteration, call, ordinal within those), records being in order."""
    columns = [records[name].astype(np.uint64) for name in (sender, receiver, "channel", "iteration", "call_id")]
    table = np.stack(columns, axis=1) if len(records) else np.zeros((0, 5), dtype=np.uint64)
    fresh = np.ones(len(records), dtype=bool)
    fresh[1:] = (table[1:] != table[:-1]).any(axis=1)
    starts = np.flatnonzero(fresh)
    ordinal = np.arange(len(records)) - np.repeat(starts, np.diff(np.append(starts, len(records))))
    return np.column_stack([table, ordinal.astype(np.uint64)])


def _packed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    contiguous = np.ascontiguousarray(keys.astype(">u8"))
    return contiguous.view(np.dtype((np.void, contiguous.dtype.itemsize * contiguous.shape[1]))).ravel()
