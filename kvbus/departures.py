"""What was the case when each block left its tier, a chunk of columns at a time: facts, no reasons.

How many copies there were before and after, whether a tier below holds the block when the batch is over, and
whether what was missed makes either uncertain. Results do not depend on where a log was cut into chunks. Why
a block left is ``kvbus/removals``' matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kvbus.below import Below, Blind
from kvbus.chunk import REMOVED, Bools, Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.clouds import CERTAIN, Clouds
from kvbus.holdings import Holdings
from kvbus.moments import Missing
from kvbus.moves import Asks, Moves, interleaved
from kvbus.shelves import Shelf, Spot


class Departed(NamedTuple):
    """Of each removed block: its block ``row`` and its ``event`` row; its copies before and after; whether a
    tier below holds it; whether its batch empties a tier that held several blocks; whether its count, and
    those below (``blind``), are uncertain.
    """

    row: Ints
    event: Ints
    before: Ints
    after: Ints
    below: Bools
    empties: Bools
    doubtful: Bools
    blind: Bools


class Departures:
    """Follows the tiers through the chunks of a log, in order."""

    def __init__(self, names: Chunks) -> None:
        self._names = names
        self._missing = Missing(names)
        self._clouds = Clouds()
        self._blind = Blind(names)
        self._holdings = Holdings(names)
        self._below = Below(names)

    def look(self, chunk: Chunk) -> Departed:
        """Take the next chunk."""
        missed = self._missing.look(chunk)
        sky = self._clouds.over(chunk, sorted(missed, key=lambda miss: miss[:2]))
        blind = self._blind.over(chunk, missed)
        held = {shelf: self._holdings.count(shelf) for shelf in self._holdings.shelves.current.values()}
        rows = np.flatnonzero((chunk.kind == REMOVED)[chunk.event])
        asks, of_row = self._below.asks(chunk, rows)
        moves = self._holdings.step(chunk, np.zeros(len(chunk.hash), np.uint64), asks)
        copies, _ = self._holdings.answers(chunk, moves, asks)
        below, unseen = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        below[of_row[copies > 0]] = True
        if asks.source is not None:
            unseen[of_row[blind.at(asks.source, asks.event)]] = True
        events = chunk.event[rows]
        doubtful = sky.doubts(chunk, events, self._names.gpu_media()[chunk.medium[events]]) != CERTAIN
        before, after, empties = _counts(chunk, moves, rows, asks, held)
        return Departed(rows, events, before, after, below, empties, doubtful, unseen)

    def cleared(self) -> Iterator[tuple[Shelf, Spot, int]]:
        """What the clears of the last chunk took, in no order: the shelf, the clear, how many blocks."""
        shelves = self._holdings.shelves
        for number, clear in shelves.ended:
            blocks = self._holdings.count(number)
            if clear is not None and blocks:
                yield shelves.all[number], clear, blocks


def _counts(
    chunk: Chunk, moves: Moves, rows: Ints, asks: Asks, held: Mapping[int, int]
) -> tuple[Ints, Ints, Bools]:
    """Of each removed block row: copies before and after, and whether its batch leaves empty a shelf that
    held several blocks when it began. ``held``: what shelves held before the chunk.
    """
    times = interleaved(chunk, asks)[0]
    at = moves.at_times(times[rows])
    behind = np.append(times, len(moves.time))
    batch = chunk.batch[chunk.event[rows]]
    ends = [behind[chunk.first_block[chunk.first_event[batch + n]]] for n in (0, 1)]
    shelf = moves.shelf[at]
    first, last = np.split(_blocks(moves, np.tile(shelf, 2), np.concatenate(ends), held), 2)
    return moves.before[at], moves.after[at], (first > 1) & (last == 0)


def _blocks(moves: Moves, shelf: Ints, time: Ints, held: Mapping[int, int]) -> Ints:
    """How many distinct blocks each of some shelves holds before each of some times."""
    changed = (moves.after > 0).astype(np.int64) - (moves.before > 0)
    order = np.lexsort((moves.time, moves.shelf))
    span = len(moves.time) + 1
    key = moves.shelf[order] * span + moves.time[order]
    sums = np.append(0, np.cumsum(changed[order]))
    base = np.array([held.get(number, 0) for number in range(int(shelf.max(initial=-1)) + 1)], np.int64)
    since = sums[np.searchsorted(key, shelf * span + time)] - sums[np.searchsorted(key, shelf * span)]
    found: Ints = base[shelf] + since
    return found
