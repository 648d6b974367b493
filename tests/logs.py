"""Entries to fill logs with: real streams, and small made ones of every kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hypothesis import strategies as st

from kvbus.capture import read_capture
from kvbus.dialects import DialectReader, encode
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KnownEvent,
    tokens,
)
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Standing, Stray
from sinks.duckdb import DuckDBReader
from sinks.session import Session

A = SourceId("tcp://127.0.0.1:5557", b"kv@a", 0)
B = SourceId("tcp://127.0.0.1:5557", b"kv@b", 1)
BYTES = SourceId("ipc:///tmp/e", b"\xff\x00kv", -1, 2)


def received(
    source: SourceId, seq: int, *events: KnownEvent, epoch: int = 0, ts: float = 1.5, form: str = "map"
) -> Received:
    """A batch as an engine would have sent it."""
    rank = source.rank if source.rank >= 0 else None
    payload = encode(events, ts=ts + seq, rank=rank, form="array" if form == "array" else "map")
    return of_payload(source, seq, payload, epoch=epoch)


def of_payload(source: SourceId, seq: int, payload: bytes, *, epoch: int = 0) -> Received:
    """A batch of the given bytes."""
    reader = DialectReader()
    batch = reader.read(payload)
    return Received(
        source, epoch, seq, payload, 1_700_000_000_000_000_000 + seq, False, batch, reader.dialect
    )


def stored(*hashes: int, medium: str | None = "GPU", parent: int | None = None) -> BlockStored:
    return BlockStored(
        list(hashes), parent, tokens(list(range(16 * len(hashes)))), 16, None, medium, group_idx=0
    )


def removed(*hashes: int, medium: str | None = "GPU") -> BlockRemoved:
    return BlockRemoved(list(hashes), medium)


def of_capture(path: Path, *, source: str = "capture") -> Iterator[Received]:
    """The live messages of a capture, in one epoch a restart."""
    reader = DialectReader()
    epoch, last = 0, -1
    for record in read_capture(path):
        topic, seq8, payload = record.frames
        seq = int.from_bytes(seq8, "big")
        epoch, last = epoch + (seq <= last), seq
        batch = reader.read(payload)
        rank = batch.data_parallel_rank if isinstance(batch, EventBatch) else None
        stream = SourceId(source, topic, -1 if rank is None else rank)
        yield Received(stream, epoch, seq, payload, record.received_ns, False, batch, reader.dialect)


def is_live(reader: DuckDBReader) -> bool:
    """Whether it reads through the process that writes the log."""
    return isinstance(reader._way, Session)


def everything() -> list[Entry]:
    """A short history with one of everything a log can hold."""
    return [
        EpochBegan(A, 0, "first_sight", "", 10),
        Loss(A, 0, 0, 3, "late_join", 11),
        received(A, 4, stored(1, 2, 3, parent=9), removed(7)),
        received(A, 5),
        EpochBegan(B, 0, "first_sight", "cafe", 12, {"CPU": 300, "GPU": 8}),
        received(B, 0, AllBlocksCleared(), stored(2**64 - 1, medium="cpu"), removed(2**63, medium=None)),
        of_payload(A, 6, b"\xc1 no msgpack at all"),
        Stray(A, 0, 5, b"other bytes", 13, "conflict"),
        of_payload(
            A, 7, bytes.fromhex("93cb3ff80000000000009281a474797065a54f7468657292a64f7468657232a3475055c0")
        ),
        Loss(A, 0, 8, 9, "no_replay", 14),
        received(BYTES, 1, stored(5, medium=None), form="array"),
        EpochBegan(A, 1, "incarnation", "beef", 15),
        received(A, 0, stored(1), epoch=1, ts=100.0),
        Loss(A, 0, 10, 12, "restart", 16),
        received(A, 3, removed(1), epoch=1, ts=100.0),
        Stray(B, 0, 0, b"", 17, "late"),
    ]


def expected(entries: Iterable[Entry]) -> dict[SourceId, tuple[int, int, str]]:
    """Epoch, next seq and incarnation of each source, written out anew to hold sinks against."""
    epochs: dict[SourceId, int] = {}
    found: dict[tuple[SourceId, int], tuple[int, str]] = {}
    for entry in entries:
        if isinstance(entry, Stray):
            continue
        epochs[entry.source] = max(epochs.get(entry.source, 0), entry.epoch)
        next_seq, incarnation = found.get((entry.source, entry.epoch), (0, ""))
        if isinstance(entry, Received):
            next_seq = max(next_seq, entry.seq + 1)
        elif isinstance(entry, Loss):
            next_seq = max(next_seq, entry.last_seq + 1)
        else:
            incarnation = entry.incarnation
        found[entry.source, entry.epoch] = next_seq, incarnation
    return {source: (epoch, *found[source, epoch]) for source, epoch in epochs.items()}


def in_short(standings: dict[SourceId, Standing]) -> dict[SourceId, tuple[int, int, str]]:
    return {
        source: (standing.epoch, standing.next_seq, standing.incarnation)
        for source, standing in standings.items()
    }


# -- histories at random ---------------------------------------------------------------------------------

HASHES = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
FITS = st.dictionaries(st.sampled_from(["GPU", "cpu", "STORAGE"]), st.integers(1, 1 << 62))
MAYBE_INT = st.none() | st.integers(-(2**63), 2**63 - 1)
STORED = st.builds(
    BlockStored,
    block_hashes=st.lists(HASHES, max_size=4),
    parent_block_hash=st.none() | HASHES,
    token_ids=st.builds(tokens, st.none() | st.lists(st.integers(0, 2**32) | TEXT, max_size=4)),
    block_size=MAYBE_INT,
    lora_id=MAYBE_INT,
    medium=st.none() | TEXT | st.sampled_from(["GPU", "cpu", "STORAGE"]),
    lora_name=st.none() | TEXT,
    extra_keys=st.builds(
        tokens, st.none() | st.lists(st.binary(max_size=3) | TEXT | st.floats(width=32), max_size=2)
    ),
    group_idx=MAYBE_INT,
    kv_cache_spec_kind=st.none() | TEXT,
    session_id=st.none() | TEXT,
    cache_salt=st.none() | TEXT,
    emit_seq=st.none() | st.integers(-3, 2**64 - 1),
)
REMOVED = st.builds(
    BlockRemoved,
    block_hashes=st.lists(HASHES, max_size=4),
    medium=st.none() | TEXT,
    group_idx=MAYBE_INT,
    ownership=st.none() | TEXT,
    reason=st.none() | st.sampled_from(["evicted", "reset"]),
)
EVENTS = st.lists(STORED | REMOVED | st.builds(AllBlocksCleared), max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Entries of a few sources in a right order: numbers grow, holes are losses or go unnoticed."""
    next_seqs: dict[tuple[SourceId, int], int] = {}
    entries: list[Entry] = []
    for _ in range(draw(st.integers(0, 12))):
        source = draw(st.sampled_from([A, B, BYTES]))
        epoch = draw(st.integers(0, 2))
        seq = next_seqs.get((source, epoch), 0) + draw(st.sampled_from([0, 0, 0, 1, 5]))
        kind = draw(st.sampled_from(["batch", "batch", "batch", "garbage", "loss", "stray", "epoch"]))
        if kind == "batch":
            entries.append(received(source, seq, *draw(EVENTS), epoch=epoch))
        elif kind == "garbage":
            entries.append(of_payload(source, seq, draw(st.binary(max_size=40)), epoch=epoch))
        elif kind == "loss":
            entries.append(Loss(source, epoch, seq, seq + draw(st.integers(0, 3)), "no_replay", 1))
        elif kind == "stray":
            entries.append(Stray(source, epoch, seq, draw(st.binary(max_size=9)), 2, "late"))
        else:
            entries.append(EpochBegan(source, epoch, "seq", draw(TEXT), 3, draw(FITS)))
        if kind in ("batch", "garbage"):
            next_seqs[source, epoch] = seq + 1
        elif kind == "loss":
            last = entries[-1]
            assert isinstance(last, Loss)
            next_seqs[source, epoch] = last.last_seq + 1
    return entries


def numbered(entries: Sequence[Entry]) -> list[tuple[int, Entry]]:
    """Each entry with the position a log gives it."""
    found = []
    position = 0
    for entry in entries:
        found.append((position, entry))
        position += isinstance(entry, Received)
    return found
