"""The streams of one feed, told apart by topic, rank, connection and where they stand; and for which of them
its replay socket speaks.

A feed is one PUB address, or one bound SUB socket that several publishers connect to, even under one topic
and rank; its replay address, if any, is one publisher's. Cursors are found and kept here; ``kvbus/sequencer``
feeds them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvbus.arrival import Arrival
from kvbus.events import EventBatch
from kvbus.log import SourceId
from kvbus.sequence import Cursor

STREAMS_MAX: Final = 1024
"""Streams of one feed; what begins another is refused and counted."""


class Streams:
    """Cursors by source. ``begin`` makes the cursor of a stream from its first arrival; ``source`` names the
    feed.
    """

    def __init__(self, source: str, *, begin: Callable[[SourceId, Arrival], Cursor]) -> None:
        self.cursors: dict[SourceId, Cursor] = {}
        self._source = source
        self._begin = begin
        self._by_key: dict[tuple[bytes | None, int, int], Cursor] = {}
        self._open_connections: dict[int, set[SourceId]] = {}
        self._spoken_for: set[SourceId] = set()
        self._spoken_for_when_asked: set[SourceId] = set()
        self._topicless: set[SourceId] = set()
        self._shared = False  # several publishers of one topic and rank: numbers do not tell them apart

    def add(self, cursor: Cursor) -> Cursor:
        """Keep a cursor whose source has none."""
        self.cursors[cursor.source] = cursor
        self._shared = self._shared or cursor.source.instance > 0
        return cursor

    # -- whose is it -------------------------------------------------------------------------------------

    def heard_before(self, live: Arrival) -> Cursor | None:
        """The stream whose topic, rank and connection these are; None where they were not heard together."""
        return self._by_key.get((live.topic, live.rank, live.connection))

    def has_room(self, arrival: Arrival) -> bool:
        """Whether an arrival is of a stream that is known, or may begin one."""
        if len(self.cursors) < STREAMS_MAX:
            return True
        topic, rank = arrival.topic, arrival.rank
        return any(rank in (s.rank, -1) and topic in (None, s.topic) for s in self.cursors)

    def find(self, arrival: Arrival) -> Cursor | None:
        """The stream of an arrival, made when it is the first of it; None when that cannot be known yet."""
        if not isinstance(arrival.batch, EventBatch):
            return self._fits(arrival)
        if arrival.replayed:
            return self._replay_stream(arrival)
        cursor = self.heard_before(arrival)
        if cursor is None:
            cursor = self._by_key[arrival.topic, arrival.rank, arrival.connection] = self._join(arrival)
        return cursor

    def foster(self, orphan: Arrival) -> Cursor:
        """A stream for what nobody claims: the rank it says, or none."""
        source = SourceId(self._source, orphan.topic or b"", orphan.rank)
        if orphan.topic is None:
            self._topicless.add(source)
        return self.cursors.get(source) or self.add(self._begin(source, orphan))

    def left(self, connection: int) -> list[Cursor]:
        """A publisher of a bound socket is gone: its streams, free to come back on another connection."""
        for key in [key for key in self._by_key if key[2] == connection]:
            del self._by_key[key]
        return [self.cursors[source] for source in self._open_connections.pop(connection, ())]

    def _join(self, arrival: Arrival) -> Cursor:
        """A stream for a topic, rank and connection not heard together before: one known that moved here,
        or a new one.
        """
        topic, rank = arrival.topic or b"", arrival.rank
        alike = [c for s, c in self.cursors.items() if (s.topic, s.rank) == (topic, rank)]
        alike = alike or [c for s, c in self.cursors.items() if s in self._topicless and s.rank == rank]
        taken = set().union(*self._open_connections.values()) if self._open_connections else set()
        free = [c for c in alike if c.source not in taken]
        exact = [c for c in free if c.next_seq == arrival.seq]
        cursor = next(iter(exact or free), None)
        if cursor is None:
            source = SourceId(self._source, topic, rank, instance=len(alike))
            cursor = self.add(self._begin(source, arrival))
        self._open_connections.setdefault(arrival.connection, set()).add(cursor.source)
        return cursor

    def _replay_stream(self, arrival: Arrival) -> Cursor | None:
        alike = [
            cursor
            for source, cursor in self.cursors.items()
            if source.rank == arrival.rank and arrival.topic in (None, source.topic)
        ]
        if not alike and arrival.topic is None:
            return None
        if len(alike) > 1 and self._shared:
            alike = [cursor for cursor in alike if cursor.source in self._spoken_for] or alike
        if alike:
            cursor = min(alike, key=lambda cursor: (cursor.ask_from is None, cursor.source))
        else:
            source = SourceId(self._source, arrival.topic or b"", arrival.rank)
            cursor = self.add(self._begin(source, arrival))
        self._spoken_for.add(cursor.source)
        return cursor

    def _fits(self, arrival: Arrival) -> Cursor | None:
        """Whose an unreadable payload must be: the stream that waits for its number, or the only one."""
        alike = [c for s, c in self.cursors.items() if arrival.topic in (None, s.topic)]
        here = self._spoken_for if arrival.replayed else self._open_connections.get(arrival.connection, set())
        alike = [c for c in alike if c.source in here] or alike
        waits = [c for c in alike if c.next_seq == arrival.seq]
        if len(waits) == 1:
            return waits[0]
        return alike[0] if len(alike) == 1 else None

    # -- for whom the replay socket speaks ---------------------------------------------------------------

    def asked(self) -> None:
        """A replay request is on its way."""
        self._spoken_for_when_asked = set(self._spoken_for)

    def is_claimed(self, replayed: Arrival) -> bool:
        """Whether it is known whose a replayed batch is: who has the same bytes, who then is spoken for."""
        if not self._shared:
            return True
        alike = {s: c for s, c in self.cursors.items() if _might_be(replayed, s)}
        known = {source for source, cursor in alike.items() if cursor.knows(replayed.seq) == replayed.payload}
        if len(known) == 1:
            self._spoken_for -= alike.keys() - known
            self._spoken_for |= known
        return len(alike) < 2 or not self._spoken_for.isdisjoint(alike)

    def speaks_for(self, source: SourceId) -> bool:
        """Whether the replay socket is this stream's: several publishers can share a bound PUB address."""
        is_alone = len(self.cursors) == 1 and not any(self._open_connections)
        return is_alone or source in self._spoken_for

    def spoke_from_the_start(self, source: SourceId) -> bool:
        """Whether nothing of the answer was passed over because it was not known yet whose it is."""
        return not self._shared or source in self._spoken_for_when_asked

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for source, cursor in self.cursors.items():
            assert cursor.source == source
            cursor.check_integrity()
        assert set(self._by_key.values()) <= set(self.cursors.values())
        assert set().union(*self._open_connections.values()) <= self.cursors.keys()


def _might_be(arrival: Arrival, source: SourceId) -> bool:
    readable = isinstance(arrival.batch, EventBatch)
    return arrival.topic in (None, source.topic) and (not readable or arrival.rank == source.rank)
