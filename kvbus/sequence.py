"""Where one publisher's stream stands. No sockets, no clock: feed it arrivals, it answers with entries.

A cursor takes what comes live and what the replay socket answers and leads it to its place in the present
epoch (``kvbus/epoch``), until a restart is proved (``kvbus/suspicion``): then the next epoch begins. It says
from where on a replay is wanted (``ask_from``). Nothing is dropped without a counter or an entry.

Every request overlaps what we have by one batch, so that the answer proves by its bytes that it comes from
the same publisher process. A process that dies within a few batches, before the death of the one before it is
settled, can still be taken for its neighbour.
"""

from __future__ import annotations

from collections import Counter

from kvbus.arrival import Arrival, Limits
from kvbus.epoch import Epoch
from kvbus.former import Former
from kvbus.log import Entry, SourceId, Standing
from kvbus.reply import Reply
from kvbus.suspicion import Restart, Suspicion
from kvbus.wire import PublisherInfo


class Cursor:
    """One stream's place, and the batches around it that are not yet in order.

    ``origin`` is the first seq wanted of the first epoch seen (1 for publishers that count from 1); None
    takes the stream wherever it is first seen. Later epochs begin at 0. ``info``: what the publisher says
    of itself, where that is known already; ``standing`` knows better.
    """

    def __init__(
        self,
        source: SourceId,
        *,
        can_ask: bool,
        origin: int | None = 0,
        info: PublisherInfo | None = None,
        standing: Standing | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.source = source
        self.counts: Counter[str] = Counter()
        self._limits = limits or Limits()
        self._can_ask = can_ask
        self._epoch = Epoch(
            source,
            because="first_sight",
            origin=origin,
            info=info,
            counts=self.counts,
            limits=self._limits,
        )
        if standing is not None:
            self._epoch.resume(standing)
        self._suspicion = Suspicion(self._epoch, probing=can_ask and standing is not None)
        self._reply = Reply()

    # -- what the rim asks ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._epoch.number

    @property
    def incarnation(self) -> str:
        """What the publisher calls itself; empty where it does not say."""
        return self._epoch.incarnation

    @property
    def next_seq(self) -> int | None:
        """The number that would be delivered next; None before the first of a stream without an origin."""
        return self._epoch.next_seq

    @property
    def waiting(self) -> int:
        """How many batches wait behind a hole."""
        return len(self._epoch.waiting)

    @property
    def ask_from(self) -> int | None:
        """Where a replay should begin to settle what is open here; None when nothing is."""
        epoch = self._epoch
        if not self._can_ask or epoch.next_seq is None:
            return None
        if epoch.waiting or self._suspicion.suspects or self._suspicion.probing:
            return max(epoch.next_seq - 1, 0) if epoch.begun else epoch.next_seq
        return None

    def knows(self, seq: int) -> bytes | None:
        """The bytes of a batch delivered lately or waiting; None where they are not at hand."""
        early = self._epoch.waiting.get(seq)
        return self._epoch.recent.get(seq) if early is None else early.payload

    # -- what comes in -------------------------------------------------------------------------------

    def live(self, arrival: Arrival) -> list[Entry]:
        """Take a message from the PUB socket."""
        epoch, suspicion = self._epoch, self._suspicion
        if arrival.seq != epoch.next_seq or not epoch.begun or epoch.waiting:
            return self._place(arrival)
        if suspicion.suspects or suspicion.probing:
            return self._place(arrival)
        if suspicion.former is not None:
            suspicion.former.heard(arrival)
        return [epoch.deliver(arrival)]

    def probe(self, now_ns: int) -> None:
        """The connection was lost and is back: was anything missed, and is it the same process?"""
        self._suspicion.probe(now_ns, can_ask=self._can_ask)

    def hello(self, info: PublisherInfo) -> list[Entry]:
        """Take the publisher's word on who it is."""
        suspicion = self._suspicion
        if self._epoch.waiting and self._can_ask and suspicion.is_another(info):
            # Which life are those of that wait? The replay tells it by bytes and clock.
            suspicion.probing = True
            suspicion.claimed = info
            return []
        return self._introduced(info)

    def asked(self, *, start: int | None = None) -> None:
        """A replay request that covers ``ask_from`` (or that began at ``start``) is on its way."""
        self._reply = Reply(
            start=self.ask_from if start is None else start,
            asked_high=self._epoch.waiting.last_seq,
            suspected=bool(self._suspicion.suspects),
        )

    def replayed(self, arrival: Arrival) -> list[Entry]:
        """Take a batch from the replay socket."""
        reply, next_seq = self._reply, self._epoch.next_seq
        again = reply.count(arrival.seq)
        reply.older = reply.older or self._suspicion.is_from_older_life(arrival)
        if reply.void or reply.older:
            self.counts["stale_reply"] += 1
            return []
        if reply.first is None:
            reply.first = arrival.seq
        if self._epoch.begun and next_seq is not None and arrival.seq < next_seq:
            return self._overlap(arrival, again=again)
        return self._place(arrival)

    def ended(self, *, complete: bool, info: PublisherInfo | None, now_ns: int) -> list[Entry]:
        """The replay is over. Without its end marker (``complete``) nothing follows from what it lacked."""
        epoch, reply = self._epoch, self._reply
        if reply.void:
            return []
        complete = complete and not reply.older  # what was passed over may be what is missing
        entries = [] if info is None else self._introduced(info)
        if complete:
            entries += self._answered(info)
        if self._epoch is epoch and self._suspicion.probing:
            entries += self._probed(complete=complete)
        if self._epoch is not epoch or self._suspicion.probing or not epoch.waiting:
            return entries
        return entries + epoch.settle_hole(reply, complete=complete, now_ns=now_ns)

    def tick(self, now_ns: int) -> list[Entry]:
        """Let time pass: ``now_ns`` on the clock that stamps ``received_ns``."""
        entries: list[Entry] = []
        suspects = self._suspicion.suspects
        if suspects and now_ns - suspects[0].received_ns > self._limits.suspect_ns:
            entries += self._decide()
        return entries if self._can_ask else entries + self._epoch.give_up_in_time(now_ns)

    def finish(self, now_ns: int) -> list[Entry]:
        """Nothing more will come: decide what is open."""
        entries = self._decide() if self._suspicion.suspects else []
        epoch = self._epoch
        while epoch.waiting:
            entries += epoch.give_up("replay_incomplete" if self._can_ask else "no_replay", now_ns)
        return entries

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        epoch = self._epoch
        epoch.check_integrity()
        if epoch.next_seq is None:
            assert not self._suspicion.suspects
        elif epoch.waiting:
            assert epoch.waiting.first.seq > epoch.next_seq or self._suspicion.probing

    # -- where a batch belongs -----------------------------------------------------------------------

    def _place(self, arrival: Arrival) -> list[Entry]:
        epoch, former = self._epoch, self._suspicion.former
        if not epoch.begun and epoch.next_seq is not None and arrival.seq < epoch.next_seq:
            self.counts["before_origin"] += 1
            return []
        entries: list[Entry] = []
        if not epoch.begun:
            entries.append(epoch.begin(arrival))
            self._suspicion.probing = False
        assert epoch.next_seq is not None
        if former is not None and not arrival.replayed:
            if former.left(arrival, expected=epoch.next_seq):
                return entries + self._left_behind(arrival, former)
            former.heard(arrival)
        if arrival.seq < epoch.next_seq:
            return entries + self._behind(arrival)
        return entries + self._ahead(arrival)

    def _left_behind(self, arrival: Arrival, former: Former) -> list[Entry]:
        """A batch that the life before had still to give."""
        if former.has(arrival):
            self.counts["duplicate"] += 1
            return []
        return [former.epoch.set_aside(arrival, "late")]

    def _behind(self, arrival: Arrival) -> list[Entry]:
        """A number that has been passed."""
        epoch = self._epoch
        known = epoch.recent.get(arrival.seq)
        if known == arrival.payload:
            self.counts["duplicate"] += 1
            return []
        newer = arrival.later_than(epoch.last_ts)
        if newer or known is not None:
            return self._follow(self._suspicion.suspect(arrival, newer=newer))
        if epoch.is_lost(arrival.seq):
            return [epoch.set_aside(arrival, "late")]
        # All numbers below next_seq were delivered or declared lost, so this one was delivered: only its
        # bytes can no longer be compared.
        self.counts["duplicate_uncompared"] += 1
        return []

    def _ahead(self, arrival: Arrival) -> list[Entry]:
        """The number that is next, or a higher one."""
        epoch, suspicion = self._epoch, self._suspicion
        if epoch.waiting and not self._reply.same:
            outlives = suspicion.outlives_waiting(arrival)
            if arrival.replayed and (outlives or self._reply.held):
                return self._hold(arrival)
            if outlives:
                return self._follow(suspicion.suspect(arrival, newer=True))
        # While it is open whether this is still the same process, the right number proves nothing.
        if arrival.seq != epoch.next_seq or (suspicion.probing and not arrival.replayed):
            return self._wait(arrival)
        if arrival.seq in epoch.waiting:
            return self._wait(arrival) + epoch.drain()
        dismissed = [] if arrival.replayed else self._suspicion.dismiss()
        return [*dismissed, epoch.deliver(arrival), *epoch.drain()]

    def _wait(self, arrival: Arrival) -> list[Entry]:
        epoch = self._epoch
        twin = epoch.waiting.get(arrival.seq)
        if twin is not None and twin.payload != arrival.payload:
            if not arrival.replayed or twin.replayed or not twin.later_than(arrival.ts):
                return [epoch.set_aside(arrival, "conflict")]
            self._suspicion.suspect_waiting(arrival)
        epoch.wait(arrival)
        return []

    # -- what an answer shows ------------------------------------------------------------------------

    def _overlap(self, arrival: Arrival, *, again: bool) -> list[Entry]:
        """A replayed batch whose number we have: the proof that this is the same process, or is not."""
        suspicion = self._suspicion
        if self._epoch.recent.get(arrival.seq) == arrival.payload:
            self.counts["overlap"] += 1
            self._reply.same = True
            suspicion.probing = False
            return self._epoch.drain()
        if suspicion.is_contradicted(arrival, again=again):
            return self._follow(suspicion.proof("content", arrival))
        self.counts["overlap"] += 1
        return []

    def _hold(self, arrival: Arrival) -> list[Entry]:
        """A replayed batch that by the clock cannot come before one that waits: it is of another life, or the
        clock was set back. The answer will show, by what it has under the number of one that waits.
        """
        reply, early = self._reply, self._epoch.waiting.get(arrival.seq)
        reply.held.append(arrival)
        if early is not None and early.payload == arrival.payload:
            held, reply.held, reply.same = reply.held, [], True
            return [entry for one in held for entry in self._place(one)]
        if early is not None or len(reply.held) > self._limits.waiting_batches:
            return self._follow(self._suspicion.proof("content", *reply.held))
        return []

    def _answered(self, info: PublisherInfo | None) -> list[Entry]:
        """What a complete answer says of a restart."""
        reply = self._reply
        restart = self._suspicion.answered(info, reply)
        if restart is None and reply.same and reply.suspected:
            return self._suspicion.dismiss()
        return self._follow(restart, info)

    def _probed(self, *, complete: bool) -> list[Entry]:
        """An answer did not prove by its bytes that this is the same process, nor that it is another."""
        suspicion = self._suspicion
        suspicion.probing = self._epoch.asks_again(complete=complete)
        if suspicion.probing:
            return []
        if suspicion.claimed is not None and not complete:
            return self._introduced(suspicion.claimed)
        return self._epoch.drain()

    # -- one life or two -----------------------------------------------------------------------------

    def _introduced(self, info: PublisherInfo) -> list[Entry]:
        entries = self._follow(self._suspicion.introduced(info, self._reply), info)
        self._epoch.introduce(info)
        return entries

    def _decide(self) -> list[Entry]:
        restart = self._suspicion.decide()
        return self._suspicion.dismiss() if restart is None else self._follow(restart)

    def _follow(self, restart: Restart | None, info: PublisherInfo | None = None) -> list[Entry]:
        """Where a restart is proved, end this epoch and begin the next with what proved it; ``info``: what
        the new process says of itself, if it was that which proved it.
        """
        if restart is None:
            return []
        over = self._epoch
        # What waited belongs to the process that was alive when it was sent.
        arrivals = [*restart.arrivals, *self._suspicion.take_born_since(restart.born_ts)]
        entries = over.end()
        self._epoch = over.next_epoch(restart.because, info=info)
        former = Former(over, born_ts=restart.born_ts)
        self._suspicion = Suspicion(self._epoch, former=former, probing=self._can_ask)
        # What still comes of an answer that is under way was sent by the process that is gone, unless the
        # answer itself told us so.
        self._reply = self._reply.after_restart(void=not restart.is_told_by_answer)
        for arrival in sorted(arrivals, key=lambda one: one.seq):
            entries += self._place(arrival)
        return entries
