"""Rows of a log back into the entries they were made of.

Batches are read again from their payloads, as every generation of dialect is at the time of reading; marks
(epochs, losses, strays) stand before a position. What a log has of them, and whose they are, is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from kvbus.columns import capacities
from kvbus.dialects import DialectReader
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from sinks import schema
from sinks.question import Asked

SOURCES: Final = "SELECT source_id, source, topic_raw, rank, instance FROM sources"

_BATCHES: Final = """SELECT position, source_id, epoch, seq, payload, received_ns, replayed, dialect
FROM batches WHERE position BETWEEN ? AND ? ORDER BY position"""

_COUNTS: Final = """SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM epochs),
(SELECT count(*) FROM losses), (SELECT count(*) FROM strays), (SELECT count(*) FROM capacities)"""

_CAPACITIES: Final = """SELECT marker, next_position, medium, blocks FROM capacities
WHERE next_position BETWEEN ? AND ? ORDER BY marker, medium"""

_MARKS: Final[dict[str, tuple[str, type[EpochBegan | Loss | Stray]]]] = {
    "epochs": ("because, incarnation, began_ns", EpochBegan),
    "losses": ("first_seq, last_seq, reason, noticed_ns", Loss),
    "strays": ("seq, payload, received_ns, reason", Stray),
}


def sources_of(rows: Iterable[tuple[Any, ...]]) -> dict[int, SourceId]:
    """The streams by ``source_id``, out of the rows that ``SOURCES`` gives."""
    return {
        number: SourceId(source, topic, -1 if rank is None else rank, instance)
        for number, source, topic, rank, instance in rows
    }


class Rows:
    """The rows of the log at ``path``, by whoever is ``asked`` for them. ``count``: its batches.

    Raises ``LogError`` for a row of a source that the log does not have.
    """

    def __init__(self, asked: Asked, path: Path) -> None:
        self._asked = asked
        self._path = path
        self.sources = sources_of(asked.rows(SOURCES))
        ((count, *marks, fits),) = asked.rows(_COUNTS)
        self.count = int(count)
        self.mark_queries = {
            name: f"""SELECT marker, next_position, source_id, epoch, {columns} FROM {name}
            WHERE next_position BETWEEN ? AND ? ORDER BY marker"""
            for (name, (columns, _)), many in zip(_MARKS.items(), marks, strict=True)
            if many
        }
        """For each table that has marks, the question for those before some positions, first and last; also
        for ``capacities``, which go with epochs.
        """
        if fits:
            self.mark_queries["capacities"] = _CAPACITIES

    def received(self, first: int, last: int, dialects: dict[int, DialectReader]) -> Iterator[Received]:
        """The batches of positions ``first`` … ``last``, up to the first that is not there; ``dialects``
        remembers what each source has spoken so far.
        """
        for expected, row in enumerate(self._asked.rows(_BATCHES, [first, last]), first):
            position, source_id, epoch, seq, payload, received_ns, replayed, dialect = row
            if position != expected:
                return
            source = self._source(source_id)
            batch = dialects.setdefault(source_id, DialectReader()).read(payload)
            yield Received(source, epoch, seq, payload, received_ns, replayed, batch, dialect)

    def marks(self, first: int, last: int) -> Iterator[PositionedEntry]:
        """What stands before the positions ``first`` … ``last``, in order."""
        found: list[tuple[int, PositionedEntry]] = []
        fits = self._capacities(first, last)
        for table in _MARKS.keys() & self.mark_queries.keys():
            make, sql = _MARKS[table][1], self.mark_queries[table]
            for marker, position, source_id, epoch, *rest in self._asked.rows(sql, [first, last]):
                told = [fits[marker]] if marker in fits else []
                entry = make(self._source(source_id), epoch, *rest, *told)
                found.append((marker, PositionedEntry(position, entry)))
        return (entry for _, entry in sorted(found, key=lambda pair: pair[0]))

    def _capacities(self, first: int, last: int) -> dict[int, dict[str, int]]:
        if "capacities" not in self.mark_queries:
            return {}
        names = "marker", "next_position", "medium", "blocks"
        rows = self._asked.rows(_CAPACITIES, [first, last])
        return capacities(dict(zip(names, row, strict=True)) for row in rows)

    def _source(self, source_id: int) -> SourceId:
        try:
            return self.sources[source_id]
        except KeyError as error:
            raise schema.damaged(self._path, error) from error
