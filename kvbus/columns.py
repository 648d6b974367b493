"""Entries as Arrow columns: the rows of a log, built a column at a time.

No Python object is made for an event: each column is one comprehension or one numpy call. What many events
say alike (kind, medium, block size, LoRA …) is looked up as a *shape*, one small number an event; the log
joins them again in its ``events`` view. No file, no database: ``docs/log-schema.md`` says what the tables
mean. What does not fit a column (a block size of 2**63, say) is null there; the payload keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvbus.events import BlockStored, Event, EventBatch, Undecodable, Unrecognized, token_count
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray
from kvbus.shapes import KEYS, SHAPES, SHAPES_MAX, Shapes

INT32_MAX: Final = (1 << 31) - 1

Tables = dict[str, pa.Table]
Ints = npt.NDArray[Any]

SOURCES: Final = pa.schema(
    {
        "source_id": pa.int32(),
        "source": pa.string(),
        "topic": pa.string(),
        "topic_raw": pa.binary(),
        "rank": pa.int32(),
        "instance": pa.int32(),
    }
)
EPOCHS: Final = pa.schema(
    {
        "marker": pa.uint64(),
        "next_position": pa.uint64(),
        "source_id": pa.int32(),
        "epoch": pa.int32(),
        "because": pa.string(),
        "incarnation": pa.string(),
        "began_ns": pa.int64(),
    }
)
LOSSES: Final = pa.schema(
    {
        "marker": pa.uint64(),
        "next_position": pa.uint64(),
        "source_id": pa.int32(),
        "epoch": pa.int32(),
        "first_seq": pa.uint64(),
        "last_seq": pa.uint64(),
        "reason": pa.string(),
        "noticed_ns": pa.int64(),
    }
)
STRAYS: Final = pa.schema(
    {
        "marker": pa.uint64(),
        "next_position": pa.uint64(),
        "source_id": pa.int32(),
        "epoch": pa.int32(),
        "seq": pa.uint64(),
        "reason": pa.string(),
        "received_ns": pa.int64(),
        "payload": pa.binary(),
    }
)
EXTRAS: Final = pa.schema(
    {
        "position": pa.uint64(),
        "event": pa.uint32(),
        "session_id": pa.string(),
        "cache_salt": pa.string(),
        "extra": pa.string(),
        "error": pa.string(),
    }
)

_EXTRA = attrgetter("extra")


class Columns:
    """Numbers entries and lays them out as tables. Owns the numbers that go on from call to call.

    ``position``, ``marker`` and ``shape`` are the next numbers to give; ``sources`` those already given.
    """

    def __init__(
        self,
        *,
        position: int = 0,
        marker: int = 0,
        shape: int = 0,
        sources: Mapping[SourceId, int] | None = None,
    ) -> None:
        self.position = position
        self.marker = marker
        self._shapes = Shapes(shape)
        self._sources = dict(sources or {})
        self._new_sources: list[tuple[int, SourceId]] = []

    def build(self, entries: Sequence[Entry], /) -> Tables:
        """The rows of ``entries`` by table name, each in entry order; empty tables are left out."""
        received = [entry for entry in entries if type(entry) is Received]
        tables = self._markers(entries) if len(received) < len(entries) else {}
        if received:
            tables |= self._batches(received)
            self.position += len(received)
        if self._new_sources:
            tables["sources"] = _source_rows(self._new_sources)
            self._new_sources = []
        return tables

    # -- what is not a batch -----------------------------------------------------------------------------

    def _markers(self, entries: Sequence[Entry]) -> Tables:
        position = self.position
        rows: dict[str, list[dict[str, Any]]] = {"epochs": [], "losses": [], "strays": []}
        for entry in entries:
            if isinstance(entry, Received):
                position += 1
                continue
            name = {EpochBegan: "epochs", Loss: "losses", Stray: "strays"}[type(entry)]
            row = msgspec.structs.asdict(entry)
            source_id = self._source_id(row.pop("source"))
            rows[name].append(
                {"marker": self.marker, "next_position": position, "source_id": source_id, **row}
            )
            self.marker += 1
        schemas = {"epochs": EPOCHS, "losses": LOSSES, "strays": STRAYS}
        return {name: pa.Table.from_pylist(found, schemas[name]) for name, found in rows.items() if found}

    def _source_id(self, source: SourceId) -> int:
        number = self._sources.get(source)
        if number is None:
            number = self._sources[source] = len(self._sources)
            self._new_sources.append((number, source))
        return number

    # -- batches and their events ------------------------------------------------------------------------

    def _batches(self, received: list[Received]) -> Tables:
        read = [entry.batch for entry in received]
        good = [batch if isinstance(batch, EventBatch) else None for batch in read]
        lists = [batch.events if batch else [] for batch in good]
        counts = np.fromiter(map(len, lists), np.uint32, len(lists))
        positions = np.arange(self.position, self.position + len(received), dtype=np.uint64)
        sources = [entry.source for entry in received]
        # Usually one object throughout: what depends on the source alone is worked out once an object.
        numbers = {id(source): self._source_id(source) for source in {id(x): x for x in sources}.values()}
        topics = {id(source): source.topic_text for source in {id(x): x for x in sources}.values()}
        tables = {
            "batches": pa.table(
                {
                    "position": positions,
                    "source_id": pa.array([numbers[id(source)] for source in sources], pa.int32()),
                    "epoch": pa.array([entry.epoch for entry in received], pa.int32()),
                    "seq": pa.array([entry.seq for entry in received], pa.uint64()),
                    "topic": pa.array([topics[id(source)] for source in sources], pa.string()),
                    "ts": pa.array([batch and batch.ts for batch in good], pa.float64()),
                    "received_ns": pa.array([entry.received_ns for entry in received], pa.int64()),
                    "rank": pa.array([_rank(entry) for entry in received], pa.int32()),
                    "replayed": pa.array([entry.replayed for entry in received], pa.bool_()),
                    "dialect": pa.array([entry.dialect for entry in received], pa.string()),
                    "event_count": counts,
                    "unknown_keys": pa.array([batch.unknown_keys if batch else 0 for batch in good]),
                    "error": pa.array([_why(batch) for batch in read], pa.string()),
                    "payload": _blobs([entry.payload for entry in received]),
                }
            )
        }
        events = list(chain.from_iterable(lists))
        if events:
            tables |= self._events(events, np.repeat(positions, counts), _indices(counts, len(events)))
        return tables

    def _events(self, events: list[Event], positions: Ints, indices: Ints) -> Tables:
        shapes = self._shapes
        keys = KEYS
        numbers = np.array([shapes[keys[type(event)](event)] for event in events], np.uint32)
        stored_at = np.flatnonzero(np.frombuffer(bytes(shapes.stored), np.bool_)[numbers])
        odd = bool(np.frombuffer(bytes(shapes.odd), np.bool_)[numbers].any())
        stored: list[Any] = [events[at] for at in stored_at.tolist()]
        tables = {
            "event_rows": pa.table(
                {
                    "position": positions,
                    "event": indices,
                    "shape": numbers + np.uint32(shapes.base),
                    "hashes": _hashes(events),
                    "parent_hash": _scattered(
                        [event.parent_block_hash for event in stored], stored_at, len(events), np.uint64
                    ),
                    "token_count": _scattered(
                        [token_count(event.token_ids) for event in stored], stored_at, len(events), np.uint32
                    ),
                    "emit_seq": _emit_seqs(events, odd=odd),
                }
            )
        }
        extras = _extra_rows(events, stored, stored_at, odd=odd)
        if extras is not None:
            at = extras.pop("at")
            columns = {"position": positions[at], "event": indices[at], **extras}
            tables["event_extras"] = pa.table(columns, EXTRAS)
        if shapes.rows:
            tables["event_shapes"] = pa.Table.from_pylist(shapes.rows, SHAPES)
            shapes.rows = []
        if len(shapes) > SHAPES_MAX:
            self._shapes = Shapes(shapes.base + len(shapes))
        return tables


def _blobs(payloads: list[bytes]) -> pa.Array:
    """Payloads end to end, copied once (a builder grows, and copies, several times)."""
    ends = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.large_binary(), len(payloads), buffers)


def _hashes(events: list[Event]) -> pa.ListArray:
    try:
        lists = [event.block_hashes for event in events]  # type: ignore[union-attr]
    except AttributeError:  # a clear, or an event nobody knows
        lists = [getattr(event, "block_hashes", []) for event in events]
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, lists), np.int32, len(lists)), out=offsets[1:])
    flat = np.fromiter(chain.from_iterable(lists), np.uint64, int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _scattered(values: list[int | None], at: Ints, length: int, dtype: type[np.generic]) -> pa.Array:
    """An array of ``length`` that is null but where ``at`` puts a value."""
    column = np.zeros(length, dtype)
    missing = np.ones(length, np.bool_)
    if None in values:
        have = np.array([value is not None for value in values], np.bool_)
        at, values = at[have], [value for value in values if value is not None]
    column[at] = np.array(values, dtype)
    missing[at] = False
    return pa.array(column, mask=missing)


def _emit_seqs(events: list[Event], *, odd: bool) -> pa.Array:
    found: list[int | None] = (
        [getattr(event, "emit_seq", None) for event in events]
        if odd
        else [event.emit_seq for event in events]  # type: ignore[union-attr]
    )
    if found.count(None) == len(found):
        return pa.nulls(len(found), pa.uint64())
    return pa.array([None if seq is None or seq < 0 else seq for seq in found], pa.uint64())


def _extra_rows(
    events: list[Event], stored: list[BlockStored], stored_at: Ints, *, odd: bool
) -> dict[str, Any] | None:
    """Columns of the few events that say something rare, and where (``at``) they are among ``events``."""
    rows: dict[int, dict[str, str | None]] = {}
    for name in ("session_id", "cache_salt"):
        values = [getattr(event, name) for event in stored]
        if values.count(None) < len(values):
            for at, value in zip(stored_at.tolist(), values, strict=True):
                if value is not None:
                    rows.setdefault(at, {})[name] = value
    if odd or any(map(_EXTRA, events)):
        for at, event in enumerate(events):
            said = _said(event)
            if said:
                rows.setdefault(at, {}).update(said)
    if not rows:
        return None
    order = sorted(rows)
    columns: dict[str, Any] = {"at": np.array(order, np.int64)}
    for name in ("session_id", "cache_salt", "extra", "error"):
        columns[name] = pa.array([rows[at].get(name) for at in order], pa.string())
    return columns


def _said(event: Event) -> dict[str, str | None]:
    match event:
        case Undecodable(why=why):
            return {"error": why}
        case Unrecognized():
            return {"extra": _json(event.content)}
        case _:
            return {"extra": _json(event.extra)} if event.extra else {}


def _json(value: dict[Any, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode({str(key): repr(item) for key, item in value.items()}).decode()


def _source_rows(found: list[tuple[int, SourceId]]) -> pa.Table:
    rows = [
        {
            "source_id": number,
            "source": source.source,
            "topic": source.topic_text,
            "topic_raw": source.topic,
            "rank": source.said_rank,
            "instance": source.instance,
        }
        for number, source in found
    ]
    return pa.Table.from_pylist(rows, SOURCES)


def _indices(counts: Ints, total: int) -> Ints:
    """Each event's number in its batch."""
    firsts = np.cumsum(counts, dtype=np.uint32) - counts
    return np.arange(total, dtype=np.uint32) - np.repeat(firsts, counts)


def _rank(entry: Received) -> int | None:
    said = entry.batch.data_parallel_rank if isinstance(entry.batch, EventBatch) else None
    rank = entry.source.rank if said is None else said
    return rank if 0 <= rank <= INT32_MAX else None


def _why(batch: EventBatch | Undecodable) -> str | None:
    return batch.why if isinstance(batch, Undecodable) else None
