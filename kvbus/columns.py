"""Entries as Arrow columns: the rows of a log, built a column at a time.

Batches, and the marks between them; events are ``kvbus/event_columns``' matter. No file, no database:
``docs/log-schema.md`` says what the tables mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvbus.event_columns import EventColumns
from kvbus.events import EventBatch, Undecodable
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

INT32_MAX: Final = (1 << 31) - 1

Tables = dict[str, pa.Table]
Uints = npt.NDArray[np.uint32]

BATCHES: Final = (
    *("position", "source_id", "epoch", "seq", "topic", "ts", "received_ns", "rank", "replayed", "dialect"),
    *("event_count", "unknown_keys", "error", "payload"),
)
"""The columns of a batch, in their order."""

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
CAPACITIES: Final = pa.schema(
    {"marker": pa.uint64(), "next_position": pa.uint64(), "medium": pa.string(), "blocks": pa.uint64()}
)
"""What publishers said fits, a row a medium; ``marker`` is that of the epoch."""
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
        self._events = EventColumns(shape)
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
        schemas = {"epochs": EPOCHS, "capacities": CAPACITIES, "losses": LOSSES, "strays": STRAYS}
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in schemas}
        for entry in entries:
            if isinstance(entry, Received):
                position += 1
                continue
            name = {EpochBegan: "epochs", Loss: "losses", Stray: "strays"}[type(entry)]
            row = msgspec.structs.asdict(entry)
            place = {"marker": self.marker, "next_position": position}
            for medium, blocks in row.pop("capacity", {}).items():
                rows["capacities"].append({**place, "medium": medium, "blocks": blocks})
            rows[name].append({**place, "source_id": self._source_id(row.pop("source")), **row})
            self.marker += 1
        return {name: pa.Table.from_pylist(found, schemas[name]) for name, found in rows.items() if found}

    def _source_id(self, source: SourceId) -> int:
        number = self._sources.get(source)
        if number is None:
            number = self._sources[source] = len(self._sources)
            self._new_sources.append((number, source))
        return number

    # -- batches and their events ------------------------------------------------------------------------

    def _batches(self, received: list[Received]) -> Tables:
        lists = [entry.batch.events if isinstance(entry.batch, EventBatch) else [] for entry in received]
        counts = np.fromiter(map(len, lists), np.uint32, len(lists))
        positions = np.arange(self.position, self.position + len(received), dtype=np.uint64)
        columns = {"position": positions, **self._source_columns(received), "event_count": counts}
        tables = {"batches": pa.table(columns | _batch_columns(received)).select(BATCHES)}
        events = list(chain.from_iterable(lists))
        if events:
            rows = np.repeat(positions, counts)
            tables |= self._events.build(events, rows, _indices(counts, len(events)))
        return tables

    def _source_columns(self, received: list[Received]) -> dict[str, pa.Array]:
        """Usually one object throughout: what depends on the source alone is worked out once an object."""
        sources = [entry.source for entry in received]
        objects = {id(source): source for source in sources}
        numbers = {at: self._source_id(source) for at, source in objects.items()}
        topics = {at: source.topic_text for at, source in objects.items()}
        return {
            "source_id": pa.array([numbers[id(source)] for source in sources], pa.int32()),
            "topic": pa.array([topics[id(source)] for source in sources], pa.string()),
        }


def _batch_columns(received: list[Received]) -> dict[str, pa.Array]:
    """What batches say of themselves."""
    read = [entry.batch for entry in received]
    good = [batch if isinstance(batch, EventBatch) else None for batch in read]
    return {
        "epoch": pa.array([entry.epoch for entry in received], pa.int32()),
        "seq": pa.array([entry.seq for entry in received], pa.uint64()),
        "ts": pa.array([batch and batch.ts for batch in good], pa.float64()),
        "received_ns": pa.array([entry.received_ns for entry in received], pa.int64()),
        "rank": pa.array([_rank(entry) for entry in received], pa.int32()),
        "replayed": pa.array([entry.replayed for entry in received], pa.bool_()),
        "dialect": pa.array([entry.dialect for entry in received], pa.string()),
        "unknown_keys": pa.array([batch.unknown_keys if batch else 0 for batch in good]),
        "error": pa.array([_why(batch) for batch in read], pa.string()),
        "payload": _blobs([entry.payload for entry in received]),
    }


def _blobs(payloads: list[bytes]) -> pa.Array:
    """Payloads end to end, copied once (a builder grows, and copies, several times)."""
    ends = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.large_binary(), len(payloads), buffers)


def capacities(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """What fits, by the marker of the epoch, out of rows of ``CAPACITIES``."""
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["marker"], {})[row["medium"]] = row["blocks"]
    return found


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


def _indices(counts: Uints, total: int) -> Uints:
    """Each event's number in its batch."""
    firsts = np.cumsum(counts, dtype=np.uint32) - counts
    return np.arange(total, dtype=np.uint32) - np.repeat(firsts, counts)


def _rank(entry: Received) -> int | None:
    said = entry.batch.data_parallel_rank if isinstance(entry.batch, EventBatch) else None
    rank = entry.source.rank if said is None else said
    return rank if 0 <= rank <= INT32_MAX else None


def _why(batch: EventBatch | Undecodable) -> str | None:
    return batch.why if isinstance(batch, Undecodable) else None
