"""One chunk as the rules see it: its columns, what each row did, the clouds over it, and where findings go.

Only ways to name things: no rule is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from kvbus.chunk import STORED, Bools, Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.clouds import Sky
from kvbus.findings import Findings, Group, Order, Proof
from kvbus.holdings import Holdings
from kvbus.moves import Moves
from kvbus.names import distinct
from kvbus.rules.words import named, tier
from kvbus.shelves import Shelf, Spot
from kvbus.verdict import Witness, witness

Say = Callable[["Scene", int], Proof]
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
        return self.names.witness(self.chunk, int(self.chunk.batch[event]), int(self.chunk.index[event]))

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
        return self.names.media.names[int(self.chunk.medium[event])]

    def event_sources(self) -> Ints:
        return self.chunk.event_sources()

    def is_gpu(self, events: Ints) -> Bools:
        """Whether events are of the GPU."""
        return self.names.gpu_media()[self.chunk.medium[events]]

    def doubts(self, rows: Ints) -> Ints:
        """The cloud over each of ``rows``: its number in ``sky.whys``, or ``CERTAIN`` (``kvbus/clouds``)."""
        events = self.moves.event[rows]
        return self.sky.doubts(self.chunk, events, self.is_gpu(events))

    def shelf(self, row: int) -> Shelf:
        return self.holdings.shelves.all[int(self.moves.shelf[row])]

    def put_before(self, row: int) -> Witness:
        """The last store, before this row, of a block that is resident then."""
        at = int(self.moves.put[row])
        return self.witness(int(self.moves.event[at])) if at >= 0 else self._remembered(row, "put")

    def taken_before(self, row: int) -> Witness | None:
        """The block's last removal that took a copy, unless it is long ago."""
        if not self.holdings.lately(self.moves, np.array([row]))[0]:
            return None
        at = int(self.moves.taken[row])
        return self.witness(int(self.moves.event[at])) if at >= 0 else self._remembered(row, "taken")

    def told_earlier(self, row: int) -> Witness:
        """The last store, before this chunk, that said what the block is."""
        return self._remembered(row, "told")

    def _remembered(self, row: int, what: str) -> Witness:
        fact = self.moves.facts[int(self.moves.carried[row])]
        return self.witness_at(Spot(*fact[what].tolist()), self.shelf(row))

    def told(self, kind: str, rows: Ints, say: Say) -> None:
        """Findings at ``rows`` of ``moves``, in log order; those of a source and medium belong together."""
        self._flood(kind, self.moves.event[rows], rows, say)

    def told_events(self, kind: str, events: Ints, say: Say) -> None:
        """Findings at event rows ``events``, in log order; those of a source and medium belong together."""
        self._flood(kind, events, events, say)

    def _flood(self, kind: str, events: Ints, rows: Ints, say: Say) -> None:
        media = len(self.names.media.names) + 1
        groups = self.event_sources()[events] * media + self.chunk.medium[events]
        for number in distinct(groups).tolist():
            mine = np.flatnonzero(groups == number)
            source, medium = divmod(number, media)
            describe = partial(self._told, events[mine], rows[mine], say)
            self.findings.flood(Group(kind, source, medium), len(mine), describe)

    def _told(self, events: Ints, rows: Ints, say: Say, n: int) -> tuple[Order, Proof]:
        return self.order(int(events[n])), say(self, int(rows[n]))

    def stores(self) -> Ints:
        """Event rows of stores."""
        return np.flatnonzero(self.chunk.kind == STORED)
