"""A stretch of a log as numpy columns: what every rule of the audit works on.

Three levels, each in log order: batches, their events, and the events' blocks (one row a hash), with the
marks (losses, epochs, strays) that stand between batches. Made from the Arrow tables of ``kvbus/columns``,
which are the rows of a DuckDB log too, so a log, a live stream and a list in a test go one way. No payload is
read here and nothing is judged; what an event says alike with others is looked up once a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvbus.columns import Columns, Tables
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from kvbus.verdict import Witness, witness

STORED: Final = 0
REMOVED: Final = 1
CLEARED: Final = 2
STRANGE: Final = 3
UNREADABLE: Final = 4
"""Kinds of events; ``STRANGE`` is an event under a tag nobody knows."""

KINDS: Final = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": CLEARED}

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Mark = Loss | EpochBegan | Stray


class Place(msgspec.Struct, frozen=True):
    """A tier of a source as events name it: canonical medium and group."""

    medium: str
    group: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """B batches, E events, N blocks. Whatever is absent or null is -1 (``ts``: NaN), unless said otherwise.

    Batches: ``position``, ``source`` (a number, see ``Chunks.sources``), ``epoch``, ``seq``, ``ts`` (s),
    ``received_ns``, ``unknown_keys``, ``dialect`` (number of a name), ``unreadable``; ``first_event`` has
    B + 1 entries. Events: ``batch`` (row), ``index`` in the batch, ``kind``, ``medium`` and ``place``
    (numbers of names), ``size`` (tokens a block), ``terms`` (a number for what else a store says alike),
    ``reason``, ``tokens``, ``parent`` with ``has_parent``, ``emit_seq``; ``first_block`` has E + 1 entries.
    Blocks: ``hash``, ``event`` (row). ``marks``: (row of the batch it stands before, mark), in order.
    ``salts``: cache salts by event row; ``from_one``: batch rows of publishers that count from 1.
    """

    position: Hashes
    source: Ints
    epoch: Ints
    seq: Hashes
    ts: Floats
    received_ns: Ints
    unknown_keys: Ints
    dialect: Ints
    unreadable: Bools
    first_event: Ints
    batch: Ints
    index: Ints
    kind: Ints
    medium: Ints
    place: Ints
    size: Ints
    terms: Ints
    reason: Ints
    owner: Ints
    tokens: Ints
    parent: Hashes
    has_parent: Bools
    emit_seq: Ints
    first_block: Ints
    hash: Hashes
    event: Ints
    marks: Sequence[tuple[int, Mark]]
    salts: Mapping[int, str]
    from_one: frozenset[int]

    def event_sources(self) -> Ints:
        """The source of each event."""
        return self.source[self.batch]


@runtime_checkable
class ColumnLog(Protocol):
    """A log that can give its rows as columns, without building entries."""

    def sources(self) -> Mapping[int, SourceId]: ...

    def columns(self) -> Iterator[Tables]:
        """The tables of ``kvbus/columns``, some positions at a time; shapes come before their first use."""
        ...


def distinct(codes: Ints) -> Ints:
    """The distinct ones of some small numbers, -1 and up, rising."""
    there: Ints = np.flatnonzero(np.bincount(codes + 1)) - 1
    return there


def numbered(codes: Ints) -> tuple[Ints, Ints]:
    """The distinct numbers, rising, and which of them each is."""
    top = int(codes.max(initial=-1)) + 1
    if top > 1 << 22:
        found, which = np.unique(codes, return_inverse=True)
        return found, which
    there = np.bincount(codes, minlength=top) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def first_sights(codes: Ints) -> list[tuple[int, int]]:
    """Each distinct one of some small numbers with the row it is first seen in, by row."""
    found = distinct(codes)
    if not len(found):
        return []
    firsts = np.full(int(found[-1]) + 2, -1, np.int64)
    firsts[codes[::-1] + 1] = np.arange(len(codes) - 1, -1, -1)
    return sorted(zip(found.tolist(), firsts[found + 1].tolist(), strict=True), key=lambda pair: pair[1])


class Names:
    """Names by number, in order of first sight."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.names: list[Any] = []

    def number(self, name: Any) -> int:
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = len(self.names)
            self.names.append(name)
        return known


