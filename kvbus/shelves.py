"""Which life of a tier an event speaks of: a *shelf* is one (source, medium, group) between two resets.

A new epoch of a source begins new shelves, AllBlocksCleared new ones of its GPU. A shelf is made when
something is first stored to it or removed from it; the one before is remembered until this one ends too. No
blocks are here: ``kvbus/holdings`` counts them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import CLEARED, Bools, Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.log import EpochBegan
from kvbus.names import numbered

NOWHERE: Final = -1
"""The shelf of a row that only asks, where there is none."""


class Spot(NamedTuple):
    """Where an event stands: batch position and number, index in the batch."""

    position: int
    seq: int
    event: int


class Shelf(NamedTuple):
    """One life of a tier. ``began``: the clear it began with; ``former``: the shelf before, by number.

    ``life`` counts the resets of its source's medium before it: shelves of one medium with one life are there
    together.
    """

    source: int
    place: int
    epoch: int
    life: int
    began: Spot | None
    former: int | None
    former_epoch: int | None


class Reset(NamedTuple):
    """From event row ``row`` on a source's shelves are new: its GPU's (``clear``), or all (a new epoch)."""

    row: int
    source: int
    epoch: int
    clear: Spot | None


class Shelves:
    """All shelves by number (``all``), those in use by (source, place) (``current``), and those that are
    over: whoever keeps their blocks lets go of them and calls ``forget``. ``ended``: those that ended in the
    last chunk, with the clear that did it (None: a new epoch).
    """

    def __init__(self, names: Chunks) -> None:
        self.all: dict[int, Shelf] = {}
        self.current: dict[tuple[int, int], int] = {}
        self.over: list[int] = []
        self.ended: list[tuple[int, Spot | None]] = []
        self._names = names
        self._last: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, int] = {}
        self._clears: dict[int, Spot] = {}
        self._lives: dict[tuple[int, bool], int] = {}
        self._next_shelf = 0

    def forget(self) -> None:
        """Drop the shelves that are over."""
        for number in self.over:
            del self.all[number]
        self.over = []

    def of(self, chunk: Chunk, event: Ints, where: tuple[Ints, Ints], moved: Bools) -> Ints:
        """The shelf of each row (``event``; ``where``: source and place), with the chunk's resets on the way.

        A row that is only asked about (not ``moved``) makes no shelf: it is ``NOWHERE`` if there is none.
        """
        self.ended = []
        resets, (source_of, place) = self._resets(chunk), where
        section = np.searchsorted(np.array([r.row for r in resets], np.int64), event, side="right")
        places = max(len(self._names.places.names), 1)
        code = (section * (len(self._names.sources) + 1) + source_of) * places + place
        codes, which = numbered(code)
        made = np.zeros(len(codes), np.bool_)
        made[which[moved]] = True
        shelves = np.empty(len(codes), np.int64)
        done = 0
        for n, one in enumerate(codes.tolist()):
            rest, number = divmod(one, places)
            due, source = divmod(rest, len(self._names.sources) + 1)
            while done < due:
                self._take(resets[done])
                done += 1
            known = self.current.get((source, number), NOWHERE)
            shelves[n] = self._shelf_at(source, number) if made[n] else known
        for reset in resets[done:]:
            self._take(reset)
        found: Ints = shelves[which]
        return found

    def _resets(self, chunk: Chunk) -> list[Reset]:
        found: list[tuple[int, int, Reset]] = []
        for before, mark in chunk.marks:
            if isinstance(mark, EpochBegan):
                number = self._names.source_number(mark.source)
                found.append((before, 0, Reset(int(chunk.first_event[before]), number, mark.epoch, None)))
        for at in beginnings(chunk, self._names):
            source, epoch = int(chunk.source[at]), int(chunk.epoch[at])
            found.append((at, 1, Reset(int(chunk.first_event[at]), source, epoch, None)))
        for row in np.flatnonzero(chunk.kind == CLEARED).tolist():
            at = int(chunk.batch[row])
            spot = Spot(int(chunk.position[at]), int(chunk.seq[at]), int(chunk.index[row]))
            found.append((at, 2, Reset(row, int(chunk.source[at]), int(chunk.epoch[at]), spot)))
        return [reset for *_, reset in sorted(found, key=lambda item: (item[2].row, item[0], item[1]))]

    def _take(self, reset: Reset) -> None:
        if reset.clear is None:
            if self._epochs.get(reset.source) == reset.epoch:
                return
            self._epochs[reset.source] = reset.epoch
            self._clears.pop(reset.source, None)
        else:
            self._clears[reset.source] = reset.clear
        for gpu in (True, False) if reset.clear is None else (True,):
            self._lives[reset.source, gpu] = self._lives.get((reset.source, gpu), 0) + 1
        for key in [key for key in self.current if key[0] == reset.source]:
            if reset.clear is None or self._is_gpu(key[1]):
                self._end(key, reset.clear)

    def _end(self, key: tuple[int, int], clear: Spot | None) -> None:
        number = self.current.pop(key)
        self.ended.append((number, clear))
        before = self.all[number].former
        if before is not None:
            self.over.append(before)
        self._last[key] = number

    def _shelf_at(self, source: int, place: int) -> int:
        known = self.current.get((source, place))
        if known is not None:
            return known
        number, self._next_shelf = self._next_shelf, self._next_shelf + 1
        former = self._last.pop((source, place), None)
        began = self._clears.get(source) if self._is_gpu(place) else None
        epoch = self._epochs.get(source, 0)
        former_epoch = None if former is None else self.all[former].epoch
        life = self._lives.get((source, self._is_gpu(place)), 0)
        self.all[number] = Shelf(source, place, epoch, life, began, former, former_epoch)
        self.current[source, place] = number
        return number

    def _is_gpu(self, place: int) -> bool:
        return self._names.places.names[place].is_gpu


def beginnings(chunk: Chunk, names: Chunks) -> list[int]:
    """Rows of batches that may begin an epoch: the first of their source here, those of another epoch than
    the one before, and those after a mark.
    """
    order = np.argsort(chunk.source, kind="stable")
    source, epoch = chunk.source[order], chunk.epoch[order]
    turns = np.ones(len(order), np.bool_)
    turns[1:] = (source[1:] != source[:-1]) | (epoch[1:] != epoch[:-1])
    found = set(order[turns].tolist())
    for before, mark in chunk.marks:
        if isinstance(mark, EpochBegan):
            mine = chunk.source[before:] == names.source_number(mark.source)
            found.update((np.flatnonzero(mine)[:1] + before).tolist())
    return sorted(found)
