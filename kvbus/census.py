"""Which blocks were in which tier at a place in a log, without judging or folding all that came before it.

A log that keeps columns says where each source's present life began: its epoch, and for the GPU its last
clear. Only what was said since counts; those block rows are sorted once, by tier and hash, and summed. Of any
other log the counts are folded chunk by chunk. Both give the same, and a test holds them to the slow fold of
``kvbus/residency``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from kvbus.block_log import BlockLog, BlockRows, SourceLife, chunks
from kvbus.chunk import CLEARED, REMOVED, STORED, STRANGE, UNREADABLE, Bools, Chunk, Hashes, Ints, Place
from kvbus.chunks import Chunks
from kvbus.holdings import Holdings
from kvbus.log import EpochBegan, LogReader, SourceId
from kvbus.moments import Missing, Moment, moments, next_position
from kvbus.moves import Asks, arranged, floored
from kvbus.names import distinct
from kvbus.rules.transport import Missed

ROWS_MAX: Final = 1 << 20
"""Block rows that are sorted at once; more are taken in parts, by hash."""


class Shelved(NamedTuple):
    """What one tier of one source holds: hashes, rising, and how many copies of each (at least one).

    Not ``certain``: something was missed that may have been, or hidden, stores and removals.
    """

    source: SourceId
    epoch: int
    place: Place
    hashes: Hashes
    copies: Ints
    certain: bool


class Summed(Struct, frozen=True):
    """A ``Shelved`` in numbers: distinct blocks, and copies of them."""

    source: str
    topic: str
    rank: int | None
    instance: int
    epoch: int
    medium: str
    group: int | None
    blocks: int
    copies: int
    certain: bool

    @classmethod
    def of(cls, shelved: Shelved) -> Summed:
        source, place = shelved.source, shelved.place
        return cls(
            source=source.source,
            topic=source.topic_text,
            rank=source.said_rank,
            instance=source.instance,
            epoch=shelved.epoch,
            medium=place.medium,
            group=place.group,
            blocks=len(shelved.hashes),
            copies=int(shelved.copies.sum()),
            certain=shelved.certain,
        )


class _Lives:
    """Follows each source through chunks: where its present life began, and what of it was missed."""

    def __init__(self, names: Chunks) -> None:
        self.lives: dict[int, SourceLife] = {}
        self._names = names
        self._missing = Missing(names)
        self._behind = 0

    def look(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        self._behind = next_position(chunk, self._behind)
        clears = np.flatnonzero(chunk.kind == CLEARED)
        for moment in moments(chunk, self._names, self._missing.look(chunk), clears):
            self._take(chunk, moment)

    def _take(self, chunk: Chunk, moment: Moment) -> None:
        position = moment.position(chunk, self._behind)
        match moment.what:
            case EpochBegan() as mark:
                self._begin(self._names.source_number(mark.source), moment.epoch, position)
            case Missed() as miss:
                life = self.lives.get(miss.source)
                if life is not None and life.epoch == moment.epoch:
                    self.lives[miss.source] = life._replace(missed=(position, _index(chunk, moment)))
            case int(event) if moment.rank:
                number = int(chunk.source[chunk.batch[event]])
                at = position, int(chunk.index[event])
                self.lives[number] = self.lives[number]._replace(cleared=at)
            case int(row):
                self._begin(int(chunk.source[row]), moment.epoch, position)

    def _begin(self, number: int, epoch: int, position: int) -> None:
        known = self.lives.get(number)
        if known is None or known.epoch != epoch:
            self.lives[number] = SourceLife(number, epoch, 0 if known is None else position, None, None)


def _index(chunk: Chunk, moment: Moment) -> int:
    """Where in its batch something was missed: see ``SourceLife``."""
    if moment.turn % 2:
        return -2
    row = moment.turn // 2
    is_event = moment.row < chunk.first_event[row + 1] and chunk.kind[moment.row] in (STRANGE, UNREADABLE)
    return int(chunk.index[moment.row]) if is_event else -1


def census(log: LogReader, *, last: int | None = None) -> list[Shelved]:
    """What every tier held after position ``last`` (None: at the end; -1: before the first batch), sorted by
    source, medium and group. A tier that is named and empty is in it.
    """
    names = Chunks()
    found = _sorted_once(log, names, last) if isinstance(log, BlockLog) else _folded(log, names, last)
    return sorted(found, key=lambda shelved: (shelved.source, _named(shelved.place)))


def _named(place: Place) -> tuple[str, int]:
    return place.medium, -1 if place.group is None else place.group


def _folded(log: LogReader, names: Chunks, last: int | None) -> Iterator[Shelved]:
    lives, holdings = _Lives(names), Holdings(names)
    for chunk in chunks(log, names, last=last):
        lives.look(chunk)
        holdings.step(chunk, np.zeros(len(chunk.hash), np.uint64), Asks.none())
    for (number, at), (hashes, copies) in holdings.blocks().items():
        yield _shelved(names, lives.lives[number], names.places.names[at], hashes, copies)


def _shelved(names: Chunks, life: SourceLife, place: Place, hashes: Hashes, copies: Ints) -> Shelved:
    missed = life.missed
    if place.is_gpu and missed is not None and life.cleared is not None:
        missed = max(missed, life.cleared)
        missed = None if missed == life.cleared else missed
    return Shelved(names.sources[life.source], life.epoch, place, hashes, copies, missed is None)


def _sorted_once(log: BlockLog, names: Chunks, last: int | None) -> Iterator[Shelved]:
    if last is not None and last < 0:
        return
    lives = {life.source: life for life in log.source_lives(last)}
    if not lives:
        return
    names.sources.update(log.sources())
    names.learn(log.shapes())
    began = min(life.began for life in lives.values())
    ended = log.batch_count() - 1 if last is None else last
    parts = max(1, -(-log.block_count(began, ended) // ROWS_MAX))
    counted: dict[tuple[int, int], list[tuple[Hashes, Ints]]] = {}
    source_of = log.sources_of(began, ended)
    for part in range(parts):
        rows = log.block_rows(began, ended, part=part, parts=parts)
        for key, hashes, copies in _counted(names, lives, source_of, began, rows):
            counted.setdefault(key, []).append((hashes, copies))
    for (number, at), found in counted.items():
        hashes = np.concatenate([part for part, _ in found])
        copies = np.concatenate([part for _, part in found])
        order = np.argsort(hashes)
        yield _shelved(names, lives[number], names.places.names[at], hashes[order], copies[order])


def _counted(
    names: Chunks, lives: Mapping[int, SourceLife], source_of: Ints, began: int, rows: BlockRows
) -> Iterator[tuple[tuple[int, int], Hashes, Ints]]:
    """(source, place), hashes and copies of each tier that these rows are about."""
    position, event, shape, block = rows
    kind, place = names.kinds_and_places(shape)
    source = source_of[position - began]
    counts = _present(names, lives, source, place, position, event) & ((kind == STORED) | (kind == REMOVED))
    if not counts.all():
        kind, place, source, block = kind[counts], place[counts], source[counts], block[counts]
    if not len(block):
        return
    places = len(names.places.names)
    order, starts, segment = arranged(source * places + place, block)
    change = np.where(kind == STORED, 1, -1)[order]
    ends = np.append(starts[1:], len(order)) - 1
    copies = floored(change, starts, segment, np.zeros(len(starts), np.int64))[ends]
    first = order[starts]
    tiers, hashes = (source * places + place)[first], block[first]
    for number in distinct(tiers).tolist():
        mine = (tiers == number) & (copies > 0)
        yield divmod(number, places), hashes[mine], copies[mine]


def _present(
    names: Chunks, lives: Mapping[int, SourceLife], source: Ints, place: Ints, position: Ints, event: Ints
) -> Bools:
    """Which rows are of the present life of their tier: neither before its epoch, nor before its clear."""
    began, cleared, at = (np.zeros(max(lives) + 1, np.int64) for _ in range(3))
    for number, life in lives.items():
        began[number] = life.began
        cleared[number], at[number] = life.cleared or (0, -1)
    over = cleared[source]
    gone = names.gpu_places()[place] & ((position < over) | ((position == over) & (event < at[source])))
    found: Bools = (position >= began[source]) & ~gone
    return found
