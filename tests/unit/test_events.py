"""Event files are read as far as they are committed, and refused by name when they are something else."""

from __future__ import annotations

import numpy as np
import pytest

from genie.engine import wire
from genie.engine.events import read_events
from genie.errors import GenieError


def write(path, records=5, committed=None, capacity=10, present=None, **fields):
    header = np.zeros(1, wire.EVENT_HEADER)
    values = {
        "magic": wire.EVENT_MAGIC, "version": 1, "record_bytes": 64, "rank": 3, "world": 8, "capacity": capacity,
        "committed": records if committed is None else committed, "state": 2, "ops_done": 77, "start_mono_ns": -5,
        **fields,
    }  # fmt: skip
    for name, value in values.items():
        header[name] = value
    rows = np.zeros(capacity if present is None else present, wire.EVENT)
    rows["type"][:records] = 1
    rows["type"][:1] = 4
    rows["t2_ns"] = np.arange(len(rows))
    path.write_bytes(header.tobytes() + rows.tobytes())
    return path


def test_only_committed_records_are_seen(tmp_path):
    events = read_events(write(tmp_path / "rank-3.evt"))
    assert (events.rank, events.world, events.committed, events.capacity) == (3, 8, 5, 10)
    assert (events.state, events.ops_done, events.start_mono_ns) == (wire.RankState.RUNNING, 77, -5)
    assert list(events.records["t2_ns"]) == [0, 1, 2, 3, 4]
    assert list(events.of(wire.EventType.ITERATION)["t2_ns"]) == [0]
    assert not events.truncated
    assert not events.records.flags.writeable


def test_a_file_cut_short_gives_what_is_there(tmp_path):
    path = write(tmp_path / "cut.evt", present=4)
    path.write_bytes(path.read_bytes()[:-10])
    events = read_events(path)
    assert (len(events.records), events.committed, events.truncated) == (3, 5, True)


def test_a_rank_that_wrote_nothing_has_no_records(tmp_path):
    assert len(read_events(write(tmp_path / "new.evt", records=0, state=0)).records) == 0


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"magic": b"GNIESMP1"}, "expected an event file"),
        ({"version": 2}, "event file of version 2 with records of 64 bytes, this is version 1 with 64"),
        ({"record_bytes": 32}, "records of 32 bytes"),
        ({"committed": 11}, "11 records committed, but there is room for 10"),
        ({"state": 9}, "unknown rank state 9"),
    ],
    ids=["magic", "version", "record size", "counter", "state"],
)
def test_what_is_no_event_file_is_refused_by_name(tmp_path, fields, complaint):
    path = write(tmp_path / "odd.evt", **fields)
    with pytest.raises(GenieError) as error:
        read_events(path)
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"GNIE", b"GNIEEVT1" + bytes(20)], ids=["empty", "short", "half a header"])
def test_less_than_a_header_is_refused(tmp_path, content):
    path = tmp_path / "short.evt"
    path.write_bytes(content)
    with pytest.raises(GenieError, match=r"short\.evt"):
        read_events(path)
