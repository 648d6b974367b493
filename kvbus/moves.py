"""What each block row of a chunk did, in the order that makes it countable: by shelf, hash and time.

Sorting and running sums only: pure functions on arrays of one length. ``kvbus/holdings`` knows what was there
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvbus.chunk import Bools, Chunk, Hashes, Ints
from kvbus.names import numbered

NEVER: Final = -1
"""What did not happen, or is not known, has this for a block row of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """Questions: how many copies of ``hash`` has the shelf of ``place``, at event row ``event``?

    Asked before the blocks of event row ``slot``: the event itself, or the one after it. Sorted by ``slot``.
    ``source``: whose shelves are asked about; None: those of the event's own source.
    """

    event: Ints
    slot: Ints
    place: Ints
    hash: Hashes
    source: Ints | None = None

    @classmethod
    def none(cls) -> Asks:
        nothing = np.zeros(0, np.int64)
        return cls(event=nothing, slot=nothing, place=nothing, hash=np.zeros(0, np.uint64))

    @classmethod
    def joined(cls, asks: Sequence[Asks]) -> tuple[Asks, list[Ints]]:
        """All of them as one, and where the answers of each are in it: each about its event's own source."""
        slot = np.concatenate([ask.slot for ask in asks])
        order = np.argsort(slot, kind="stable")
        event = np.concatenate([ask.event for ask in asks])
        where = np.empty(len(order), np.int64)
        where[order] = np.arange(len(order))
        ends = np.cumsum([len(ask.event) for ask in asks])[:-1]
        place = np.concatenate([ask.place for ask in asks])
        block_hash = np.concatenate([ask.hash for ask in asks])
        one = cls(event=event[order], slot=slot[order], place=place[order], hash=block_hash[order])
        return one, list(np.split(where, ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What each row of a chunk did, sorted by (shelf, hash, time).

    ``event`` (row), ``time`` (rises with the log), ``change`` (1, -1; 0 for an ask), copies ``before`` and
    ``after``, ``shelf`` (number), ``hash``. ``put`` and ``taken``: the sorted row of the block's last store,
    last removal of a copy, before this row (-1: none in this chunk); ``carried``: the block's row of
    ``facts``, what was known before the chunk (-1: nothing). ``row``: the number of the block row in the log.
    ``clash``: the sorted row whose content this store contradicts (-1: none; -2: that of ``facts``).
    """

    event: Ints
    time: Ints
    change: Ints
    before: Ints
    after: Ints
    shelf: Ints
    hash: Hashes
    put: Ints
    taken: Ints
    carried: Ints
    facts: npt.NDArray[Any]
    row: Ints
    clash: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def since_taken(self, rows: Ints) -> Ints:
        """For each of ``rows``, how many block rows ago a copy was removed last; ``NEVER``: none is known."""
        taken, known = self.taken[rows], self.carried[rows]
        before = np.full(len(rows), NEVER)
        before[known >= 0] = self.facts["taken_row"][known[known >= 0]]
        at = np.where(taken >= 0, self.row[taken], before)
        return np.where(at != NEVER, self.row[rows] - at, NEVER)

    def at_times(self, times: Ints) -> Ints:
        """The rows that have these times."""
        where = np.empty(len(self.time), np.int64)
        where[self.time] = np.arange(len(self.time))
        return where[times]

    def in_time(self, mask: Bools) -> Ints:
        """The rows of ``mask`` as the log has them."""
        rows = np.flatnonzero(mask)
        return rows[np.argsort(self.time[rows])]


def interleaved(chunk: Chunk, asks: Asks) -> tuple[Ints, Ints]:
    """Where block rows and asks stand when each ask comes just before the blocks of its slot."""
    upto = np.searchsorted(asks.slot, np.arange(len(chunk.kind)), side="right")
    at_block = np.arange(len(chunk.hash)) + upto[chunk.event]
    at_ask = np.arange(len(asks.hash)) + chunk.first_block[asks.slot]
    return at_block, at_ask


def arranged(shelf: Ints, hashes: Hashes) -> tuple[Ints, Ints, Ints]:
    """Rows by (shelf, hash, row); where each such pair begins; and each row's pair."""
    if not len(shelf):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    coded = pa.array(hashes).dictionary_encode()
    distinct = coded.dictionary.to_numpy(zero_copy_only=False)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(distinct)] = np.arange(len(distinct))
    _, local = numbered(shelf - int(shelf.min()))
    bits = len(shelf).bit_length()
    pair = local * len(distinct) + rank[coded.indices.to_numpy(zero_copy_only=False)]
    # Where pair and row fit one number, those are sorted: several times faster.
    if int(pair.max()) < 1 << (63 - bits):
        key = np.sort((pair << bits) | np.arange(len(shelf)))
        order, pair = key & ((1 << bits) - 1), key >> bits
    else:
        order = np.argsort(pair, kind="stable")
        pair = pair[order]
    first = np.ones(len(pair), np.bool_)
    first[1:] = pair[1:] != pair[:-1]
    return order, np.flatnonzero(first), np.cumsum(first) - 1


def floored(change: Ints, starts: Ints, segment: Ints, begun: Ints) -> Ints:
    """Running sums within each segment, begun at ``begun``, none of which falls below zero."""
    if not len(change):
        return change
    total = np.cumsum(change)
    total += (begun - total[starts] + change[starts])[segment]
    if int(total.min()) >= 0:
        return total
    step = int(total.max() - total.min()) + 1
    lowest = np.minimum.accumulate(total - segment * step) + segment * step
    floored: Ints = total - np.minimum(lowest, 0)
    return floored


def latest_of(mask: Bools, starts: Ints, segment: Ints) -> Ints:
    """The latest row of ``mask`` in each row's segment, itself included; -1 where there is none."""
    if not mask.any():
        return np.full(len(mask), -1)
    latest = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return np.where(latest >= starts[segment], latest, -1)


def earlier_of(latest: Ints, starts: Ints) -> Ints:
    """The same, itself excluded."""
    earlier = np.empty_like(latest)
    earlier[1:] = latest[:-1]
    earlier[starts] = -1
    return earlier


def clashes(said: Hashes, told: Ints, anew: Ints, starts: Ints, old: Hashes) -> Ints:
    """For each row that contradicts what was said of its block last, by which row (``Moves.clash``).

    ``said`` is a digest, 0: nothing; ``told`` the latest row that said something, ``anew`` the latest from
    which on what was said before is forgotten (each -1: none here); ``old`` what was said before the chunk.
    """
    if not len(said):
        return told
    before = earlier_of(told, starts)
    last = np.where(before >= 0, said[before], old)
    differs = (said != 0) & (last != 0) & (last != said) & (before >= anew)
    return np.where(differs, np.where(before >= 0, before, -2), -1)
