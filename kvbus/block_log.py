"""Reading of a log only what bears on some blocks, up to some place: what ``where``, ``history`` and the like
ask.

A log that keeps columns is asked for the events that name these blocks and for those that name none (clears,
what cannot be read); of any other log everything is read. Either way chunks come out, with every batch and
every mark in them, so that holes are seen as the rules see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, runtime_checkable

from kvbus.chunk import Chunk, Hashes, Ints
from kvbus.chunks import Chunks, ColumnLog
from kvbus.columns import Tables
from kvbus.errors import ConfigError
from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.hash_text import readings
from kvbus.log import LogReader, Received
from kvbus.replay import Point

CANDIDATES_MAX: Final = 5
"""Blocks that are named where the beginning of a hash fits several."""
GATHER_ENTRIES: Final = 512


BlockRows = tuple[Ints, Ints, Ints, Hashes]
"""Position, index of the event, shape and hash, a row a block."""


class SourceLife(NamedTuple):
    """The present life of a source: its ``epoch`` and the position where that ``began``; where its GPU was
    ``cleared`` last and where something of it was ``missed`` last, in this life: (position, index of the
    event; -1: the batch, -2: before it).
    """

    source: int
    epoch: int
    began: int
    cleared: tuple[int, int] | None
    missed: tuple[int, int] | None


@runtime_checkable
class BlockLog(ColumnLog, Protocol):
    """A log that can be asked about blocks without being read as a whole."""

    def columns(self, *, naming: Sequence[int] | None = None, last: int | None = None) -> Iterator[Tables]:
        """As ``ColumnLog``; with ``naming`` only events that name one of these hashes, or name none."""
        ...

    def source_lives(self, last: int | None) -> list[SourceLife]:
        """Where every source stands after position ``last`` (None: at the end)."""
        ...

    def block_rows(self, first: int, last: int, *, part: int, parts: int) -> BlockRows:
        """The blocks that events of positions ``first`` … ``last`` name, in log order; of the hashes only
        those that leave ``part`` when divided by ``parts``.
        """
        ...

    def sources_of(self, first: int, last: int) -> Ints:
        """The source of each of these positions."""
        ...

    def shapes(self) -> Tables:
        """The table ``event_shapes``."""
        ...

    def block_count(self, first: int, last: int) -> int:
        """How many rows those are in all parts together."""
        ...

    def hashes_between(self, first: int, last: int, *, limit: int) -> list[int]:
        """Distinct hashes from ``first`` to ``last`` that events name, the smallest ones."""
        ...

    def batch_count(self) -> int: ...

    def received_by(self, time_ns: int) -> int:
        """How many batches stand before the first one that was received after ``time_ns``."""
        ...


def chunks(
    log: LogReader, names: Chunks, *, naming: Sequence[int] | None = None, last: int | None = None
) -> Iterator[Chunk]:
    """The log up to position ``last`` (None: to its end, -1: nothing), as far as it bears on ``naming``."""
    if last is not None and last < 0:
        return
    if isinstance(log, BlockLog):
        names.sources.update(log.sources())
        first = 0
        for tables in log.columns(naming=naming, last=last):
            chunk = names.of_tables(tables, first=first)
            first += len(chunk.seq)
            yield chunk
        return
    entries = log.entries(0, last)
    while gathered := list(islice(entries, GATHER_ENTRIES)):
        yield names.of_entries(gathered)


def last_position(log: LogReader, at: Point | None) -> int | None:
    """The last position that belongs to ``at``: that position itself; of a time, the one before the first
    batch that was received later (-1: there is none). None for None: the end.

    Raises ``ConfigError`` for a position behind the end.
    """
    if at is None:
        return None
    count = log.batch_count()
    if at.position is not None:
        if at.position >= count:
            raise ConfigError(
                f"there is no position {at.position} in this log",
                next_step=f"It has the positions 0 to {count - 1}." if count else "It has no batches.",
            )
        return at.position
    assert at.time_ns is not None
    before = log.received_by(at.time_ns) if isinstance(log, BlockLog) else _received_by(log, at.time_ns)
    return None if before == count else before - 1


def _received_by(log: LogReader, time_ns: int) -> int:
    for at in log.entries():
        if isinstance(at.entry, Received) and at.entry.received_ns > time_ns:
            return at.position
    return log.batch_count()


def resolved(log: LogReader, text: str) -> int | None:
    """The hash that ``text`` means in this log; None where it has no such block.

    Raises ``ConfigError`` for what is no hash, and where several blocks fit.
    """
    meant = readings(text)
    if len(meant) == 1 and meant[0].first == meant[0].last:
        return meant[0].first
    fit = sorted({block for one in meant for block in _between(log, one.first, one.last)})
    if len(fit) > 1:
        shown = ", ".join(f"0x{block:016x}" for block in fit[:CANDIDATES_MAX])
        more = " and more" if len(fit) > CANDIDATES_MAX else ""
        raise ConfigError(
            f"{text!r} can be several blocks of this log: {shown}{more}",
            next_step="Write more of it: all 16 hexadecimal digits name one block.",
        )
    return fit[0] if fit else None


def _between(log: LogReader, first: int, last: int) -> list[int]:
    if isinstance(log, BlockLog):
        return log.hashes_between(first, last, limit=CANDIDATES_MAX + 1)
    found: set[int] = set()
    for at in log.entries():
        if isinstance(at.entry, Received) and isinstance(at.entry.batch, EventBatch):
            for event in at.entry.batch.events:
                if isinstance(event, BlockStored | BlockRemoved):
                    found.update(block for block in event.block_hashes if first <= block <= last)
    return sorted(found)[: CANDIDATES_MAX + 1]
