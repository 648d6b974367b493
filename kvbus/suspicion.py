"""Whether the publisher of an epoch is still the process it was: what speaks for a restart, and when that is
proof.

A number that goes back is only a suspicion. It takes a newer clock and a second witness, other bytes under a
number we know, or the publisher's own word. A proof is a value (``Restart``): nothing is ended here, and
nothing delivered. Numbers alone prove nothing, they start from 0 in each process.
"""

from __future__ import annotations

import math

from msgspec import Struct

from kvbus.arrival import Arrival
from kvbus.epoch import Epoch
from kvbus.former import Former
from kvbus.log import Entry
from kvbus.reply import Reply
from kvbus.wire import PublisherInfo


class Restart(Struct, frozen=True):
    """An epoch is over. ``because`` as in ``EpochBegan``; ``arrivals`` are the new process's, as far as they
    proved it.
    """

    because: str
    arrivals: list[Arrival]

    @property
    def born_ts(self) -> float:
        """The earliest that the new process is known to have said (its clock, seconds); infinite: nothing."""
        return min((arrival.ts for arrival in self.arrivals if arrival.ts is not None), default=math.inf)

    @property
    def is_told_by_answer(self) -> bool:
        """Whether an answer of the replay socket proved it."""
        return any(arrival.replayed for arrival in self.arrivals)


class Suspicion:
    """What speaks against ``epoch`` going on. ``former``: the life before it.

    ``suspects``: batches that do not fit the epoch, undecided. ``probing``: the replay socket must say
    whether it is the same process before anything live is believed. ``claimed``: who the publisher says it
    is, to be believed when that is settled.
    """

    def __init__(self, epoch: Epoch, *, former: Former | None = None, probing: bool) -> None:
        self.former = former
        self.suspects: list[Arrival] = []
        self.probing = probing
        self.claimed: PublisherInfo | None = None
        self._epoch = epoch
        self._probed_ns = 0

    def probe(self, now_ns: int, *, can_ask: bool) -> None:
        """The connection was lost and is back."""
        self._probed_ns = now_ns
        self.probing = can_ask and self._epoch.next_seq is not None

    # -- numbers from the past -----------------------------------------------------------------------

    def suspect(self, arrival: Arrival, *, newer: bool) -> Restart | None:
        """Take a batch that does not fit; ``newer``: by its clock it was made after what we have."""
        self.suspects.append(arrival)
        if newer and arrival.seq == (self._epoch.origin or 0):
            return self.proof("seq")
        if len(self.suspects) > 1 and arrival.seq > self.suspects[-2].seq:
            return self.proof("seq" if newer else "content")
        return None

    def suspect_waiting(self, older: Arrival) -> None:
        """The replay has other, older bytes under a number that waits: what waits from later on is of
        another life.
        """
        self.suspects += self._epoch.waiting.take_if(
            lambda early: not early.replayed and early.later_than(older.ts)
        )

    def decide(self) -> Restart | None:
        """No second witness came: the clock of the last suspect decides."""
        return self.proof("seq") if self.suspects[-1].later_than(self._epoch.last_ts) else None

    def dismiss(self) -> list[Entry]:
        """The epoch goes on, so numbers from the past were no restart: the suspects are set aside."""
        epoch, suspects, self.suspects = self._epoch, self.suspects, []
        return [
            epoch.set_aside(suspect, "late" if epoch.is_lost(suspect.seq) else "conflict")
            for suspect in suspects
        ]

    def proof(self, because: str, *arrivals: Arrival) -> Restart:
        """A restart of which the suspects and ``arrivals`` are the witnesses."""
        return Restart(because, [*self.suspects, *arrivals])

    # -- what clocks and bytes prove -----------------------------------------------------------------

    def is_from_older_life(self, replayed: Arrival) -> bool:
        """Whether a replayed batch is from a publisher process that we know to be gone."""
        if self.former is not None and self.former.said(replayed):
            return True
        if replayed.ts is None or replayed.later_than(self._epoch.last_ts):
            return False
        known = self._epoch.recent.get(replayed.seq)
        # After a reconnect other bytes may as well be a new process's whose clock is behind.
        return known is not None and known != replayed.payload and not self.probing

    def outlives_waiting(self, arrival: Arrival) -> bool:
        """Whether a batch for a hole was made after the ones behind the hole: then it is of another life."""
        first = self._epoch.waiting.first
        return arrival.seq < first.seq and arrival.later_than(first.ts)

    def is_contradicted(self, replayed: Arrival, *, again: bool) -> bool:
        """Whether a replayed batch under a number delivered long since proves another process: by other
        bytes, or where those are forgotten by its clock in an answer whose numbers started over (``again``).
        """
        known = self._epoch.recent.get(replayed.seq)
        if known is not None:
            return known != replayed.payload
        return again and replayed.later_than(self._epoch.last_ts)

    # -- what the publisher says of itself -----------------------------------------------------------

    def is_another(self, info: PublisherInfo) -> bool:
        """Whether the publisher calls itself by another name than the epoch's."""
        return self._epoch.begun and self._epoch.incarnation not in ("", info.incarnation)

    def introduced(self, info: PublisherInfo, reply: Reply) -> Restart | None:
        """Take the publisher's word; what is known of its batches is all that can be known."""
        if not self.is_another(info):
            return None
        first = reply.first
        answer = self._epoch.waiting.take_if(
            lambda early: early.replayed and first is not None and early.seq >= first
        )
        return self.proof("incarnation", *answer, *self._take_new_connections())

    def answered(self, info: PublisherInfo | None, reply: Reply) -> Restart | None:
        """What a complete answer, from our last batch on, proves."""
        epoch = self._epoch
        if not epoch.begun or epoch.next_seq is None:
            return None
        if reply.held:
            return self.proof("content", *reply.held)
        if reply.first is not None or (info is not None and info.next_seq >= epoch.next_seq):
            return None
        # A publisher always keeps its last batch: one that no longer has ours is another process.
        if not (self.suspects or self.probing):
            return None
        since = epoch.waiting.take_if(lambda early: early.received_ns >= self._probed_ns)
        return self.proof("replay_empty", *since)

    # -- whose is what waits -------------------------------------------------------------------------

    def take_born_since(self, ts: float) -> list[Arrival]:
        """What waits and was sent by a process that was born at ``ts``: numbers of one process rise with its
        clock.
        """
        return self._epoch.waiting.take_if(
            lambda early: early.received_ns >= self._probed_ns and early.ts is not None and early.ts >= ts
        )

    def _take_new_connections(self) -> list[Arrival]:
        """What waits and came over the new connection. Batches that the old one had still to give are the
        next in the old order.
        """
        old_next, waiting = self._epoch.next_seq, self._epoch.waiting
        assert old_next is not None
        while old_next in waiting:
            old_next += 1
        return waiting.take_if(
            lambda early: early.received_ns >= self._probed_ns > 0 and early.seq > old_next
        )
