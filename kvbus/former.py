"""What is known of the publisher process before the present one, to tell what it left behind from what the
present one says.

Its clock and its bytes are proof as long as the present one's clock goes on from there: another host, a clock
that was set back and the same recording played again end that. Nothing is delivered or declared lost here.
"""

from __future__ import annotations

import math

from kvbus.arrival import Arrival
from kvbus.epoch import Epoch


class Former:
    """The life before: ``epoch``, which is over.

    ``born_ts``: the earliest that is known of the present life (seconds; infinite: nothing).
    """

    def __init__(self, epoch: Epoch, *, born_ts: float) -> None:
        assert epoch.next_seq is not None, "an epoch that never began is not over"
        self.epoch = epoch
        self._next_seq = epoch.next_seq
        self._born_ts = born_ts
        self._clock_tells = born_ts > epoch.last_ts

    def heard(self, live: Arrival) -> None:
        """The present life said this, by its own clock."""
        if live.ts is not None and live.ts <= self.epoch.last_ts:
            self._clock_tells = False

    def said(self, replayed: Arrival) -> bool:
        """Whether a replayed batch is one of its own: a forwarder can have kept two lives."""
        if not self._clock_tells or replayed.ts is None:
            return False
        return replayed.ts <= self.epoch.last_ts or self.has(replayed)

    def left(self, live: Arrival, *, expected: int) -> bool:
        """Whether a live batch ahead of the ``expected`` number is one that it had sent before it died: of
        two connections, ZeroMQ reads now the one, now the other.
        """
        if not expected < live.seq or expected >= self._next_seq or live.ts is None:
            return False
        if not self._clock_tells or not live.ts < self._born_ts < math.inf:
            return False
        return live.seq >= self._next_seq or self.epoch.is_lost(live.seq) or self.has(live)

    def has(self, arrival: Arrival) -> bool:
        """Whether this batch was delivered as its own."""
        return self.epoch.recent.get(arrival.seq) == arrival.payload
