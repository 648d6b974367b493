"""Chunks out of the Arrow tables of ``kvbus/columns``, and the small numbers by which they name things.

Those tables are the rows of a DuckDB log too, so a log, a live stream and a list in a test go one way. No
payload is read here and nothing is judged; what an event says alike with others is looked up once a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from kvbus.arrays import lists, present, rows, signed, times, unsigned
from kvbus.chunk import (
    GPU,
    KINDS,
    REMOVED,
    STORED,
    STRANGE,
    UNREADABLE,
    Bools,
    Chunk,
    Hashes,
    Ints,
    Mark,
    Place,
)
from kvbus.columns import Columns, Tables, capacities
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from kvbus.names import Names
from kvbus.verdict import Witness, witness


@runtime_checkable
class ColumnLog(Protocol):
    """A log that can give its rows as columns, without building entries."""

    def sources(self) -> Mapping[int, SourceId]: ...

    def columns(self) -> Iterator[Tables]:
        """The tables of ``kvbus/columns``, some positions at a time; shapes come before their first use."""
        ...


Terms = tuple[int | None, int | None, str | None]
"""Block size, LoRA's number and name."""

_SHAPE_COLUMNS: Final = ("kind", "medium", "place", "size", "terms", "reason", "owner")


class Chunks:
    """Makes chunks. Owns the numbers of sources, media, places and other names, for all of them."""

    def __init__(self) -> None:
        self.sources: dict[int, SourceId] = {}
        self.media = Names[str]()
        self.places = Names[Place]()
        self.terms = Names[Terms]()
        self.reasons = Names[str]()
        self.owners = Names[str]()
        self.dialects = Names[str]()
        self.tags = Names[str]()
        self.salts = Names[str]()
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
        said = self._shape_table[shape]
        return said[:, 0], said[:, 2]

    def gpu_media(self) -> Bools:
        """For each medium by number, whether it is the GPU; at -1: no."""
        return np.array([medium == GPU for medium in self.media.names] + [False], np.bool_)

    def gpu_places(self) -> Bools:
        """The same for each place."""
        return np.array([place.is_gpu for place in self.places.names] + [False], np.bool_)

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
        batches, events = tables.get("batches"), tables.get("event_rows")
        own = unsigned(batches, "position")
        start = int(own[0]) if len(own) else (first or 0)
        batch = unsigned(events, "position").astype(np.int64) - start
        shape = self._shape_table[signed(events, "shape")]
        offsets, hashes = lists(events, "hashes")
        counts = np.diff(offsets)
        index = signed(events, "event")
        salts, from_one = _extras(tables.get("event_extras"), batch, index, start)
        return Chunk(
            position=own if positions is None else positions,
            source=signed(batches, "source_id"),
            epoch=signed(batches, "epoch"),
            seq=unsigned(batches, "seq"),
            ts=times(batches, "ts"),
            received_ns=signed(batches, "received_ns"),
            unknown_keys=signed(batches, "unknown_keys"),
            dialect=self._dialects(batches),
            unreadable=present(batches, "error"),
            first_event=np.searchsorted(batch, np.arange(len(own) + 1)),
            batch=batch,
            index=index,
            tokens=signed(events, "token_count"),
            parent=unsigned(events, "parent_hash"),
            has_parent=present(events, "parent_hash"),
            emit_seq=signed(events, "emit_seq"),
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
        for row in rows(tables.get("sources")):
            rank = -1 if row["rank"] is None else row["rank"]
            source = SourceId(row["source"], row["topic_raw"], rank, row["instance"])
            self.sources[row["source_id"]] = source
        shapes = rows(tables.get("event_shapes"))
        if shapes:
            numbers = [row["shape"] for row in shapes]
            more = max(*numbers, len(self._shape_table) - 1) + 1 - len(self._shape_table)
            self._shape_table = np.pad(self._shape_table, ((0, more), (0, 0)), constant_values=-1)
            self._shape_table[numbers] = [self._shape(row) for row in shapes]

    def _shape(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        kind = KINDS.get(row["kind"], UNREADABLE if row["kind"] == "Undecodable" else STRANGE)
        if kind not in (STORED, REMOVED):
            return (kind, -1, -1, -1, self.tags.number(row["kind"]), -1, -1)
        name = row["lora_name"]
        # Engines hash an adapter's name; its id is another each time the adapter is loaded.
        terms = (row["block_size"], row["lora_id"] if name is None else None, name)
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
        fits = capacities(rows(tables.get("capacities")))
        for name, kind in (("epochs", EpochBegan), ("losses", Loss), ("strays", Stray)):
            for row in rows(tables.get(name)):
                source = self.sources[row.pop("source_id")]
                marker, before = row.pop("marker"), row.pop("next_position") - first
                if marker in fits:
                    row["capacity"] = fits[marker]
                found.append((marker, before, kind(source=source, **row)))
        for _, before, mark in sorted(found, key=lambda mark: mark[0]):
            yield before, mark


def _extras(
    table: pa.Table | None, batch: Ints, index: Ints, first: int
) -> tuple[dict[int, str], frozenset[int]]:
    """Cache salts by event row, and the batches of a Mooncake master, whose events say ``event_type``."""
    salts: dict[int, str] = {}
    from_one: set[int] = set()
    for row in rows(table):
        at = row["position"] - first
        if row["extra"] and '"event_type"' in row["extra"]:
            from_one.add(at)
        if row["cache_salt"] is not None:
            start, end = np.searchsorted(batch, (at, at + 1)).tolist()
            salts[start + int(np.searchsorted(index[start:end], row["event"]))] = row["cache_salt"]
    return salts, frozenset(from_one)
