"""One chunk as the rules see it: its columns, what each row did, the clouds over it, and where findings go.

Only ways to name things: no rule is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvbus.chunk import STORED, Bools, Chunk, Chunks, Ints, distinct
from kvbus.clouds import CERTAIN, Sky
from kvbus.findings import Findings, Group, Order, Told
from kvbus.holdings import TAKEN_MAX, Holdings
from kvbus.moves import Moves
from kvbus.rules.words import named, tier
from kvbus.shelves import Shelf, Spot
from kvbus.verdict import Witness, witness

Say = Callable[["Scene", int], Told]
"""How a rule words a finding at a row: because, and the fewest events that show it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """See the module. ``row`` below is a row of ``moves``, ``event`` an event row of ``chunk``."""

    chunk: Chunk
    names: Chunks
    holdings: Holdings
    moves: Moves
    sky: Sky
    findings: Findings

    def order(self, event: int) -> Order:
        return int(self.chunk.position[self.chunk.batch[event]]), int(self.chunk.index[event])

    def witness(self, event: int) -> Witness:
        """An event of this chunk as evidence."""
        chunk, batch = self.chunk, self.chunk.batch[event]
        return witness(
            self.names.sources[int(chunk.source[batch])],
            int(chunk.epoch[batch]),
            int(chunk.seq[batch]),
            event=int(chunk.index[event]),
            position=int(chunk.position[batch]),
        )

    def witness_at(self, spot: Spot, shelf: Shelf) -> Witness:
        """An event of an earlier chunk as evidence."""
        source = self.names.sources[shelf.source]
        return witness(source, shelf.epoch, spot.seq, event=spot.event, position=spot.position)

    def who(self, event: int) -> str:
        batch = self.chunk.batch[event]
        source = self.names.sources[int(self.chunk.source[batch])]
        return f"{named(source)} epoch {int(self.chunk.epoch[batch])}"

    def where(self, event: int) -> str:
        place = self.names.places.names[int(self.chunk.place[event])]
        return tier(place.medium, place.group)

    def medium(self, event: int) -> str:
        return str(self.names.media.names[int(self.chunk.medium[event])])

    def event_sources(self) -> Ints:
        return self.chunk.event_sources()

    def is_gpu(self, events: Ints) -> Bools:
        """Whether events are of the GPU."""
        if "GPU" not in self.names.media.names:
            return np.zeros(len(events), np.bool_)
        found: Bools = self.chunk.medium[events] == self.names.media.number("GPU")
        return found

    def doubts(self, rows: Ints) -> Ints:
        """The cloud over each of ``rows``: its number in ``sky.whys``, or ``CERTAIN``."""
        events = self.moves.event[rows]
        return self.sky.doubts(self.chunk, events, self.is_gpu(events))

    def shelf(self, row: int) -> Shelf:
        return self.holdings.shelves.all[int(self.moves.shelf[row])]

    def put_before(self, row: int) -> Witness | None:
        """The block's last store before this row."""
        moves, at = self.moves, int(self.moves.put[row])
        if at >= 0:
            return self.witness(int(moves.event[at]))
        known = int(moves.carried[row])
        if known < 0 or moves.facts["put_event"][known] < 0:
            return None
        fact = moves.facts[known]
        spot = Spot(int(fact["put_position"]), int(fact["put_seq"]), int(fact["put_event"]))
        return self.witness_at(spot, self.shelf(row))

    def taken_before(self, row: int) -> Witness | None:
        """The block's last removal that took a copy, unless it is long ago."""
        moves, at = self.moves, int(self.moves.taken[row])
        if at >= 0:
            near = moves.row[row] - moves.row[at] <= TAKEN_MAX
            return self.witness(int(moves.event[at])) if near else None
        known = int(moves.carried[row])
        if known < 0 or moves.facts["taken_event"][known] < 0:
            return None
        fact = moves.facts[known]
        if moves.row[row] - fact["taken_row"] > TAKEN_MAX:
            return None
        spot = Spot(int(fact["taken_position"]), int(fact["taken_seq"]), int(fact["taken_event"]))
        return self.witness_at(spot, self.shelf(row))

    def told(self, kind: str, rows: Ints, say: Say, *, apart: bool = True) -> None:
        """Findings at ``rows`` of ``moves``, in log order; those of a source and medium belong together."""
        events = self.moves.event[rows]
        groups = self.event_sources()[events] * (len(self.names.media.names) + 1) + self.chunk.medium[events]
        for number in distinct(groups).tolist():
            mine = rows[groups == number]
            source, medium = divmod(number, len(self.names.media.names) + 1)
            group = Group(kind, source, medium if apart else None)
            self.findings.flood(group, len(mine), _Description(self, mine, say))

    def told_events(self, kind: str, events: Ints, say: Say, *, apart: bool = True) -> None:
        """Findings at event rows ``events``, in log order."""
        media = len(self.names.media.names) + 1
        groups = self.event_sources()[events] * media + (self.chunk.medium[events] + 1 if apart else 0)
        for number in distinct(groups).tolist():
            mine = events[groups == number]
            source, medium = divmod(number, media)
            self.findings.flood(Group(kind, source, medium), len(mine), _EventDescription(self, mine, say))

    def stores(self) -> Ints:
        """Event rows of stores."""
        return np.flatnonzero(self.chunk.kind == STORED)


class _Description:
    """Describes the n-th of some rows of ``moves``."""

    def __init__(self, scene: Scene, rows: Ints, say: Say) -> None:
        self._scene, self._rows, self._say = scene, rows, say

    def __call__(self, n: int) -> tuple[Order, Told]:
        row = int(self._rows[n])
        return self._scene.order(int(self._scene.moves.event[row])), self._say(self._scene, row)


class _EventDescription:
    """Describes the n-th of some event rows."""

    def __init__(self, scene: Scene, events: Ints, say: Say) -> None:
        self._scene, self._events, self._say = scene, events, say

    def __call__(self, n: int) -> tuple[Order, Told]:
        event = int(self._events[n])
        return self._scene.order(event), self._say(self._scene, event)


__all__ = ["CERTAIN", "Say", "Scene"]