_SHAPE_COLUMNS: Final = ("kind", "medium", "place", "size", "terms", "reason", "owner")


class Chunks:
    """Makes chunks. Owns the numbers of sources, media, places and other names, for all of them."""

    def __init__(self, sources: Mapping[int, SourceId] | None = None) -> None:
        self.sources: dict[int, SourceId] = dict(sources or {})
        self.media = Names()
        self.places = Names()
        self.terms = Names()
        self.reasons = Names()
        self.owners = Names()
        self.dialects = Names()
        self.tags = Names()
        self.salts = Names()
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._shape_table = np.zeros((0, len(_SHAPE_COLUMNS)), np.int64)
        self._columns = Columns()
        self._numbers: dict[SourceId, int] = {}

    def go_on(self) -> None:
        """Entries come next, after the tables of a log: they go on with its sources' numbers."""
        numbers = {source: number for number, source in self.sources.items()}
        self._columns = Columns(sources=numbers)

    def source_number(self, source: SourceId) -> int:
        """The number of a source that some chunk has shown."""
        if len(self._numbers) < len(self.sources):
            self._numbers = {source: number for number, source in self.sources.items()}
        return self._numbers[source]

    def witness(self, chunk: Chunk, row: int, event: int | None = None) -> Witness:
        """A batch of a chunk, or its event with that index, as evidence."""
        source, position = self.sources[int(chunk.source[row])], int(chunk.position[row])
        return witness(source, int(chunk.epoch[row]), int(chunk.seq[row]), event=event, position=position)

    def kinds_and_places(self, shape: Ints) -> tuple[Ints, Ints]:
        """What events of these shapes, which some chunk has shown, are and where."""
        rows = self._shape_table[shape]
        return rows[:, 0], rows[:, 2]

    def of_entries(self, entries: Iterable[PositionedEntry]) -> Chunk:
        """The chunk of some entries, which keep the positions they say they have."""
        placed = list(entries)
        first = self._columns.position
        tables = self._columns.build([at.entry for at in placed])
        positions = [at.position for at in placed if type(at.entry) is Received]
        return self.of_tables(tables, first=first, positions=np.array(positions, np.uint64))

    def of_tables(
        self, tables: Tables, *, first: int | None = None, positions: Hashes | None = None
    ) -> Chunk:
        """The chunk of tables whose positions run on from ``first``; ``positions`` to report instead."""
        self.learn(tables)
        batches, rows = tables.get("batches"), tables.get("event_rows")
        own = _ints(batches, "position", np.uint64)
        start = int(own[0]) if len(own) else (first or 0)
        batch = _ints(rows, "position", np.uint64).astype(np.int64) - start
        shape = self._shape_table[_ints(rows, "shape")]
        offsets, hashes = _lists(rows)
        counts = np.diff(offsets)
        extras = tables.get("event_extras")
        salts, from_one = _extras(extras, batch, _ints(rows, "event"), start)
        return Chunk(
            position=own if positions is None else positions,
            source=_ints(batches, "source_id"),
            epoch=_ints(batches, "epoch"),
            seq=_ints(batches, "seq", np.uint64),
            ts=_floats(batches, "ts"),
            received_ns=_ints(batches, "received_ns"),
            unknown_keys=_ints(batches, "unknown_keys"),
            dialect=self._dialects(batches),
            unreadable=_present(batches, "error"),
            first_event=np.searchsorted(batch, np.arange(len(own) + 1)),
            batch=batch,
            index=_ints(rows, "event"),
            tokens=_ints(rows, "token_count"),
            parent=_ints(rows, "parent_hash", np.uint64),
            has_parent=_present(rows, "parent_hash"),
            emit_seq=_ints(rows, "emit_seq"),
            first_block=offsets,
            hash=hashes,
            event=np.repeat(np.arange(len(counts)), counts),
            marks=list(self._marks(tables, start)),
            salts=salts,
            from_one=from_one,
            **{name: shape[:, n] for n, name in enumerate(_SHAPE_COLUMNS)},
        )

    def learn(self, tables: Tables) -> None:
        """Take over the sources and shapes among some tables."""
        for row in _rows(tables, "sources"):
            rank = -1 if row["rank"] is None else row["rank"]
            source = SourceId(row["source"], row["topic_raw"], rank, row["instance"])
            self.sources[row["source_id"]] = source
        found = _rows(tables, "event_shapes")
        if not found:
            return
        for row in found:
            self._shapes[row["shape"]] = self._shape(row)
        table = np.full((max(self._shapes) + 1, len(_SHAPE_COLUMNS)), -1, np.int64)
        table[list(self._shapes)] = list(self._shapes.values())
        self._shape_table = table

    def _shape(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        kind = KINDS.get(row["kind"], UNREADABLE if row["kind"] == "Undecodable" else STRANGE)
        if kind not in (STORED, REMOVED):
            return (kind, -1, -1, -1, self.tags.number(row["kind"]), -1, -1)
        terms = (row["block_size"], row["lora_id"], row["lora_name"])
        return (
            kind,
            self.media.number(row["medium"]),
            self.places.number(Place(row["medium"], row["group_idx"])),
            -1 if row["block_size"] is None else row["block_size"],
            self.terms.number(terms),
            -1 if row["reason"] is None else self.reasons.number(row["reason"]),
            -1 if row["ownership"] is None else self.owners.number(row["ownership"]),
        )

    def _dialects(self, batches: pa.Table | None) -> Ints:
        if batches is None:
            return np.zeros(0, np.int64)
        coded = batches["dialect"].combine_chunks().dictionary_encode()
        numbers = [self.dialects.number(name) for name in coded.dictionary.to_pylist()]
        found: Ints = np.array(numbers, np.int64)[coded.indices.to_numpy(zero_copy_only=False)]
        return found

    def _marks(self, tables: Tables, first: int) -> Iterator[tuple[int, Mark]]:
        found: list[tuple[int, int, Mark]] = []
        for name, kind in (("epochs", EpochBegan), ("losses", Loss), ("strays", Stray)):
            for row in _rows(tables, name):
                source = self.sources[row.pop("source_id")]
                place = row.pop("marker"), row.pop("next_position") - first
                found.append((*place, kind(source=source, **row)))
        for _, before, mark in sorted(found, key=lambda mark: mark[0]):
            yield before, mark


def _rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    found = tables.get(name)
    return [] if found is None else list(found.to_pylist())


def _ints(table: pa.Table | None, name: str, kind: type[Any] = np.int64) -> Any:
    if table is None:
        return np.zeros(0, kind)
    column = table[name].combine_chunks()
    if column.null_count:
        column = (
            pc.fill_null(column, 0)
            if kind is np.uint64
            else pc.fill_null(column.cast(pa.int64(), safe=False), -1)
        )
    return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)


