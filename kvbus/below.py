"""Which tiers lie below a tier, and whether what they hold is certain: where a block that left may still be.

The tiers of one engine are those of one stream, or of streams called ``engine/tier`` under one rank. Below
the GPU is everything else, below a primary tier every secondary; secondaries stand in for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import Bools, Chunk, Ints, Place
from kvbus.chunks import Chunks
from kvbus.log import EpochBegan, SourceId
from kvbus.moments import moments
from kvbus.moves import Asks
from kvbus.names import distinct
from kvbus.rules.order import rank_of
from kvbus.rules.transport import Missed
from kvbus.stored_places import StoredPlaces

SECONDARY: Final = 2
"""The rank (``rank_of``) of tiers behind the primary one."""


def is_below(lower: Place, upper: Place) -> bool:
    """Whether a block that leaves ``upper`` can still be read from ``lower``: the same KV group, if known."""
    if lower.medium == upper.medium or (
        None not in (lower.group, upper.group) and lower.group != upper.group
    ):
        return False
    deep, high = rank_of(lower.medium), rank_of(upper.medium)
    return deep > high or deep == high == SECONDARY


def one_engine(mine: SourceId, theirs: SourceId) -> bool:
    """Whether two streams are those of one engine's tiers."""
    if mine == theirs:
        return True
    this, other = mine.engine_and_tier, theirs.engine_and_tier
    return this is not None and other is not None and this[0] == other[0] and mine.rank == theirs.rank


class Below:
    """Remembers to which places each source has stored."""

    def __init__(self, names: Chunks) -> None:
        self._names = names
        self._stored = StoredPlaces(names)

    def asks(self, chunk: Chunk, rows: Ints) -> tuple[Asks, Ints]:
        """For each block row of ``rows`` and each tier below, whether that holds the block when the batch is
        over; and of which of ``rows`` each ask is.
        """
        self._stored.look(chunk)
        events = chunk.event[rows]
        ends = chunk.first_event[chunk.batch[events] + 1]
        found = list(self._questions(chunk, events, ends))
        if not found:
            return Asks.none(), np.zeros(0, np.int64)
        of_row = np.concatenate([mine for mine, _, _ in found])
        source = np.concatenate([np.full(len(mine), number) for mine, number, _ in found])
        place = np.concatenate([np.full(len(mine), at) for mine, _, at in found])
        order = np.argsort(ends[of_row], kind="stable")
        of_row, source, place = of_row[order], source[order], place[order]
        slot, block = ends[of_row], chunk.hash[rows[of_row]]
        return Asks(event=slot - 1, slot=slot, place=place, hash=block, source=source), of_row

    def _questions(self, chunk: Chunk, events: Ints, ends: Ints) -> Iterator[tuple[Ints, int, int]]:
        """Which of ``events`` have to ask which source's place: those after its first store."""
        names, places = self._names, max(len(self._names.places.names), 1)
        code = chunk.source[chunk.batch[events]] * places + chunk.place[events]
        for one in distinct(code).tolist():
            number, at = divmod(one, places)
            mine = np.flatnonzero(code == one)
            for other, stored in self._stored.since.items():
                if not one_engine(names.sources[number], names.sources[other]):
                    continue
                for place, first in stored.items():
                    if is_below(names.places.names[place], names.places.names[at]):
                        yield mine[ends[mine] > first], other, place


class Unseen(NamedTuple):
    """For each source, from which event row of a chunk on something of it is missing, or no longer is."""

    changes: dict[int, tuple[Ints, Bools]]

    def at(self, source: Ints, event: Ints) -> Bools:
        """Whether something of each ``source`` was missed, in its present epoch, at each ``event`` row."""
        found = np.zeros(len(event), np.bool_)
        for number, (rows, states) in self.changes.items():
            mine = np.flatnonzero(source == number)
            found[mine] = states[np.searchsorted(rows, event[mine], side="right") - 1]
        return found


class Blind:
    """Remembers each source's epoch, and whether something of it was missed since that began."""

    def __init__(self, names: Chunks) -> None:
        self._names = names
        self._epochs: dict[int, int] = {}
        self._missed: set[int] = set()

    def over(self, chunk: Chunk, missed: Iterable[Missed]) -> Unseen:
        """What is missing during the next chunk."""
        told: dict[int, list[tuple[int, bool]]] = {number: [(-1, True)] for number in self._missed}
        for moment in moments(chunk, self._names, missed, np.zeros(0, np.int64)):
            match moment.what:
                case Missed() as miss:
                    number, is_missing = miss.source, True
                    if self._epochs.get(number, miss.epoch) != miss.epoch:
                        continue
                case EpochBegan() as mark:
                    number, is_missing = self._names.source_number(mark.source), False
                case row:
                    number, is_missing = int(chunk.source[row]), False
            if not is_missing:
                if self._epochs.get(number) == moment.epoch:
                    continue
                self._epochs[number] = moment.epoch
            (self._missed.add if is_missing else self._missed.discard)(number)
            told.setdefault(number, [(-1, False)]).append((moment.row, is_missing))
        return Unseen({number: _arrays(changes) for number, changes in told.items()})


def _arrays(changes: list[tuple[int, bool]]) -> tuple[Ints, Bools]:
    rows = np.array([row for row, _ in changes], np.int64)
    return rows, np.array([state for _, state in changes], np.bool_)
