"""The arrivals of one feed in order, stream by stream, and when the feed's replay socket must be asked.

Which stream an arrival is of is ``kvbus/streams``' matter; until that is known it waits here. Pure: the rim
sends the requests that ``ask_from`` wants and says what came of them; a failing network is replayed from a
seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch, counts_from_one
from kvbus.log import Entry, SourceId, Standing
from kvbus.sequence import Cursor
from kvbus.streams import Streams
from kvbus.wire import PublisherInfo

ORPHANS_MAX: Final = 16_384
ORPHAN_BYTES_MAX: Final = 256 << 20
ORPHAN_NS: Final = 2_000_000_000
"""Arrivals, their payload bytes, and how long they wait to know of which stream they are."""


class Sequencer:
    """Puts the arrivals of one feed in order, stream by stream.

    ``source`` names the feed in every entry. ``standings`` are those of earlier runs (others' are ignored).
    ``origin`` as in ``Cursor``. Unless it is None, the replay is asked at once, before anything was heard.
    """

    def __init__(
        self,
        source: str,
        *,
        can_ask: bool,
        standings: Mapping[SourceId, Standing] | None = None,
        origin: int | None = 0,
        limits: Limits | None = None,
    ) -> None:
        self.source = source
        self._can_ask = can_ask
        self._origin = origin
        self._limits = limits or Limits()
        self._counts: Counter[str] = Counter()
        self._streams = Streams(source, begin=self._begin)
        self._cursors = self._streams.cursors
        self._orphans: list[Arrival] = []
        self._orphan_bytes = 0
        self._asked_from: int | None = None  # of the answer under way
        self._info: PublisherInfo | None = None
        for known, standing in (standings or {}).items():
            if known.source == source:
                self._streams.add(self._cursor(known, origin, standing=standing))
        self._discovering = can_ask and origin is not None and not self._cursors
        self._tries = 0

    # -- what the rim asks -------------------------------------------------------------------------------

    @property
    def cursors(self) -> Mapping[SourceId, Cursor]:
        return self._cursors

    @property
    def counts(self) -> Counter[str]:
        """What was seen and not delivered, by reason, over all streams."""
        total = Counter(self._counts)
        for cursor in self._cursors.values():
            total.update(cursor.counts)
        return total

    @property
    def waiting(self) -> int:
        """Batches that wait for others, or to know whose they are."""
        return len(self._orphans) + sum(cursor.waiting for cursor in self._cursors.values())

    @property
    def ask_from(self) -> int | None:
        """The seq from which the replay socket should be asked now; None when nothing is open."""
        starts = [cursor.ask_from for cursor in self._cursors.values()]
        if self._discovering:
            starts.append(self._origin or 0)
        return min((start for start in starts if start is not None), default=None)

    # -- what comes in -----------------------------------------------------------------------------------

    def live(self, arrival: Arrival) -> list[Entry]:
        """Take a message from the PUB socket."""
        if isinstance(arrival.batch, EventBatch) and not self._orphans:
            cursor = self._streams.heard_before(arrival)
            if cursor is not None:
                return cursor.live(arrival)
        return self._settle(arrival)

    def replayed(self, arrival: Arrival) -> list[Entry]:
        """Take a batch from the replay socket (``arrival.replayed`` is set)."""
        if not self._streams.is_claimed(arrival):
            self._counts["unclaimed_reply"] += 1
            return []
        return self._settle(arrival)

    def asked(self) -> None:
        """A request that begins at ``ask_from`` is on its way."""
        self._streams.asked()
        self._asked_from = self.ask_from
        for cursor in self._cursors.values():
            cursor.asked()

    def hello(self, info: PublisherInfo) -> list[Entry]:
        """The publisher behind the replay socket says who it is."""
        self._info = info
        entries: list[Entry] = []
        for source, cursor in self._cursors.items():
            if self._streams.speaks_for(source):
                entries += cursor.hello(info)
        return entries

    def ended(self, *, complete: bool, info: PublisherInfo | None, now_ns: int) -> list[Entry]:
        """A replay is over; without its end marker (``complete``) nothing follows from what it lacked."""
        if info is not None:
            self._info = info
        if self._discovering:
            self._tries += 1
            self._discovering = not complete and self._tries < self._limits.tries
        entries: list[Entry] = []
        for source, cursor in self._cursors.items():
            if self._streams.speaks_for(source) and self._streams.spoke_from_the_start(source):
                entries += cursor.ended(complete=complete, info=info, now_ns=now_ns)
            else:
                entries += cursor.ended(complete=False, info=None, now_ns=now_ns)
        self._asked_from = None
        return entries

    def connected(self, now_ns: int) -> None:
        """The PUB connection is there, or there again: ask what was missed, and whether it is the same
        process.
        """
        self._discovering = self._can_ask and self._origin is not None and not self._cursors
        self._tries = 0
        self._info = None  # it can be another process
        for cursor in self._cursors.values():
            cursor.probe(now_ns)

    def disconnected(self, connection: int, now_ns: int) -> None:
        """A publisher of a bound socket is gone: its streams are free to come back on another connection."""
        for cursor in self._streams.left(connection):
            cursor.probe(now_ns)

    def tick(self, now_ns: int) -> list[Entry]:
        """Let time pass."""
        entries: list[Entry] = []
        if self._orphans and now_ns - self._orphans[0].received_ns > ORPHAN_NS:
            entries += self._adopt_orphans()
        for cursor in self._cursors.values():
            entries += cursor.tick(now_ns)
        return entries

    def finish(self, now_ns: int) -> list[Entry]:
        """Nothing more will come."""
        entries = self._adopt_orphans()
        for cursor in self._cursors.values():
            entries += cursor.finish(now_ns)
        return entries

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self._streams.check_integrity()
        assert self._orphan_bytes == sum(len(orphan.payload) for orphan in self._orphans)

    # -- to its stream -----------------------------------------------------------------------------------

    def _settle(self, arrival: Arrival) -> list[Entry]:
        if not self._streams.has_room(arrival):
            self._counts["too_many_streams"] += 1
            return []
        cursor = self._streams.find(arrival)
        if cursor is None:
            self._orphans.append(arrival)
            self._orphan_bytes += len(arrival.payload)
            full = len(self._orphans) > ORPHANS_MAX or self._orphan_bytes > ORPHAN_BYTES_MAX
            return self._adopt_orphans() if full else []
        return [*self._adopt_orphans(), *_take(cursor, arrival)]

    def _adopt_orphans(self) -> list[Entry]:
        orphans, self._orphans, self._orphan_bytes = self._orphans, [], 0
        entries: list[Entry] = []
        for orphan in orphans:
            cursor = self._streams.find(orphan) or self._streams.foster(orphan)
            entries += _take(cursor, orphan)
        return entries

    def _begin(self, source: SourceId, first: Arrival) -> Cursor:
        """The cursor of a stream that nobody knew before this."""
        from_one = self._origin == 0 and first.seq == 1 and counts_from_one(first.batch)
        info = self._info
        if info is not None and (first.connection or self._cursors) and not first.replayed:
            # Of several publishers on one address this one need not be who answered.
            info = msgspec.structs.replace(info, capacity={})
        cursor = self._cursor(source, 1 if from_one else self._origin, info=info)
        if self._asked_from is not None:
            cursor.asked(start=self._asked_from)
        return cursor

    def _cursor(
        self,
        source: SourceId,
        origin: int | None,
        *,
        info: PublisherInfo | None = None,
        standing: Standing | None = None,
    ) -> Cursor:
        return Cursor(
            source,
            can_ask=self._can_ask,
            origin=origin,
            info=info,
            standing=standing,
            limits=self._limits,
        )


def _take(cursor: Cursor, arrival: Arrival) -> list[Entry]:
    return cursor.replayed(arrival) if arrival.replayed else cursor.live(arrival)
