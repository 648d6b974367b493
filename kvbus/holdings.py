"""How many copies of each block are where, worked out for a whole chunk at once: the counts behind the rules.

A store adds a copy, a removal takes one, no count falls below zero. Rows of a chunk are sorted by (shelf,
hash, time) and summed; what is known from before comes from one sorted table, whose size is that of the
resident blocks, the residents of the shelf before, and ``TAKEN_MAX`` blocks taken out lately. Results do not
depend on where a log was cut into chunks.

``kvbus/residency`` counts the same one event at a time; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvbus.chunk import STORED, Bools, Chunk, Chunks, Hashes, Ints, numbered
from kvbus.moves import Asks, Moves, arranged, clashes, earlier_of, floored, interleaved, latest_of
from kvbus.shelves import Shelves

TAKEN_MAX: Final = 32_768
"""A block that is taken out is remembered for so many block rows of the log, to name the removal before."""

_FACTS: Final = np.dtype(
    [
        ("count", "<i8"),
        ("put_position", "<u8"),
        ("put_seq", "<u8"),
        ("put_event", "<i8"),
        ("taken_position", "<u8"),
        ("taken_seq", "<u8"),
        ("taken_event", "<i8"),
        ("taken_row", "<i8"),
        ("content", "<u8"),
    ]
)


class _Rows:
    """The block rows of a chunk and the asks between them, in the order of the log."""

    def __init__(self, chunk: Chunk, content: Hashes, asks: Asks) -> None:
        self.at_block, self.at_ask = interleaved(chunk, asks)
        total = len(self.at_block) + len(self.at_ask)
        self.event = self._merged(chunk.event, asks.event)
        self.place = self._merged(chunk.place[chunk.event], asks.place)
        asked = chunk.source[chunk.batch[asks.event]] if asks.source is None else asks.source
        self.source = self._merged(chunk.source[chunk.batch[chunk.event]], asked)
        self.hash = np.empty(total, np.uint64)
        self.hash[self.at_block], self.hash[self.at_ask] = chunk.hash, asks.hash
        self.change = np.zeros(total, np.int64)
        self.change[self.at_block] = np.where(chunk.kind[chunk.event] == STORED, 1, -1)
        self.said = np.zeros(total, np.uint64)
        self.said[self.at_block] = content

    def _merged(self, blocks: Ints, asks: Ints) -> Ints:
        both = np.empty(len(self.at_block) + len(self.at_ask), np.int64)
        both[self.at_block], both[self.at_ask] = blocks, asks
        return both


class Holdings:
    """The counts after the chunks taken so far."""

    def __init__(self, names: Chunks) -> None:
        self.shelves = Shelves(names)
        self._shelf = np.zeros(0, np.int64)
        self._hash = np.zeros(0, np.uint64)
        self._facts = np.zeros(0, _FACTS)
        self._rows = 0

    def step(self, chunk: Chunk, content: Hashes, asks: Asks) -> Moves:
        """Take the next chunk. ``content`` is a digest of what each block row's store says (0: nothing)."""
        self._drop()
        rows = _Rows(chunk, content, asks)
        shelf = self.shelves.of(chunk, rows.event, (rows.source, rows.place), rows.change != 0)
        order, starts, segment = arranged(shelf, rows.hash)
        known = self._found(shelf[order[starts]], rows.hash[order[starts]])
        facts = self._known(known)
        change, said = rows.change[order], rows.said[order]
        after = floored(change, starts, segment, facts["count"])
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[starts] = facts["count"]
        carried = np.where(known >= 0, np.arange(len(known)), -1)[segment]
        put = latest_of(change > 0, starts, segment)
        taken = latest_of((change < 0) & (before > 0), starts, segment)
        clash, told = clashes(said, change > 0, starts, segment, carried, facts)
        row = np.cumsum(rows.change != 0) - (rows.change != 0) + self._rows
        moves = Moves(
            event=rows.event[order],
            time=order,
            change=change,
            before=before,
            after=after,
            shelf=shelf[order],
            hash=rows.hash[order],
            put=earlier_of(put, starts),
            taken=earlier_of(taken, starts),
            carried=carried,
            clash=clash,
            facts=facts,
            row=row[order],
        )
        self._keep(chunk, moves, starts, known, (put, taken, told), said)
        self._rows += len(chunk.hash)
        return moves

    def answers(self, chunk: Chunk, moves: Moves, asks: Asks) -> tuple[Ints, Bools]:
        """For each ask: the copies at that time, and whether the block was there then, or lately."""
        where = np.empty(len(moves.time), np.int64)
        where[moves.time] = np.arange(len(moves.time))
        at = where[interleaved(chunk, asks)[1]]
        seen = (moves.put[at] >= 0) | (moves.taken[at] >= 0)
        known, facts = moves.carried[at], moves.facts
        if len(facts):
            lately = (facts["count"][known] > 0) | (moves.row[at] - facts["taken_row"][known] <= TAKEN_MAX)
            seen |= (known >= 0) & lately
        return moves.before[at], seen

    def lives(self, shelves: Ints) -> Ints:
        """The ``life`` of each of some shelves."""
        numbers, which = numbered(shelves)
        found: Ints = np.array([self.shelves.all[number].life for number in numbers.tolist()], np.int64)[
            which
        ]
        return found

    def held(self, shelf: int, hashes: Hashes) -> Bools:
        """Which of some blocks a shelf holds, or held when it ended."""
        first, last = np.searchsorted(self._shelf, [shelf, shelf + 1])
        known = self._hash[first:last]
        if not len(known):
            return np.zeros(len(hashes), np.bool_)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        found: Bools = (known[at] == hashes) & (self._facts["count"][first:last][at] > 0)
        return found

    def resident(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(source, place) → (distinct blocks, copies) now."""
        found = {}
        for key, shelf in self.shelves.current.items():
            first, last = np.searchsorted(self._shelf, [shelf, shelf + 1])
            counts = self._facts["count"][first:last]
            found[key] = int((counts > 0).sum()), int(counts.sum())
        return found

    def count(self, shelf: int) -> int:
        """Distinct blocks that a shelf holds, or held when it ended in the last step."""
        first, last = np.searchsorted(self._shelf, [shelf, shelf + 1])
        return int((self._facts["count"][first:last] > 0).sum())

    def blocks(self) -> dict[tuple[int, int], tuple[Hashes, Ints]]:
        """(source, place) → the hashes it holds now, rising, and how many copies of each."""
        found = {}
        for key, shelf in self.shelves.current.items():
            first, last = np.searchsorted(self._shelf, [shelf, shelf + 1])
            counts = self._facts["count"][first:last]
            found[key] = self._hash[first:last][counts > 0], counts[counts > 0]
        return found

    @property
    def rows(self) -> int:
        """Rows of the table: resident, of the shelves before, and taken out lately."""
        return len(self._hash)

    def check_integrity(self) -> None:
        """Raise AssertionError where the table contradicts itself."""
        assert len(self._shelf) == len(self._hash) == len(self._facts)
        same = self._shelf[1:] == self._shelf[:-1]
        assert (self._shelf[1:] >= self._shelf[:-1]).all()
        assert (self._hash[1:][same] > self._hash[:-1][same]).all()
        assert (self._facts["count"] >= 0).all()
        assert set(np.unique(self._shelf).tolist()) <= self.shelves.all.keys()
        assert all(self.shelves.all[n][:2] == key for key, n in self.shelves.current.items())

    def _drop(self) -> None:
        """Let go of the blocks of shelves that are over."""
        if self.shelves.over:
            gone = np.isin(self._shelf, self.shelves.over)
            self._shelf, self._hash, self._facts = self._shelf[~gone], self._hash[~gone], self._facts[~gone]
            self.shelves.forget()

    # -- the table -----------------------------------------------------------------------------------------

    def _found(self, shelf: Ints, block_hash: Hashes) -> Ints:
        """Rows of the table, -1 where it has none; the arguments are sorted by shelf."""
        found = np.full(len(shelf), -1, np.int64)
        if not len(shelf):
            return found
        numbers, firsts = np.unique(shelf, return_index=True)
        lasts = np.append(firsts[1:], len(shelf))
        lows, highs = (
            np.searchsorted(self._shelf, numbers),
            np.searchsorted(self._shelf, numbers, side="right"),
        )
        for first, last, low, high in zip(firsts, lasts, lows, highs, strict=True):
            if low == high:
                continue
            part, wanted = self._hash[low:high], block_hash[first:last]
            at = np.minimum(np.searchsorted(part, wanted), len(part) - 1)
            found[first:last] = np.where(part[at] == wanted, at + low, -1)
        return found

    def _known(self, rows: Ints) -> npt.NDArray[Any]:
        """A copy of rows of the table; -1 gives a block of which nothing is known."""
        facts = np.zeros(len(rows), _FACTS)
        facts["put_event"] = facts["taken_event"] = -1
        facts[rows >= 0] = self._facts[rows[rows >= 0]]
        return facts

    def _keep(
        self,
        chunk: Chunk,
        moves: Moves,
        starts: Ints,
        known: Ints,
        latest: tuple[Ints, Ints, Ints],
        said: Hashes,
    ) -> None:
        """What the chunk left, into the table; blocks taken out long ago leave it."""
        ends = np.append(starts[1:], len(moves.event)) - 1 if len(starts) else starts
        put, taken, told = (rows[ends] for rows in latest)
        facts, old = moves.facts.copy(), known >= 0
        facts["count"] = moves.after[ends]
        for rows, name in ((put, "put"), (taken, "taken")):
            have = rows >= 0
            event = moves.event[rows[have]]
            batch = chunk.batch[event]
            facts[name + "_position"][have] = chunk.position[batch]
            facts[name + "_seq"][have] = chunk.seq[batch]
            facts[name + "_event"][have] = chunk.index[event]
        facts["taken_row"][taken >= 0] = moves.row[taken[taken >= 0]]
        facts["content"][told >= 0] = said[told[told >= 0]]
        self._facts[known[old]] = facts[old]
        new = ~old & ((facts["count"] > 0) | (taken >= 0))
        self._insert(moves.shelf[ends][new], moves.hash[ends][new], facts[new], len(chunk.hash))

    def _insert(self, shelf: Ints, block_hash: Hashes, facts: npt.NDArray[Any], rows: int) -> None:
        """New rows of the table, sorted as it is; those taken out long ago leave."""
        lows = np.searchsorted(self._shelf, shelf)
        highs = np.searchsorted(self._shelf, shelf, side="right")
        into = lows.copy()
        for number in np.unique(shelf).tolist():
            mine = shelf == number
            low, high = int(lows[mine][0]), int(highs[mine][0])
            into[mine] = low + np.searchsorted(self._hash[low:high], block_hash[mine])
        oldest = self._rows + rows - TAKEN_MAX
        stays = (self._facts["count"] > 0) | (self._facts["taken_row"] >= oldest)
        into = np.append(0, np.cumsum(stays))[into]
        self._shelf = np.insert(self._shelf[stays], into, shelf)
        self._hash = np.insert(self._hash[stays], into, block_hash)
        self._facts = np.insert(self._facts[stays], into, facts)
