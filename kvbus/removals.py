"""Why blocks left: every removal of a log, put into one of a few classes.

A ``reason`` that an event gives is believed. Without one it is inferred from who holds the block then: still
readable below is demoted, a batch that leaves a tier empty is a reset, the rest is evicted. What cannot be
told is unknown, not guessed. Work is done a chunk of columns at a time; results do not depend on where a log
was cut into chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from kvbus.below import Below, Blind
from kvbus.block_log import chunks
from kvbus.chunk import REMOVED, Bools, Chunk, Chunks, Ints, Place
from kvbus.clouds import CERTAIN, Clouds
from kvbus.findings import Findings
from kvbus.holdings import Holdings
from kvbus.log import LogReader, SourceId
from kvbus.moves import Asks, Moves, interleaved
from kvbus.rules.payload import Decoding
from kvbus.rules.transport import Transport

CLASSES: Final = {
    "evicted": "its room was wanted: it is in no tier below",
    "demoted": "it left this tier and is still readable in a lower one",
    "reset": "the tier was emptied",
    "corrupt": "its bytes were found damaged",
    "deleted": "somebody asked for it",
    "copy": "one of several copies: the block is still in this tier",
    "unknown": "it was not known to be there, or what was missed could explain it otherwise",
}
"""Why a block left, as classes."""

How = Literal["said", "inferred"]
GIVEN: Final = ("evicted", "reset", "corrupt", "deleted")
"""Reasons that events give."""

_NAMES: Final = list(CLASSES)
EVICTED, DEMOTED, RESET, _, _, COPY, UNKNOWN = range(len(_NAMES))


class Why(Struct, frozen=True):
    """Removals of one kind, counted. ``how``: a ``reason`` said so, or it was inferred. ``medium`` canonical.

    ``reason`` is the word that was given; where that is none of ours, the class is ``unknown``.
    """

    source: SourceId
    medium: str
    why: str
    how: How
    reason: str | None


class Removed(Struct, frozen=True):
    """One removed block and why; of a clear, all ``blocks`` it took from a group at once (``block`` None)."""

    position: int
    epoch: int
    seq: int
    event: int
    received_ns: int
    group: int | None
    block: int | None
    blocks: int
    because: Why


class _Facts(NamedTuple):
    """Of each removed block: its copies before and after; whether a tier below holds it; whether its batch
    leaves the tier empty; whether its count, and those below, are uncertain.
    """

    before: Ints
    after: Ints
    below: Bools
    empties: Bools
    doubtful: Bools
    blind: Bools


class Classified(NamedTuple):
    """The removals of a chunk: a block row each, its class (of ``CLASSES``, by number), whether it was said;
    and what its clears took, a clear's groups by number.
    """

    row: Ints
    why: Ints
    said: Bools
    cleared: list[Removed]


class Removals:
    """Classifies the removals of the chunks it is given, in order; ``counts`` adds them up."""

    def __init__(self, names: Chunks) -> None:
        self.counts: Counter[Why] = Counter()
        self._names = names
        unheard = Findings(0)
        self._transport = Transport(names, unheard)
        self._decoding = Decoding(names, unheard)
        self._clouds = Clouds()
        self._blind = Blind(names)
        self._holdings = Holdings(names)
        self._below = Below(names)

    def look(self, chunk: Chunk) -> Classified:
        """Take the next chunk."""
        missed = [*self._transport.look(chunk), *self._decoding.look(chunk)]
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
        doubtful = sky.doubts(chunk, events, _gpu(self._names)[chunk.medium[events]]) != CERTAIN
        before, after, empties = _counts(chunk, moves, rows, asks, held)
        why, said = self._classes(chunk, events, _Facts(before, after, below, empties, doubtful, unseen))
        found = Classified(rows, why, said, sorted(self._cleared(chunk), key=_place))
        self._count(chunk, found)
        return found

    def listed(self, chunk: Chunk, found: Classified) -> Iterator[Removed]:
        """Each removal of a chunk, as the log has them."""
        rows = zip(found.row.tolist(), found.why.tolist(), found.said.tolist(), strict=True)
        removed = (self._removed(chunk, *one) for one in rows)
        yield from merge(found.cleared, removed, key=lambda one: (one.position, one.event))

    def _removed(self, chunk: Chunk, row: int, why: int, said: bool) -> Removed:
        event = int(chunk.event[row])
        at, reason = int(chunk.batch[event]), int(chunk.reason[event])
        place: Place = self._names.places.names[int(chunk.place[event])]
        return Removed(
            position=int(chunk.position[at]),
            epoch=int(chunk.epoch[at]),
            seq=int(chunk.seq[at]),
            event=int(chunk.index[event]),
            received_ns=int(chunk.received_ns[at]),
            group=place.group,
            block=int(chunk.hash[row]),
            blocks=1,
            because=self._because(int(chunk.source[at]), place.medium, reason, why, said=said),
        )

    def _because(self, source: int, medium: str, reason: int, why: int, *, said: bool) -> Why:
        word = None if reason < 0 else self._names.reasons.names[reason]
        return Why(self._names.sources[source], medium, _NAMES[why], "said" if said else "inferred", word)

    def _classes(self, chunk: Chunk, events: Ints, facts: _Facts) -> tuple[Ints, Bools]:
        """The class of each removed block, and whether a reason decided it."""
        why = np.full(len(events), EVICTED)
        why[facts.empties] = RESET
        why[facts.blind] = UNKNOWN
        why[facts.below] = DEMOTED
        why[(facts.before == 0) & ~facts.doubtful] = UNKNOWN
        given = np.array([_given(name) for name in self._names.reasons.names] + [EVICTED], np.int64)
        given = given[chunk.reason[events]]
        said = (chunk.reason[events] >= 0) & (facts.after == 0) & ~(facts.below & (given == EVICTED))
        why = np.where(said, given, why)
        why[facts.after > 0] = COPY
        return why, said

    def _cleared(self, chunk: Chunk) -> Iterator[Removed]:
        """What clears took, in no order."""
        shelves = self._holdings.shelves
        for number, clear in shelves.ended:
            blocks = self._holdings.count(number)
            if clear is None or not blocks:
                continue
            shelf = shelves.all[number]
            place: Place = self._names.places.names[shelf.place]
            row = int(np.searchsorted(chunk.position, np.uint64(clear.position)))
            yield Removed(
                position=clear.position,
                epoch=shelf.epoch,
                seq=clear.seq,
                event=clear.event,
                received_ns=int(chunk.received_ns[row]),
                group=place.group,
                block=None,
                blocks=blocks,
                because=self._because(shelf.source, place.medium, -1, RESET, said=True),
            )

    def _count(self, chunk: Chunk, found: Classified) -> None:
        event = chunk.event[found.row]
        columns = [chunk.source[chunk.batch[event]], chunk.medium[event], chunk.reason[event]]
        kinds = np.stack([*columns, found.why, found.said.astype(np.int64)])
        for (source, medium, reason, why, said), many in _distinct(kinds):
            name = self._names.media.names[medium]
            self.counts[self._because(source, name, reason, why, said=bool(said))] += many
        for one in found.cleared:
            self.counts[one.because] += one.blocks


def _place(one: Removed) -> tuple[int, int, int]:
    """Where it stands; of one clear, no group before group 0."""
    return one.position, one.event, -1 if one.group is None else one.group


def _given(reason: str) -> int:
    return _NAMES.index(reason) if reason in GIVEN else UNKNOWN


def _distinct(columns: Ints) -> Iterator[tuple[tuple[int, ...], int]]:
    """The distinct columns of an array of small numbers (-1 and up), with how often each is there."""
    if not columns.shape[1]:
        return
    sizes = columns.max(axis=1) + 2
    codes = np.ravel_multi_index(tuple(columns + 1), tuple(sizes))
    _, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
    for first, many in zip(firsts.tolist(), counts.tolist(), strict=True):
        yield tuple(columns[:, first].tolist()), many


def _gpu(names: Chunks) -> Bools:
    """For each medium by number, whether it is the GPU; at -1: no."""
    return np.array([name == "GPU" for name in names.media.names] + [False], np.bool_)


def _counts(
    chunk: Chunk, moves: Moves, rows: Ints, asks: Asks, held: Mapping[int, int]
) -> tuple[Ints, Ints, Bools]:
    """Of each removed block row: copies before and after, and whether its batch leaves empty a shelf that
    held several blocks when it began. ``held``: what shelves held before the chunk.
    """
    times = interleaved(chunk, asks)[0]
    where = np.empty(len(moves.time), np.int64)
    where[moves.time] = np.arange(len(moves.time))
    at = where[times[rows]]
    before, after, shelf = moves.before[at], moves.after[at], moves.shelf[at]
    if not len(rows):
        return before, after, np.zeros(0, np.bool_)
    changed = (moves.after > 0).astype(np.int64) - (moves.before > 0)
    order = np.lexsort((moves.time, moves.shelf))
    span = len(moves.time) + 1
    key = moves.shelf[order] * span + moves.time[order]
    sums = np.append(0, np.cumsum(changed[order]))
    base = np.array([held.get(number, 0) for number in range(int(moves.shelf.max()) + 1)], np.int64)
    behind = np.append(times, len(moves.time))
    batch = chunk.batch[chunk.event[rows]]
    first = behind[chunk.first_block[chunk.first_event[batch]]]
    last = behind[chunk.first_block[chunk.first_event[batch + 1]]]
    begun = sums[np.searchsorted(key, shelf * span)]
    at_first = base[shelf] + sums[np.searchsorted(key, shelf * span + first)] - begun
    at_last = base[shelf] + sums[np.searchsorted(key, shelf * span + last)] - begun
    return before, after, (at_first > 1) & (at_last == 0)


def removals(log: LogReader, *, last: int | None = None) -> Counter[Why]:
    """Why blocks left up to position ``last`` (None: the end), counted in blocks."""
    names = Chunks()
    found = Removals(names)
    for chunk in chunks(log, names, last=last):
        found.look(chunk)
    return found.counts


def listed(log: LogReader, *, last: int | None = None) -> Iterator[Removed]:
    """Every removal up to position ``last`` (None: the end), in the order of the log."""
    names = Chunks()
    found = Removals(names)
    for chunk in chunks(log, names, last=last):
        yield from found.listed(chunk, found.look(chunk))
