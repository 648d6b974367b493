"""Why blocks left: every removal of a log, put into one of a few classes.

A ``reason`` that an event gives is believed. Without one it is inferred from who holds the block then: still
readable below is demoted, a batch that leaves a tier empty is a reset, the rest is evicted. What cannot be
told is unknown, not guessed. Work is done a chunk of columns at a time; results do not depend on where a log
was cut into chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import merge
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from kvbus.block_log import chunks
from kvbus.chunk import Bools, Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.departures import Departed, Departures
from kvbus.log import LogReader, SourceId

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
        self._departures = Departures(names)

    def look(self, chunk: Chunk) -> Classified:
        """Take the next chunk."""
        departed = self._departures.look(chunk)
        why, said = self._classes(chunk.reason[departed.event], departed)
        found = Classified(departed.row, why, said, sorted(self._cleared(chunk), key=_spot))
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
        place = self._names.places.names[int(chunk.place[event])]
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

    def _classes(self, reason: Ints, departed: Departed) -> tuple[Ints, Bools]:
        """The class of each removed block, and whether its ``reason`` (by number; -1: none) decided it."""
        why = np.full(len(reason), EVICTED)
        why[departed.empties] = RESET
        why[departed.blind] = UNKNOWN
        why[departed.below] = DEMOTED
        why[(departed.before == 0) & ~departed.doubtful] = UNKNOWN
        given = np.array([_given(name) for name in self._names.reasons.names] + [EVICTED], np.int64)[reason]
        said = (reason >= 0) & (departed.after == 0) & ~(departed.below & (given == EVICTED))
        why = np.where(said, given, why)
        why[departed.after > 0] = COPY
        return why, said

    def _cleared(self, chunk: Chunk) -> Iterator[Removed]:
        """What clears took, in no order."""
        for shelf, clear, blocks in self._departures.cleared():
            place = self._names.places.names[shelf.place]
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


def _spot(one: Removed) -> tuple[int, int, int]:
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