def _floats(table: pa.Table | None, name: str) -> Floats:
    if table is None:
        return np.zeros(0)
    found: Floats = pc.fill_null(table[name].combine_chunks(), float("nan")).to_numpy(zero_copy_only=False)
    return found


def _present(table: pa.Table | None, name: str) -> Bools:
    if table is None:
        return np.zeros(0, np.bool_)
    column = table[name].combine_chunks()
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    found: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _lists(table: pa.Table | None) -> tuple[Ints, Hashes]:
    if table is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint64)
    lists = table["hashes"].combine_chunks()
    offsets = lists.offsets.to_numpy().astype(np.int64)
    flat = lists.values.to_numpy(zero_copy_only=False)
    return offsets - offsets[0], flat[offsets[0] : offsets[-1]]


def _extras(
    table: pa.Table | None, batch: Ints, index: Ints, first: int
) -> tuple[dict[int, str], frozenset[int]]:
    """Cache salts by event row, and the batches of a Mooncake master, whose events say ``event_type``."""
    salts: dict[int, str] = {}
    from_one: set[int] = set()
    for row in [] if table is None else table.to_pylist():
        at = row["position"] - first
        if row["extra"] and '"event_type"' in row["extra"]:
            from_one.add(at)
        if row["cache_salt"] is not None:
            start = int(np.searchsorted(batch, at))
            salts[
                start + int(np.searchsorted(index[start : np.searchsorted(batch, at + 1)], row["event"]))
            ] = row["cache_salt"]
    return salts, frozenset(from_one)
