"""The contract of every sink: what went in comes out, in order, once, and can be gone on with."""

from __future__ import annotations

import math
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from kvbus.errors import LogError
from kvbus.log import Entry, EpochBegan, LastBatch, LogReader, Received, SourceId, Standing
from kvbus.sink import Sink
from sinks.duckdb import DuckDBLog
from sinks.duckdb import open_log as open_duckdb
from sinks.jsonl import JsonlLog
from sinks.jsonl import open_log as open_jsonl
from sinks.memory import MemoryLog
from tests.logs import (
    A,
    B,
    everything,
    expected,
    histories,
    in_short,
    numbered,
    of_capture,
    of_payload,
    received,
    removed,
    stored,
)


class Kind(Protocol):
    """A sort of sink, opened again and again on the same place."""

    def open(self) -> Sink: ...

    def read(self) -> LogReader: ...


class DuckDBKind:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.duckdb"

    def open(self) -> Sink:
        return DuckDBLog(self.path, flush_batches=3, flush_s=0.01)

    def read(self) -> LogReader:
        return open_duckdb(self.path)


class JsonlKind:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.jsonl"

    def open(self) -> Sink:
        return JsonlLog(self.path)

    def read(self) -> LogReader:
        return open_jsonl(self.path)


class MemoryKind:
    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.log = MemoryLog()

    def open(self) -> Sink:
        self.log = MemoryLog(self.log.durable)
        return self.log

    def read(self) -> LogReader:
        return MemoryLog(self.log.durable)


KINDS: dict[str, Callable[[Path], Kind]] = {"duckdb": DuckDBKind, "jsonl": JsonlKind, "memory": MemoryKind}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return KINDS[request.param](tmp_path)


def write(kind: Kind, entries: Sequence[Entry], *, at_once: int = 1000) -> None:
    with kind.open() as sink:
        for first in range(0, len(entries), at_once):
            sink.write(entries[first : first + at_once])


def read(kind: Kind, first: int = 0, last: int | None = None) -> list[tuple[int, Entry]]:
    reader = kind.read()
    try:
        return [(found.position, found.entry) for found in reader.entries(first, last)]
    finally:
        reader.close()


def standings(kind: Kind) -> dict[SourceId, Standing]:
    with kind.open() as sink:
        return dict(sink.standings())


def test_everything_comes_out_as_it_went_in(kind: Kind) -> None:
    """Batches, undecodable payloads, unknown events, losses, strays and epochs come out equal and in their
    places.
    """
    write(kind, everything())
    assert read(kind) == numbered(everything())


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_the_size_of_writes_does_not_show(kind: Kind, at_once: int) -> None:
    """Written one by one or together, the log is the same."""
    write(kind, everything(), at_once=at_once)
    assert read(kind) == numbered(everything())


@pytest.mark.parametrize("cut", [1, 3, 7, 12])
def test_reopening_resumes(kind: Kind, cut: int) -> None:
    """Closed and opened again at any place, the log goes on without a hole or a double."""
    write(kind, everything()[:cut])
    assert in_short(standings(kind)) == expected(everything()[:cut])
    write(kind, everything()[cut:])
    assert read(kind) == numbered(everything())
    assert in_short(standings(kind)) == expected(everything())


def test_positions_have_no_gap(kind: Kind, captures: Path) -> None:
    """Positions of a real stream are 0, 1, 2 … and its payloads are byte for byte those received."""
    entries = list(of_capture(captures / "vllm032_restart.frames"))
    write(kind, entries[:300])
    write(kind, entries[300:])
    found = read(kind)
    assert [position for position, _ in found] == list(range(len(entries)))
    assert [entry.payload for _, entry in found if isinstance(entry, Received)] == [
        e.payload for e in entries
    ]
    assert [entry for _, entry in found] == entries


def test_a_part_can_be_read(kind: Kind) -> None:
    """``entries(first, last)`` gives the batches of these positions and what stands before them."""
    write(kind, everything())
    whole = numbered(everything())
    reader = kind.read()
    count = reader.batch_count()
    reader.close()
    assert count == 8
    for first in range(count + 1):
        for last in range(first - 1, count + 1):
            assert read(kind, first, last) == [pair for pair in whole if first <= pair[0] <= last], (
                first,
                last,
            )
        assert read(kind, first) == [pair for pair in whole if first <= pair[0]]


def test_a_number_exists_once(kind: Kind) -> None:
    """A batch that is there, or before one that is, is refused with its whole write; the log stays usable."""
    with kind.open() as sink:
        sink.write([received(A, 5, stored(1))])
        for seq in (5, 4, 0):
            with pytest.raises(LogError, match="does not come after"):
                sink.write([received(B, seq, stored(1)), received(A, seq, stored(1))])
        sink.write([received(A, 6, removed(1)), received(B, 5, stored(1))])
    with kind.open() as sink, pytest.raises(LogError, match="next would be 7"):
        sink.write([received(A, 6, removed(1))])
    assert [position for position, _ in read(kind)] == [0, 1, 2]


