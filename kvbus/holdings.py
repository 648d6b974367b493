"""How many copies of each block are where, worked out for a whole chunk at once: the counts behind the rules.

A store adds a copy, a removal takes one, no count falls below zero. Rows of a chunk are sorted by (shelf,
hash, time) and summed; what is known from before comes from one table (``kvbus/block_table``), whose size is
that of the resident blocks, the residents of the shelf before, and ``TAKEN_MAX`` blocks taken out lately.
Results do not depend on where a log was cut into chunks.

``kvbus/residency`` counts the same one event at a time; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from kvbus.block_table import SPOT, BlockTable, whole
from kvbus.chunk import STORED, Bools, Chunk, Hashes, Ints
from kvbus.chunks import Chunks
from kvbus.moves import NEVER, Asks, Moves, arranged, clashes, earlier_of, floored, interleaved, latest_of
from kvbus.names import numbered
from kvbus.shelves import Shelves

TAKEN_MAX: Final = 32_768
"""A block that is taken out is remembered for so many block rows of the log: the removal, and its content."""


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


class _Latest(NamedTuple):
    """For each sorted row, itself included, its block's latest row that put a copy there, took one, told what
    the block is, came back after so long that what was known is forgotten (each -1: none in this chunk).
    """

    put: Ints
    taken: Ints
    told: Ints
    anew: Ints


class Holdings:
    """The counts after the chunks taken so far."""

    def __init__(self, names: Chunks) -> None:
        self.shelves = Shelves(names)
        self._table = BlockTable()
        self._rows = 0

    def step(self, chunk: Chunk, content: Hashes, asks: Asks) -> Moves:
        """Take the next chunk. ``content`` is a digest of what each block row's store says (0: nothing)."""
        if self.shelves.over:
            self._table.drop(self.shelves.over)
            self.shelves.forget()
        rows = _Rows(chunk, content, asks)
        shelf = self.shelves.of(chunk, rows.event, (rows.source, rows.place), rows.change != 0)
        order, starts, segment = arranged(shelf, rows.hash)
        known = self._table.find(shelf[order[starts]], rows.hash[order[starts]])
        facts = self._table.facts(known)
        change, said = rows.change[order], rows.said[order]
        after = floored(change, starts, segment, facts["count"])
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[starts] = facts["count"]
        carried = np.where(known >= 0, np.arange(len(known)), -1)[segment]
        put = latest_of(change > 0, starts, segment)
        taken = latest_of((change < 0) & (before > 0), starts, segment)
        told = latest_of((change > 0) & (said != 0), starts, segment)
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
            facts=facts,
            row=row[order],
        )
        anew = latest_of(self._comes_anew(moves), starts, segment)
        clash = clashes(said, told, anew, starts, facts["content"][segment])
        self._keep(chunk, moves, starts, known, _Latest(put, taken, told, anew), said)
        self._rows += len(chunk.hash)
        return replace(moves, clash=clash)

    def _comes_anew(self, moves: Moves) -> Bools:
        """Stores of blocks that were gone for so long that what was said of them is forgotten."""
        anew: Bools = (moves.change > 0) & (moves.before == 0)
        comes = np.flatnonzero(anew)
        anew[comes] = moves.since_taken(comes) > TAKEN_MAX
        return anew

    def lately(self, moves: Moves, rows: Ints) -> Bools:
        """For ``rows`` of ``moves``: whether the last removal of a copy of the block is remembered."""
        since = moves.since_taken(rows)
        found: Bools = (since <= TAKEN_MAX) & (since != NEVER)
        return found

    def answers(self, chunk: Chunk, moves: Moves, asks: Asks) -> tuple[Ints, Bools]:
        """For each ask: the copies at that time, and whether the block was there then, or lately."""
        at = moves.at_times(interleaved(chunk, asks)[1])
        return moves.before[at], (moves.before[at] > 0) | self.lately(moves, at)

    def lives(self, shelves: Ints) -> Ints:
        """The ``life`` of each of some shelves."""
        numbers, which = numbered(shelves)
        lives = np.array([self.shelves.all[number].life for number in numbers.tolist()], np.int64)
        return lives[which]

    def held(self, shelf: int, hashes: Hashes) -> Bools:
        """Which of some blocks a shelf holds, or held when it ended."""
        there, _ = self._table.held(shelf)
        return np.isin(hashes, there)

    def count(self, shelf: int) -> int:
        """Distinct blocks that a shelf holds, or held when it ended in the last step."""
        return len(self._table.held(shelf)[0])

    def blocks(self) -> dict[tuple[int, int], tuple[Hashes, Ints]]:
        """(source, place) → the hashes it holds now, rising, and how many copies of each."""
        return {key: self._table.held(shelf) for key, shelf in self.shelves.current.items()}

    def resident(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(source, place) → (distinct blocks, copies) now."""
        return {key: (len(hashes), int(copies.sum())) for key, (hashes, copies) in self.blocks().items()}

    @property
    def rows(self) -> int:
        """Blocks remembered: resident, of the shelves before, and taken out lately."""
        return len(self._table)

    def check_integrity(self) -> None:
        """Raise AssertionError where what is remembered contradicts itself."""
        self._table.check_integrity()
        assert self._table.shelves <= self.shelves.all.keys()
        assert all(self.shelves.all[n][:2] == key for key, n in self.shelves.current.items())

    def _keep(
        self,
        chunk: Chunk,
        moves: Moves,
        starts: Ints,
        known: Ints,
        latest: _Latest,
        said: Hashes,
    ) -> None:
        """What the chunk left, into the table; blocks taken out long ago leave it."""
        ends = np.append(starts[1:], len(moves.event)) - 1 if len(starts) else starts
        put, taken, told, anew = (rows[ends] for rows in latest)
        facts, old = whole(moves.facts).copy().view(moves.facts.dtype), known >= 0
        facts["count"] = moves.after[ends]
        spots = np.empty(len(chunk.batch), SPOT)
        spots["position"], spots["seq"] = chunk.position[chunk.batch], chunk.seq[chunk.batch]
        spots["event"] = chunk.index
        for rows, name in ((put, "put"), (taken, "taken"), (told, "told")):
            have = rows >= 0
            whole(facts[name])[have] = whole(spots)[moves.event[rows[have]]]
        facts["taken_row"][taken >= 0] = moves.row[taken[taken >= 0]]
        facts["content"][told >= 0] = said[told[told >= 0]]
        facts["content"][anew > told] = 0
        self._table.update(known[old], whole(facts)[old])
        new = ~old & ((facts["count"] > 0) | (taken >= 0))
        oldest = self._rows + len(chunk.hash) - TAKEN_MAX
        self._table.insert(moves.shelf[ends][new], moves.hash[ends][new], whole(facts)[new], oldest=oldest)
