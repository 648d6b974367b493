"""``kvbus/dynamo.py``: recordings of Dynamo's KvRecorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbus.audit import audit
from kvbus.dialects import DialectReader
from kvbus.dynamo import is_recording_line, read_recording
from kvbus.errors import CaptureError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Unrecognized
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId


def line(
    data: Any, *, worker: int = 7, event_id: int = 0, rank: int = 0, at_ms: int = 0, **routed: Any
) -> str:
    """A line of a recording."""
    event = {"event_id": event_id, "data": data, "dp_rank": rank}
    return json.dumps({"timestamp": at_ms, "event": {"worker_id": worker, "event": event, **routed}}) + "\n"


def stored(*hashes: int, parent: int | None = None) -> dict[str, Any]:
    blocks = [{"block_hash": h, "tokens_hash": (h + 1) % 2**64 or 10, "mm_extra_info": None} for h in hashes]
    return {"stored": {"parent_hash": parent, "start_position": 3, "blocks": blocks}}


def removed(*hashes: int) -> dict[str, Any]:
    return {"removed": {"block_hashes": list(hashes)}}


def recording(folder: Path, *lines: str) -> Path:
    path = folder / "rec.jsonl"
    path.write_text("".join(lines))
    return path


def events(path: Path) -> list[Event]:
    found: list[Event] = []
    for entry in read_recording(path, source="rec"):
        if isinstance(entry, Received):
            assert isinstance(entry.batch, EventBatch)
            found += entry.batch.events
    return found


def test_router_events_become_facts(tmp_path: Path) -> None:
    """A stored, a removed and a cleared router event are read with their hashes, parent and tier."""
    path = recording(
        tmp_path,
        line(stored(2**64 - 1, 5, parent=9), event_id=4),
        line(removed(5), storage_tier="host_pinned"),
        line("cleared"),
    )
    one, two, three = events(path)
    assert isinstance(one, BlockStored)
    assert (one.block_hashes, one.parent_block_hash, one.medium) == ([2**64 - 1, 5], 9, "GPU")
    assert one.extra is not None
    assert one.extra["tokens_hashes"] == [10, 6]
    assert (one.extra["event_id"], one.extra["start_position"], one.extra["storage_tier"]) == (4, 3, "device")
    assert isinstance(two, BlockRemoved)
    assert (two.block_hashes, two.medium) == ([5], "CPU_PINNED")
    assert isinstance(three, AllBlocksCleared)


def test_payloads_say_the_same_again(tmp_path: Path) -> None:
    """The payload that is kept reads, by any reader, as the batch that stands beside it."""
    path = recording(tmp_path, line(stored(1, 2)), line(removed(1)), line({"moved": {"x": 1}}))
    for entry in read_recording(path, source="rec"):
        if isinstance(entry, Received):
            assert DialectReader().read(entry.payload) == entry.batch


def test_an_unknown_kind_is_kept_under_its_tag(tmp_path: Path) -> None:
    """A router event that kvbus does not know is not lost and does not stop the reading."""
    moved, last = events(recording(tmp_path, line({"moved": {"to": 3}}), line(removed(1))))
    assert isinstance(moved, Unrecognized)
    assert moved.tag == "moved"
    assert b"to" in bytes(moved.raw)
    assert isinstance(last, BlockRemoved)


def test_each_worker_and_rank_is_a_stream_of_its_own(tmp_path: Path) -> None:
    """Streams are numbered from 1 without holes, each after the loss that says it cannot be complete."""
    path = recording(
        tmp_path,
        line(stored(1), worker=1, at_ms=10),
        line(stored(2), worker=2, at_ms=20),
        line(stored(3), worker=1, rank=1, at_ms=30),
        line(removed(1), worker=1, at_ms=40),
    )
    by_stream: dict[SourceId, list[Any]] = {}
    for entry in read_recording(path, source="rec"):
        by_stream.setdefault(entry.source, []).append(entry)
    first = by_stream[SourceId("rec/worker-1", b"", 0)]
    assert set(by_stream) == {SourceId(f"rec/worker-{w}", b"", r) for w, r in ((1, 0), (2, 0), (1, 1))}
    assert [type(entry) for entry in first] == [EpochBegan, Loss, Received, Received]
    assert (first[1].first_seq, first[1].last_seq, first[1].reason) == (0, 0, "unsequenced")
    assert [(entry.seq, entry.received_ns) for entry in first[2:]] == [(1, 10_000_000), (2, 40_000_000)]


def test_no_rule_says_holds_of_a_recording(tmp_path: Path) -> None:
    """However tidy a recording looks, numbers and counts are UNKNOWN, and so is the whole."""
    path = recording(
        tmp_path, line(stored(1), event_id=0), line(removed(1), event_id=1), line(removed(8), event_id=2)
    )
    entries = [PositionedEntry(0, entry) for entry in read_recording(path, source="rec")]
    report = audit(entries, ["sequence", "beginning", "refcount"])
    assert [rule.verdict for rule in report.rules] == ["UNKNOWN", "UNKNOWN", "UNKNOWN"]
    assert audit(entries).verdict == "UNKNOWN"


TORN = '{"timestamp": 1, "event": {"worker'
DEEP = f'{{"timestamp": 1, "event": {{"worker_id": 1, "z": {"[" * 5000}{"]" * 5000}}}}}'


@pytest.mark.parametrize(
    "bad", [TORN, DEEP, '{"timestamp": 1, "event": {}}', "[]", "\xff", line(removed(2**64))]
)
def test_a_bad_line_is_named_by_its_byte(bad: str, tmp_path: Path) -> None:
    """A torn or foreign line raises an error that says where it begins, after the lines before it."""
    good = line(stored(1))
    path = recording(tmp_path, good, bad)
    entries = read_recording(path, source="rec")
    assert [type(next(entries)) for _ in range(3)] == [EpochBegan, Loss, Received]
    with pytest.raises(CaptureError, match=f"the line at byte {len(good)} is torn"):
        next(entries)


def test_recordings_are_told_from_other_lines() -> None:
    """A recording's line has a timestamp and an event; kvbus's own lines and garbage do not pass for one."""
    assert is_recording_line(line("cleared").encode())
    assert not is_recording_line(b'{"type":"Received","seq":1}')
    assert not is_recording_line(b"{")
    assert not is_recording_line(b"\xff\xfe")
