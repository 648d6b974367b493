"""Where one publisher's stream stands. No sockets, no clock: feed it arrivals, it answers with entries.

A cursor delivers an epoch's batches in the order of their numbers, each once. What comes early waits; what
is missing is wanted from the replay socket (``ask_from``) and, when it cannot be had, becomes a ``Loss``. A
number that goes back is only a suspicion of a restart: it takes a newer clock and a second witness, other
bytes under a number we know, or the publisher's own word to begin a new epoch. Nothing is dropped without a
counter or an entry.

Every request overlaps what we have by one batch, so that the answer proves by its bytes that it comes from
the same publisher process (numbers alone cannot: they start from 0 in each). A process that dies within a few
batches, before the death of the one before it is settled, can still be taken for its neighbour.
"""

from __future__ import annotations

import math
from collections import Counter, deque

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch
from kvbus.former import Former
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Standing, Stray
from kvbus.recent import Recent
from kvbus.reply import Reply
from kvbus.waiting import Waiting
from kvbus.wire import PublisherInfo


class Cursor:
    """One stream's place, and the batches around it that are not yet in order.

    ``origin`` is the first seq wanted of the first epoch seen (1 for publishers that count from 1); None
    takes the stream wherever it is first seen. Later epochs begin at 0.
    """

    def __init__(
        self,
        source: SourceId,
        *,
        can_ask: bool,
        origin: int | None = 0,
        standing: Standing | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.source = source
        self.counts: Counter[str] = Counter()
        self.incarnation = ""
        self._limits = limits or Limits()
        self._can_ask = can_ask
        self._origin = origin
        self._epoch = 0
        self._claimed: PublisherInfo | None = None
        self._begin_epoch("first_sight")
        if standing is not None:
            self._resume(standing)

    # -- what the rim asks ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def next_seq(self) -> int | None:
        """The number that would be delivered next; None before the first of a stream without an origin."""
        return self._next_seq

    @property
    def waiting(self) -> int:
        """How many batches wait behind a hole."""
        return len(self._waiting)

    @property
    def ask_from(self) -> int | None:
        """Where a replay should begin to settle what is open here; None when nothing is."""
        if not self._can_ask or self._next_seq is None:
            return None
        if self._waiting or self._suspects or self._probing:
            return max(self._next_seq - 1, 0) if self._begun else self._next_seq
        return None

    def knows(self, seq: int) -> bytes | None:
        """The bytes of a batch delivered lately or waiting; None where they are not at hand."""
        early = self._waiting.get(seq)
        return self._recent.get(seq) if early is None else early.payload

    # -- what comes in -------------------------------------------------------------------------------

    def live(self, arrival: Arrival) -> list[Entry]:
        """Take a message from the PUB socket."""
        unsettled = not self._begun or self._waiting or self._suspects or self._probing
        if arrival.seq == self._next_seq and not unsettled:
            return [self._deliver(arrival)]
        return self._place(arrival)

    def probe(self, now_ns: int) -> None:
        """The connection was lost and is back: was anything missed, and is it the same process?"""
        self._probed_ns = now_ns
        self._probing = self._can_ask and self._next_seq is not None

    def hello(self, info: PublisherInfo) -> list[Entry]:
        """Take the publisher's word on who it is."""
        if self._waiting and self._can_ask and self._is_another(info):
            # Which life are those of that wait? The replay tells it by bytes and clock.
            self._probing = True
            self._claimed = info
            return []
        return self._introduced(info)

    def asked(self, *, start: int | None = None) -> None:
        """A replay request that covers ``ask_from`` (or that began at ``start``) is on its way."""
        start = self.ask_from if start is None else start
        self._reply = Reply(start=start, asked_high=self._waiting.last_seq, suspected=bool(self._suspects))

    def replayed(self, arrival: Arrival) -> list[Entry]:
        """Take a batch from the replay socket."""
        reply = self._reply
        again = reply.count(arrival.seq)
        reply.older = reply.older or self._from_older_life(arrival)
        if reply.void or reply.older:
            self.counts["stale_reply"] += 1
            return []
        if reply.first is None:
            reply.first = arrival.seq
        if self._begun and self._next_seq is not None and arrival.seq < self._next_seq:
            return self._overlap(arrival, again=again)
        return self._place(arrival)

    def ended(self, *, complete: bool, info: PublisherInfo | None, now_ns: int) -> list[Entry]:
        """The replay is over. Without its end marker (``complete``) nothing follows from what it lacked."""
        if self._reply.void:
            return []
        epoch = self._epoch
        complete = complete and not self._reply.older  # what was passed over may be what is missing
        entries = [] if info is None else self._introduced(info)
        if complete:
            entries += self._settle_suspects(info)
        if self._epoch != epoch:
            return entries
        if self._probing:
            self._probing = not complete and self._may_ask_again()
            if self._probing:
                return entries
            self._silences = 0
            if self._claimed is not None and not complete:
                return entries + self._introduced(self._claimed)
            entries += self._drain()
        return entries + (self._settle_hole(complete, now_ns) if self._waiting else [])

    def tick(self, now_ns: int) -> list[Entry]:
        """Let time pass: ``now_ns`` on the clock that stamps ``received_ns``."""
        entries: list[Entry] = []
        limits = self._limits
        if self._suspects and now_ns - self._suspects[0].received_ns > limits.suspect_ns:
            entries += self._decide_suspects()
        if self._waiting and not self._can_ask:
            late = now_ns - self._waiting.since_ns > limits.reorder_ns
            if late or len(self._waiting) > limits.reorder_batches:
                entries += self._give_up("no_replay", now_ns)
        return entries

    def finish(self, now_ns: int) -> list[Entry]:
        """Nothing more will come: decide what is open."""
        entries = self._decide_suspects() if self._suspects else []
        while self._waiting:
            entries += self._give_up("replay_incomplete" if self._can_ask else "no_replay", now_ns)
        return entries

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self._waiting.check_integrity()
        self._recent.check_integrity()
        if self._next_seq is None:
            assert not self._waiting
            assert not self._suspects
        elif self._waiting:
            assert self._waiting.first.seq > self._next_seq or self._probing

    # -- delivery ------------------------------------------------------------------------------------

    def _begin_epoch(self, because: str) -> None:
        limits = self._limits
        self._because = because
        self._begun = False
        self._next_seq: int | None = self._origin
        self._last_ts = -math.inf
        self._former: Former | None = None
        self._recent = Recent(batches_max=limits.recent_batches, bytes_max=limits.recent_bytes)
        self._waiting = Waiting(batches_max=limits.waiting_batches, bytes_max=limits.waiting_bytes)
        self._suspects: list[Arrival] = []
        self._lost: deque[range] = deque(maxlen=1024)
        self._probing = False
        self._probed_ns = 0
        self._claimed = None
        self._silences = 0
        self._refusals = 0
        self._refused_high = -1
        self._reply = Reply()

    def _resume(self, standing: Standing) -> None:
        self._epoch = standing.epoch
        self._next_seq = standing.next_seq
        self._last_ts = standing.last_ts
        self.incarnation = standing.incarnation
        self._begun = True
        for seq, payload in standing.recent.items():
            self._recent.add(seq, payload)
        self._probing = self._can_ask

    def _first_sign(self, arrival: Arrival) -> list[Entry]:
        """The epoch's first sign of life."""
        if self._begun:
            return []
        self._begun = True
        self._probing = False
        if self._next_seq is None:
            self._next_seq = arrival.seq
        return [EpochBegan(self.source, self._epoch, self._because, self.incarnation, arrival.received_ns)]

    def _place(self, arrival: Arrival) -> list[Entry]:
        if not self._begun and self._next_seq is not None and arrival.seq < self._next_seq:
            self.counts["before_origin"] += 1
            return []
        entries = self._first_sign(arrival)
        assert self._next_seq is not None
        former = self._former
        if former is not None and not arrival.replayed:
            if former.left(arrival, expected=self._next_seq):
                if former.has(arrival):
                    self.counts["duplicate"] += 1
                    return entries
                return [*entries, self._stray(arrival, "late", epoch=self._epoch - 1)]
            if arrival.ts is not None:
                former.heard(arrival.ts)
        if arrival.seq < self._next_seq:
            return entries + self._behind(arrival)
        if self._waiting and not self._reply.same:
            outlives = self._outlives_waiting(arrival)
            if arrival.replayed and (outlives or self._reply.held):
                return entries + self._hold(arrival)
            if outlives:
                return entries + self._suspect(arrival, newer=True)
        if arrival.seq > self._next_seq or (self._probing and not arrival.replayed):
            # While it is open whether this is still the same process, the right number proves nothing.
            return entries + self._wait(arrival)
        if arrival.seq in self._waiting:
            return entries + self._wait(arrival) + self._drain()
        if not arrival.replayed:
            entries += self._dismiss_suspects()
        entries.append(self._deliver(arrival))
        return entries + self._drain()

    def _deliver(self, arrival: Arrival) -> Received:
        batch = arrival.batch
        self._next_seq = arrival.seq + 1
        self._recent.add(arrival.seq, arrival.payload)
        if isinstance(batch, EventBatch):
            self._last_ts = batch.ts
            if self._former is not None:
                self._former.heard(batch.ts)
        return Received(
            self.source,
            self._epoch,
            arrival.seq,
            arrival.payload,
            arrival.received_ns,
            arrival.replayed,
            batch,
            arrival.dialect,
        )

    def _drain(self) -> list[Entry]:
        entries: list[Entry] = []
        while self._next_seq in self._waiting:
            arrival = self._waiting.pop(self._next_seq)  # type: ignore[arg-type]  # in: so not None
            assert arrival is not None
            entries.append(self._deliver(arrival))
        if entries or not self._waiting:
            self._refusals = self._silences = 0
        return entries

    def _wait(self, arrival: Arrival) -> list[Entry]:
        twin = self._waiting.get(arrival.seq)
        if twin is not None:
            if twin.payload == arrival.payload:
                self.counts["duplicate"] += 1
                return []
            if not arrival.replayed or twin.replayed or not twin.later_than(arrival.ts):
                return [self._stray(arrival, "conflict")]
            # Other, older bytes in the replay: what waits from later on is of another life.
            self._suspects += self._waiting.take_if(
                lambda early: not early.replayed and early.later_than(arrival.ts)
            )
        if not self._waiting.add(arrival):
            self.counts["refused"] += 1
        return []

    # -- holes ---------------------------------------------------------------------------------------

    def _may_ask_again(self) -> bool:
        """Count a replay without an end marker; True while it is worth asking again."""
        self._silences += 1
        return self._silences < self._limits.tries

    def _settle_hole(self, complete: bool, now_ns: int) -> list[Entry]:
        assert self._next_seq is not None
        if not complete:
            return [] if self._may_ask_again() else self._give_up("replay_incomplete", now_ns)
        self._silences = 0
        end, first, start = self._waiting.first.seq, self._reply.first, self._reply.start
        if first is not None and first > self._next_seq and start is not None and start <= self._next_seq:
            return self._lose(min(first, end), "too_old", now_ns)
        if end > self._reply.asked_high:
            return []  # the hole opened after the request: the next one will cover it
        self._refused_high = (
            min(self._refused_high, self._reply.asked_high) if self._refusals else (self._reply.asked_high)
        )
        self._refusals += 1
        if self._refusals < self._limits.complete_tries:
            return []
        # A publisher always keeps its last batch: one that has nothing at all is not the one that sent ours.
        reason = "absent_from_replay" if first is not None else "restart"
        refused_high, entries = self._refused_high, list[Entry]()
        while self._waiting and self._waiting.first.seq <= refused_high:  # all these answers lacked them all
            entries += self._give_up(reason, now_ns)
        return entries

    def _give_up(self, reason: str, now_ns: int) -> list[Entry]:
        prefix = reason == "no_replay" and not self._recent and not self._lost
        return self._lose(self._waiting.first.seq, "late_join" if prefix else reason, now_ns)

    def _lose(self, end: int, reason: str, now_ns: int) -> list[Entry]:
        """Declare everything from the hole's beginning to ``end`` (not included) lost, and go on."""
        assert self._next_seq is not None
        if end <= self._next_seq:
            return self._drain()
        hole = range(self._next_seq, end)
        self._lost.append(hole)
        self._next_seq = end
        self._refusals = self._silences = 0
        loss = Loss(self.source, self._epoch, hole.start, hole.stop - 1, reason, now_ns)
        return [loss, *self._drain()]

    # -- what a replay proves ------------------------------------------------------------------------

    def _from_older_life(self, arrival: Arrival) -> bool:
        """Whether a replayed batch is from a publisher process that we know to be gone."""
        if self._former is not None and self._former.said(arrival):
            return True
        if arrival.ts is None or arrival.later_than(self._last_ts):
            return False
        known = self._recent.get(arrival.seq)
        # After a reconnect other bytes may as well be a new process's whose clock is behind.
        return known is not None and known != arrival.payload and not self._probing

    def _overlap(self, arrival: Arrival, *, again: bool) -> list[Entry]:
        """A replayed batch whose number we have: the proof that this is the same process, or is not."""
        known = self._recent.get(arrival.seq)
        if known == arrival.payload:
            self.counts["overlap"] += 1
            self._reply.same = True
            self._probing = False
            return self._drain()
        if known is not None or (again and arrival.later_than(self._last_ts)):
            return self._restart("content", [*self._suspects, arrival])
        self.counts["overlap"] += 1
        return []

    def _is_another(self, info: PublisherInfo) -> bool:
        return self._begun and self.incarnation not in ("", info.incarnation)

    def _introduced(self, info: PublisherInfo) -> list[Entry]:
        """The publisher is this one, and what is known of its batches is all that can be known."""
        entries: list[Entry] = []
        if self._is_another(info):
            first = self._reply.first
            answer = self._waiting.take_if(
                lambda early: early.replayed and first is not None and early.seq >= first
            )
            entries = self._restart("incarnation", [*self._suspects, *answer, *self._since_probe()])
        self.incarnation = info.incarnation
        return entries

    def _since_probe(self) -> list[Arrival]:
        """What waits and came over the new connection. Batches that the old one had still to give are the
        next in the old order.
        """
        assert self._next_seq is not None
        old_next = self._next_seq
        while old_next in self._waiting:
            old_next += 1
        return self._waiting.take_if(
            lambda early: early.received_ns >= self._probed_ns > 0 and early.seq > old_next
        )

    def _hold(self, arrival: Arrival) -> list[Entry]:
        """A replayed batch that by the clock cannot come before one that waits: it is of another life, or the
        clock was set back. The answer will show, by what it has under the number of one that waits.
        """
        held, early = self._reply.held, self._waiting.get(arrival.seq)
        held.append(arrival)
        if early is not None and early.payload == arrival.payload:
            self._reply.same, self._reply.held = True, []
            return [entry for one in held for entry in self._place(one)]
        if early is not None or len(held) > self._limits.waiting_batches:
            return self._restart("content", [*self._suspects, *held])
        return []

    def _settle_suspects(self, info: PublisherInfo | None) -> list[Entry]:
        """What a complete replay from our last batch says of a restart."""
        if not self._begun or self._next_seq is None:
            return []
        if self._reply.held:
            return self._restart("content", [*self._suspects, *self._reply.held])
        if self._reply.first is None and (info is None or info.next_seq < self._next_seq):
            # A publisher always keeps its last batch: one that no longer has ours is another process.
            if self._suspects or self._probing:
                since = self._waiting.take_if(lambda early: early.received_ns >= self._probed_ns)
                return self._restart("replay_empty", [*self._suspects, *since])
        elif self._reply.same and self._reply.suspected:
            return self._dismiss_suspects()
        return []

    # -- numbers from the past -----------------------------------------------------------------------

    def _outlives_waiting(self, arrival: Arrival) -> bool:
        """Whether a batch for a hole was made after the ones behind the hole: then it is of another life."""
        first = self._waiting.first
        return arrival.seq < first.seq and arrival.later_than(first.ts)

    def _behind(self, arrival: Arrival) -> list[Entry]:
        known = self._recent.get(arrival.seq)
        if known == arrival.payload:
            self.counts["duplicate"] += 1
            return []
        newer = arrival.later_than(self._last_ts)
        if newer or known is not None:
            return self._suspect(arrival, newer=newer)
        if any(arrival.seq in hole for hole in self._lost):
            return [self._stray(arrival, "late")]
        # All numbers below next_seq were delivered or declared lost, so this one was delivered: only its
        # bytes can no longer be compared.
        self.counts["duplicate_uncompared"] += 1
        return []

    def _suspect(self, arrival: Arrival, *, newer: bool) -> list[Entry]:
        self._suspects.append(arrival)
        if newer and arrival.seq == (self._origin or 0):
            return self._restart("seq", self._suspects)
        if len(self._suspects) > 1 and arrival.seq > self._suspects[-2].seq:
            return self._restart("seq" if newer else "content", self._suspects)
        return []

    def _stray(self, arrival: Arrival, reason: str, *, epoch: int | None = None) -> Stray:
        self.counts[reason] += 1
        epoch = self._epoch if epoch is None else epoch
        return Stray(self.source, epoch, arrival.seq, arrival.payload, arrival.received_ns, reason)

    def _dismiss_suspects(self) -> list[Entry]:
        """The old stream goes on, so numbers from the past were no restart."""
        suspects, self._suspects = self._suspects, []
        return [
            self._stray(suspect, "late" if any(suspect.seq in hole for hole in self._lost) else "conflict")
            for suspect in suspects
        ]

    def _decide_suspects(self) -> list[Entry]:
        if self._suspects[-1].later_than(self._last_ts):
            return self._restart("seq", self._suspects)
        return self._dismiss_suspects()

    def _restart(self, because: str, arrivals: list[Arrival]) -> list[Entry]:
        """End this epoch and begin the next with ``arrivals``.

        What waited belongs to the process that was alive when it was sent: numbers of one process rise with
        its clock.
        """
        born = min((arrival.ts for arrival in arrivals if arrival.ts is not None), default=math.inf)
        carried = self._waiting.take_if(
            lambda early: early.received_ns >= self._probed_ns and early.ts is not None and early.ts >= born
        )
        entries: list[Entry] = []
        while self._waiting:
            entries += self._give_up("restart", self._waiting.since_ns)
        assert self._next_seq is not None
        former = Former(
            self._recent, lost=self._lost, next_seq=self._next_seq, last_ts=self._last_ts, born_ts=born
        )
        reply_last = self._reply.last
        self._epoch += 1
        self.incarnation = ""
        self._origin = 0
        self._begin_epoch(because)
        self._former = former
        self._reply.last = reply_last
        # What still comes of an answer that is under way was sent by the process that is gone, unless the
        # answer itself told us so.
        self._reply.void = not any(arrival.replayed for arrival in arrivals)
        self._probing = self._can_ask
        for arrival in sorted((*arrivals, *carried), key=lambda one: one.seq):
            entries += self._place(arrival)
        return entries
