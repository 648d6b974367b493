"""The streams of one feed: which publisher an arrival is from, and when the feed's replay socket must be
asked.

A feed is one PUB address (or one bound SUB socket that several publishers connect to) with at most one
replay address. Streams are told apart by topic, rank, connection and where they stand. Pure: the rim sends
the requests that ``ask_from`` wants and says what came of them; a failing network is replayed from a seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch, counts_from_one
from kvbus.log import Entry, SourceId, Standing
from kvbus.sequence import Cursor
from kvbus.wire import PublisherInfo

STREAMS_MAX: Final = 1024
"""Streams of one feed; what begins another is refused and counted."""
ORPHANS_MAX: Final = 16_384
ORPHAN_BYTES_MAX: Final = 256 << 20
ORPHAN_NS: Final = 2_000_000_000


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
        self._cursors: dict[SourceId, Cursor] = {}
        self._by_key: dict[tuple[bytes | None, int, int], Cursor] = {}
        self._open_connections: dict[int, set[SourceId]] = {}
        self._orphans: list[Arrival] = []
        self._orphan_bytes = 0
        self._asked_from: int | None = None  # of the answer under way
        self._spoken_for: set[SourceId] = set()
        self._spoken_for_when_asked: set[SourceId] = set()
        self._topicless: set[SourceId] = set()
        self._shared = False  # several publishers of one topic and rank: numbers do not tell them apart
        self._incarnation = ""
        for known, standing in (standings or {}).items():
            if known.source == source:
                self._add(known, standing=standing)
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
        batch = arrival.batch
        if isinstance(batch, EventBatch):
            cursor = self._by_key.get((arrival.topic, arrival.rank, arrival.connection))
            if cursor is not None and not self._orphans:
                return cursor.live(arrival)
        return self._settle(arrival)

    def replayed(self, arrival: Arrival) -> list[Entry]:
        """Take a batch from the replay socket (``arrival.replayed`` is set)."""
        if self._shared and not self._is_claimed(arrival):
            self._counts["unclaimed_reply"] += 1
            return []
        return self._settle(arrival)

    def asked(self) -> None:
        """A request that begins at ``ask_from`` is on its way."""
        self._spoken_for_when_asked = set(self._spoken_for)
        self._asked_from = self.ask_from
        for cursor in self._cursors.values():
            cursor.asked()

    def hello(self, info: PublisherInfo) -> list[Entry]:
        """The publisher behind the replay socket says who it is."""
        self._incarnation = info.incarnation
        entries: list[Entry] = []
        for source, cursor in self._cursors.items():
            if self._speaks_for(source):
                entries += cursor.hello(info)
        return entries

    def ended(self, *, complete: bool, info: PublisherInfo | None, now_ns: int) -> list[Entry]:
        """A replay is over; without its end marker (``complete``) nothing follows from what it lacked."""
        if info is not None:
            self._incarnation = info.incarnation
        if self._discovering:
            self._tries += 1
            self._discovering = not complete and self._tries < self._limits.tries
        entries: list[Entry] = []
        for source, cursor in self._cursors.items():
            if self._speaks_for(source) and self._spoke_from_the_start(source):
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
        for cursor in self._cursors.values():
            cursor.probe(now_ns)

    def disconnected(self, connection: int, now_ns: int) -> None:
        """A publisher of a bound socket is gone: its streams are free to come back on another connection."""
        for source in self._open_connections.pop(connection, ()):
            cursor = self._cursors[source]
            self._by_key.pop((source.topic, source.rank, connection), None)
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
        for source, cursor in self._cursors.items():
            assert cursor.source == source
            cursor.check_integrity()
        assert set(self._by_key.values()) <= set(self._cursors.values())

    # -- whose is it -------------------------------------------------------------------------------------

    def _settle(self, arrival: Arrival) -> list[Entry]:
        if self._is_one_too_many(arrival):
            self._counts["too_many_streams"] += 1
            return []
        cursor = self._find(arrival)
        if cursor is None:
            self._orphans.append(arrival)
            self._orphan_bytes += len(arrival.payload)
            full = len(self._orphans) > ORPHANS_MAX or self._orphan_bytes > ORPHAN_BYTES_MAX
            return self._adopt_orphans() if full else []
        entries: list[Entry] = []
        if self._orphans:
            entries += self._adopt_orphans()
        return entries + _take(cursor, arrival)

    def _is_one_too_many(self, arrival: Arrival) -> bool:
        if len(self._cursors) < STREAMS_MAX:
            return False
        topic, rank = arrival.topic, arrival.rank
        return not any(rank in (s.rank, -1) and topic in (None, s.topic) for s in self._cursors)

    def _is_claimed(self, arrival: Arrival) -> bool:
        """Whether it is known whose a replayed batch is: who has the same bytes, who then is spoken for."""
        alike = {s: c for s, c in self._cursors.items() if _might_be(arrival, s)}
        known = {source for source, cursor in alike.items() if cursor.knows(arrival.seq) == arrival.payload}
        if len(known) == 1:
            self._spoken_for -= alike.keys() - known
            self._spoken_for |= known
        return len(alike) < 2 or not self._spoken_for.isdisjoint(alike)

    def _spoke_from_the_start(self, source: SourceId) -> bool:
        """Whether nothing of the answer was passed over because it was not known yet whose it is."""
        return not self._shared or source in self._spoken_for_when_asked

    def _find(self, arrival: Arrival) -> Cursor | None:
        """The stream of an arrival, made when it is the first of it; None when that cannot be known yet."""
        if not isinstance(arrival.batch, EventBatch):
            return self._fits(arrival)
        rank = arrival.rank
        if arrival.replayed:
            return self._replay_stream(arrival, rank)
        key = (arrival.topic, rank, arrival.connection)
        cursor = self._by_key.get(key)
        if cursor is None:
            cursor = self._by_key[key] = self._join(arrival, rank)
        return cursor

    def _replay_stream(self, arrival: Arrival, rank: int) -> Cursor | None:
        alike = [
            cursor
            for source, cursor in self._cursors.items()
            if source.rank == rank and arrival.topic in (None, source.topic)
        ]
        if not alike and arrival.topic is None:
            return None
        if len(alike) > 1 and self._shared:
            alike = [cursor for cursor in alike if cursor.source in self._spoken_for] or alike
        if alike:
            cursor = min(alike, key=lambda cursor: (cursor.ask_from is None, cursor.source))
        else:
            cursor = self._add(SourceId(self.source, arrival.topic or b"", rank), first=arrival)
        self._spoken_for.add(cursor.source)
        return cursor

    def _join(self, arrival: Arrival, rank: int) -> Cursor:
        """A stream for a topic, rank and connection not heard together before: one known that moved here,
        or a new one.
        """
        topic = arrival.topic or b""
        alike = [c for s, c in self._cursors.items() if (s.topic, s.rank) == (topic, rank)]
        alike = alike or [c for s, c in self._cursors.items() if s in self._topicless and s.rank == rank]
        taken = set().union(*self._open_connections.values()) if self._open_connections else set()
        free = [c for c in alike if c.source not in taken]
        exact = [c for c in free if c.next_seq == arrival.seq]
        cursor = next(iter(exact or free), None)
        if cursor is None:
            cursor = self._add(SourceId(self.source, topic, rank, instance=len(alike)), first=arrival)
        self._open_connections.setdefault(arrival.connection, set()).add(cursor.source)
        return cursor

    def _fits(self, arrival: Arrival) -> Cursor | None:
        """Whose an unreadable payload must be: the stream that waits for its number, or the only one."""
        alike = [c for s, c in self._cursors.items() if arrival.topic in (None, s.topic)]
        here = self._spoken_for if arrival.replayed else self._open_connections.get(arrival.connection, set())
        alike = [c for c in alike if c.source in here] or alike
        waits = [c for c in alike if c.next_seq == arrival.seq]
        if len(waits) == 1:
            return waits[0]
        return alike[0] if len(alike) == 1 else None

    def _adopt_orphans(self) -> list[Entry]:
        orphans, self._orphans, self._orphan_bytes = self._orphans, [], 0
        entries: list[Entry] = []
        for orphan in orphans:
            cursor = self._find(orphan) or self._foster(orphan)
            entries += _take(cursor, orphan)
        return entries

    def _foster(self, orphan: Arrival) -> Cursor:
        """A stream for what nobody claims: the rank it says, or none."""
        rank = orphan.rank
        source = SourceId(self.source, orphan.topic or b"", rank)
        if orphan.topic is None:
            self._topicless.add(source)
        return self._cursors.get(source) or self._add(source, first=orphan)

    def _speaks_for(self, source: SourceId) -> bool:
        """Whether the replay socket is this stream's: several publishers can share a bound PUB address."""
        return len(self._cursors) == 1 or source in self._spoken_for

    def _add(
        self, source: SourceId, *, standing: Standing | None = None, first: Arrival | None = None
    ) -> Cursor:
        origin = self._origin
        if origin == 0 and first is not None and first.seq == 1 and counts_from_one(first.batch):
            origin = 1
        cursor = Cursor(
            source,
            can_ask=self._can_ask,
            origin=origin,
            incarnation=self._incarnation,
            standing=standing,
            limits=self._limits,
        )
        if standing is None and self._asked_from is not None:
            cursor.asked(start=self._asked_from)
        self._cursors[source] = cursor
        self._shared = self._shared or source.instance > 0
        return cursor


def _might_be(arrival: Arrival, source: SourceId) -> bool:
    readable = isinstance(arrival.batch, EventBatch)
    return arrival.topic in (None, source.topic) and (not readable or arrival.rank == source.rank)


def _take(cursor: Cursor, arrival: Arrival) -> list[Entry]:
    return cursor.replayed(arrival) if arrival.replayed else cursor.live(arrival)