def test_numbers_declared_lost_are_gone(kind: Kind) -> None:
    """After a loss its numbers can no longer come as batches."""
    write(kind, everything())
    with kind.open() as sink, pytest.raises(LogError):
        sink.write([received(A, 12, stored(1))])


def test_epochs_may_interleave(kind: Kind) -> None:
    """What is left of an old epoch may come after the new one began; each has its own numbers."""
    entries: list[Entry] = [
        received(A, 7, stored(1), epoch=0),
        EpochBegan(A, 1, "seq", "", 1),
        received(A, 0, stored(2), epoch=1),
        received(A, 8, removed(1), epoch=0),
        received(A, 1, removed(2), epoch=1),
    ]
    write(kind, entries, at_once=2)
    assert read(kind) == numbered(entries)
    standing = standings(kind)[A]
    assert (standing.epoch, standing.next_seq) == (1, 2)
    assert list(standing.recent) == [0, 1]


def test_standings_hold_what_a_restart_needs(kind: Kind) -> None:
    """A standing has the last timestamp and the last payloads, newest last, at most 256 of them."""
    entries = [received(A, seq, stored(seq)) for seq in range(300)]
    write(kind, entries)
    standing = standings(kind)[A]
    assert standing.last_ts == 1.5 + 299
    assert list(standing.recent) == list(range(300 - 256, 300))
    assert standing.recent[299] == entries[-1].payload
    assert standings(kind)[A] == standing


def test_standings_say_where_the_last_batch_is(kind: Kind) -> None:
    """Its position among those of all sources, its epoch, its times and socket; the last whose own time is a
    number, also where a new epoch has no batch yet."""
    entries: list[Entry] = [
        received(A, 0, ts=1.0),
        msgspec.structs.replace(received(A, 1, ts=1.0), replayed=True),
        of_payload(B, 0, msgspec.msgpack.encode([math.nan, [], 1])),
        of_payload(A, 2, b"\xc1 no msgpack at all"),
        of_payload(A, 3, msgspec.msgpack.encode([math.inf, [], 0])),
        EpochBegan(A, 1, "seq", "", 9),
    ]
    write(kind, entries)
    found = standings(kind)
    second = entries[1]
    assert isinstance(second, Received)
    assert found[A].last == LastBatch(1, 0, 2.0, second.received_ns, True)
    assert found[B].last is None


def test_recent_payloads_are_bounded_in_bytes(kind: Kind) -> None:
    """Of large payloads few are kept in mind, but always the last."""
    big = stored(*range(20_000))
    entries = [received(A, seq, big) for seq in range(4)]
    assert 1 << 20 < len(entries[0].payload) < 4 << 20
    write(kind, entries)
    recent = standings(kind)[A].recent
    assert 3 in recent
    assert sum(map(len, recent.values())) <= 4 << 20


def test_nothing_written_is_nothing(kind: Kind) -> None:
    """An empty log, and empty writes and flushes, are fine."""
    with kind.open() as sink:
        sink.write([])
        sink.flush()
        assert sink.standings() == {}
    assert read(kind) == []


def test_closing_twice_is_harmless_and_final(kind: Kind) -> None:
    """A closed sink can be closed again, and says so when written to."""
    sink = kind.open()
    sink.close()
    sink.close()
    with pytest.raises(LogError, match="closed"):
        sink.write([received(A, 0)])


def test_flushed_is_durable(kind: Kind) -> None:
    """What was flushed is there for a reader before the sink is closed."""
    with kind.open() as sink:
        sink.write(everything())
        sink.flush()
        assert read(kind) == numbered(everything())


def test_the_file_is_private(kind: Kind) -> None:
    """A log is for its owner alone, from its first moment; so is all beside it."""
    with kind.open() as sink:
        sink.write(everything())
        sink.flush()
        for path in _files(kind):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def _files(kind: Kind) -> Iterator[Path]:
    path = getattr(kind, "path", None)
    if isinstance(path, Path) and path.is_file():
        yield from path.parent.iterdir()


@pytest.mark.parametrize("name", sorted(KINDS))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(history=histories())
def test_any_history(name: str, history: list[Entry]) -> None:
    """Whatever comes in the right order comes out equal, and the standings follow from it."""
    with tempfile.TemporaryDirectory() as folder:
        kind = KINDS[name](Path(folder))
        half = len(history) // 2
        write(kind, history[:half], at_once=2)
        write(kind, history[half:])
        assert read(kind) == numbered(history)
        assert in_short(standings(kind)) == expected(history)
