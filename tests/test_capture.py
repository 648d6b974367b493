"""``kvbus/capture.py``: .frames files."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.capture import (
    FRAME_BYTES_MAX,
    NS_MAX,
    CaptureWriter,
    Record,
    is_capture_head,
    read_capture,
    read_records,
)
from kvbus.errors import CaptureError

RECORDS = st.lists(
    st.builds(
        Record,
        received_ns=st.integers(0, NS_MAX),
        frames=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    ),
    max_size=8,
)


def encoded(records: list[Record]) -> bytes:
    out = b""
    for record in records:
        out += record.received_ns.to_bytes(8, "big") + bytes([len(record.frames)])
        for frame in record.frames:
            out += len(frame).to_bytes(4, "big") + frame
    return out


@given(RECORDS)
def test_what_is_written_is_read_again(records: list[Record]) -> None:
    """A capture gives back every frame and time it was given, and the bytes follow the drawn layout."""
    assert list(read_records(io.BytesIO(encoded(records)), name="x")) == records


@given(RECORDS.filter(bool), st.data())
def test_a_torn_file_names_the_byte_of_its_torn_record(records: list[Record], data: st.DataObject) -> None:
    """Cut anywhere, a capture yields its whole records and then names where the torn one begins."""
    whole = encoded(records)
    cut = data.draw(st.integers(0, len(whole) - 1))
    starts = [len(encoded(records[:n])) for n in range(len(records) + 1)]
    reading = read_records(io.BytesIO(whole[:cut]), name="x")
    if cut in starts:
        assert list(reading) == records[: starts.index(cut)]
        return
    torn = sum(start <= cut for start in starts) - 1
    assert [next(reading) for _ in range(torn)] == records[:torn]
    with pytest.raises(CaptureError) as caught:
        next(reading)
    assert f"x: the record at byte {starts[torn]} is torn" in caught.value.problem


def test_a_huge_claimed_length_costs_no_memory() -> None:
    """A length field that promises much is refused, or read only as far as bytes are there."""
    claim = bytes(8) + b"\x01" + FRAME_BYTES_MAX.to_bytes(4, "big") + b"abc"
    tracemalloc.start()
    try:
        with pytest.raises(CaptureError, match=r"ends after 3 of"):
            list(read_records(io.BytesIO(claim), name="x"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(CaptureError, match="length field"):
        list(read_records(io.BytesIO(bytes(8) + b"\x01" + b"\xff" * 4), name="x"))


def test_a_real_capture_is_read_whole_and_written_byte_for_byte(captures: Path, tmp_path: Path) -> None:
    """Reading a real engine's capture and writing it again gives the same file."""
    original = captures / "vllm011_gpu_int.frames"
    with CaptureWriter(tmp_path / "again.frames") as writer:
        for record in read_capture(original):
            writer.write(record.received_ns, record.frames)
    assert (tmp_path / "again.frames").read_bytes() == original.read_bytes()


def test_the_writer_never_overwrites(tmp_path: Path) -> None:
    """A capture that exists is not written over."""
    (tmp_path / "kept.frames").write_bytes(b"precious")
    with pytest.raises(CaptureError, match="exists already"):
        CaptureWriter(tmp_path / "kept.frames")
    assert (tmp_path / "kept.frames").read_bytes() == b"precious"


@pytest.mark.parametrize("frames", [[], [b""] * 256])
def test_the_writer_refuses_what_the_format_cannot_hold(frames: list[bytes], tmp_path: Path) -> None:
    """A message without frames, or with more than a byte can count, is refused before anything is written."""
    with CaptureWriter(tmp_path / "x.frames") as writer, pytest.raises(CaptureError, match="cannot be kept"):
        writer.write(1, frames)
    assert (tmp_path / "x.frames").read_bytes() == b""


def test_a_missing_file_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    """A capture that is not there raises ``CaptureError``, not ``OSError``."""
    with pytest.raises(CaptureError) as caught:
        next(read_capture(tmp_path / "none.frames"))
    assert "none.frames" in caught.value.problem
    assert caught.value.next_step


def test_captures_are_told_from_text(captures: Path) -> None:
    """The first bytes of every capture look like one; JSON lines do not."""
    for path in captures.glob("*.frames"):
        head = path.read_bytes()[:64]
        assert not head or is_capture_head(head), path.name
    assert not is_capture_head(b'{"timestamp":1,"event":{}}')
    assert not is_capture_head(b"")


@pytest.mark.parametrize("received_ns", [1 << 63, (1 << 64) - 1])
def test_a_time_that_no_log_can_hold_is_no_record(received_ns: int) -> None:
    """A receive time beyond the year 2262 means that the file is not a capture."""
    data = received_ns.to_bytes(8, "big") + b"\x01\x00\x00\x00\x00"
    with pytest.raises(CaptureError, match="record at byte 0"):
        list(read_records(io.BytesIO(data), name="test"))


@pytest.mark.parametrize("received_ns", [-1, 1 << 63])
def test_the_writer_refuses_a_time_it_could_not_read_again(received_ns: int, tmp_path: Path) -> None:
    """What is written can be read: times are 0 to 2**63 - 1."""
    with CaptureWriter(tmp_path / "x.frames") as writer, pytest.raises(CaptureError, match="time"):
        writer.write(received_ns, [b"x"])
