"""The batches of one epoch in the order of their numbers, each once: what is next, what waits, what is known
by its bytes, what cannot be had.

An epoch is one life of a publisher process. What comes early waits; what is missing becomes a ``Loss`` when
enough answers of the replay socket lacked it. Whether a batch is of this life is not asked here: see
``kvbus/suspicion``. No sockets, no clock.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Standing, Stray
from kvbus.recent import Recent
from kvbus.reply import Reply
from kvbus.waiting import Waiting
from kvbus.wire import Capacity, PublisherInfo

LOST_RANGES_MAX: Final = 1024
"""Holes of one epoch that are remembered, to tell a late batch from a double."""


class Epoch:
    """One epoch of ``source``. ``because`` as in ``EpochBegan``; ``counts`` are the stream's.

    ``next_seq`` begins at ``origin`` (None: wherever the epoch is first seen). ``last_ts``: the clock of the
    last batch delivered (seconds). ``info``: what the publisher said of itself, if that is known. ``begun``:
    a batch of it was seen.
    """

    def __init__(
        self,
        source: SourceId,
        number: int = 0,
        *,
        because: str,
        origin: int | None,
        info: PublisherInfo | None = None,
        counts: Counter[str],
        limits: Limits,
    ) -> None:
        self.source = source
        self.number = number
        self.origin = origin
        self.incarnation = ""
        self.begun = False
        self.next_seq = origin
        self.last_ts = -math.inf
        self.recent = Recent(batches_max=limits.recent_batches, bytes_max=limits.recent_bytes)
        self.waiting = Waiting(batches_max=limits.waiting_batches, bytes_max=limits.waiting_bytes)
        self._because = because
        self._capacity: Capacity = {}
        if info is not None:
            self.introduce(info)
        self._counts = counts
        self._limits = limits
        self._lost: deque[range] = deque(maxlen=LOST_RANGES_MAX)
        self._silences = 0
        self._refusals = 0
        self._refused_high = -1

    # -- begin and end -------------------------------------------------------------------------------

    def resume(self, standing: Standing) -> None:
        """Go on where an earlier run of the reader stopped."""
        self.number = standing.epoch
        self.next_seq = standing.next_seq
        self.last_ts = standing.last_ts
        self.incarnation = standing.incarnation
        self.begun = True
        for seq, payload in standing.recent.items():
            self.recent.add(seq, payload)

    def introduce(self, info: PublisherInfo) -> None:
        """Take note of what the publisher says of itself."""
        self.incarnation, self._capacity = info.incarnation, info.capacity

    def begin(self, first: Arrival) -> EpochBegan:
        """Take the epoch's first sign of life; the batch itself is not put in its place yet."""
        self.begun = True
        if self.next_seq is None:
            self.next_seq = first.seq
        return EpochBegan(
            self.source, self.number, self._because, self.incarnation, first.received_ns, self._capacity
        )

    def end(self) -> list[Entry]:
        """The publisher is gone: declare every hole lost and deliver what waits."""
        entries: list[Entry] = []
        while self.waiting:
            entries += self.give_up("restart", self.waiting.since_ns)
        return entries

    def next_epoch(self, because: str, *, info: PublisherInfo | None) -> Epoch:
        """The one after this; a new process counts from 0."""
        return Epoch(
            self.source,
            self.number + 1,
            because=because,
            origin=0,
            info=info,
            counts=self._counts,
            limits=self._limits,
        )

    # -- each in its place ---------------------------------------------------------------------------

    def deliver(self, arrival: Arrival) -> Received:
        """Take the batch that is next."""
        batch = arrival.batch
        self.next_seq = arrival.seq + 1
        self.recent.add(arrival.seq, arrival.payload)
        if isinstance(batch, EventBatch):
            self.last_ts = batch.ts
        return Received(
            self.source,
            self.number,
            arrival.seq,
            arrival.payload,
            arrival.received_ns,
            arrival.replayed,
            batch,
            arrival.dialect,
        )

    def wait(self, arrival: Arrival) -> None:
        """Keep a batch until those before it are here. What waits under its number has the same bytes."""
        if arrival.seq in self.waiting:
            self._counts["duplicate"] += 1
        elif not self.waiting.add(arrival):
            self._counts["refused"] += 1

    def drain(self) -> list[Entry]:
        """Deliver what waits no longer for anything."""
        entries: list[Entry] = []
        while self.next_seq in self.waiting:
            arrival = self.waiting.pop(self.next_seq)  # type: ignore[arg-type]  # in: so not None
            assert arrival is not None
            entries.append(self.deliver(arrival))
        if entries or not self.waiting:
            self._refusals = self._silences = 0
        return entries

    def is_lost(self, seq: int) -> bool:
        """Whether this number was declared lost."""
        return any(seq in hole for hole in self._lost)

    def set_aside(self, arrival: Arrival, reason: str) -> Stray:
        """Keep a batch of this epoch that has no place in its order."""
        self._counts[reason] += 1
        return Stray(self.source, self.number, arrival.seq, arrival.payload, arrival.received_ns, reason)

    # -- holes ---------------------------------------------------------------------------------------

    def asks_again(self, *, complete: bool) -> bool:
        """Take note that an answer is over; True when it had no end marker and another may have one."""
        self._silences = 0 if complete else (self._silences + 1) % self._limits.tries
        return self._silences > 0

    def settle_hole(self, reply: Reply, *, complete: bool, now_ns: int) -> list[Entry]:
        """What an answer that is over says of the first hole. Something must wait behind it."""
        assert self.next_seq is not None
        if self.asks_again(complete=complete):
            return []
        if not complete:
            return self.give_up("replay_incomplete", now_ns)
        end, first, start = self.waiting.first.seq, reply.first, reply.start
        if first is not None and first > self.next_seq and start is not None and start <= self.next_seq:
            return self._lose(min(first, end), "too_old", now_ns)
        if end > reply.asked_high:
            return []  # the hole opened after the request: the next one will cover it
        return self._refused(reply, now_ns)

    def _refused(self, reply: Reply, now_ns: int) -> list[Entry]:
        """Count a complete answer that lacked the hole, and conclude when there were enough."""
        high = reply.asked_high
        self._refused_high = min(self._refused_high, high) if self._refusals else high
        self._refusals += 1
        if self._refusals < self._limits.complete_tries:
            return []
        # A publisher always keeps its last batch: one that has nothing at all is not the one that sent ours.
        reason = "restart" if reply.first is None else "absent_from_replay"
        refused_high, entries = self._refused_high, list[Entry]()
        while self.waiting and self.waiting.first.seq <= refused_high:  # all these answers lacked them all
            entries += self.give_up(reason, now_ns)
        return entries

    def give_up(self, reason: str, now_ns: int) -> list[Entry]:
        """Declare the first hole lost and go on. Something must wait behind it."""
        prefix = reason == "no_replay" and not self.recent and not self._lost
        return self._lose(self.waiting.first.seq, "late_join" if prefix else reason, now_ns)

    def give_up_in_time(self, now_ns: int) -> list[Entry]:
        """Where nobody can be asked: give the first hole up when something has waited too long for it, or
        too much.
        """
        waiting, limits = self.waiting, self._limits
        if not waiting:
            return []
        late = now_ns - waiting.since_ns > limits.reorder_ns
        return self.give_up("no_replay", now_ns) if late or len(waiting) > limits.reorder_batches else []

    def _lose(self, end: int, reason: str, now_ns: int) -> list[Entry]:
        """Declare everything from the hole's beginning to ``end`` (not included) lost, and go on."""
        assert self.next_seq is not None
        if end <= self.next_seq:
            return self.drain()
        hole = range(self.next_seq, end)
        self._lost.append(hole)
        self.next_seq = end
        self._refusals = self._silences = 0
        loss = Loss(self.source, self.number, hole.start, hole.stop - 1, reason, now_ns)
        return [loss, *self.drain()]

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self.waiting.check_integrity()
        self.recent.check_integrity()
        assert 0 <= self._silences < self._limits.tries
        assert self.next_seq is not None or not (self.begun or self.waiting)
