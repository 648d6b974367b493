"""What is known of the publisher process before the present one, to tell what it left behind from what the
present one says.

Its clock and its bytes are proof as long as the present one's clock goes on from there: another host, a clock
that was set back and the same recording played again end that. Nothing is delivered or declared lost here.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from kvbus.arrival import Arrival
from kvbus.recent import Recent


class Former:
    """The life before: its last payloads, its holes (``lost``), its ``next_seq`` and ``last_ts``.

    ``born_ts``: the earliest that is known of the present life (seconds; infinite: nothing).
    """

    def __init__(
        self, recent: Recent, *, lost: Collection[range], next_seq: int, last_ts: float, born_ts: float
    ) -> None:
        self._recent = recent
        self._lost = lost
        self._next_seq = next_seq
        self._last_ts = last_ts
        self._born_ts = born_ts
        self._clock_tells = born_ts > last_ts

    def heard(self, ts: float) -> None:
        """The present life's clock says ``ts``."""
        if ts <= self._last_ts:
            self._clock_tells = False

    def said(self, replayed: Arrival) -> bool:
        """Whether a replayed batch is one of its own: a forwarder can have kept two lives."""
        if not self._clock_tells or replayed.ts is None:
            return False
        return replayed.ts <= self._last_ts or self._recent.get(replayed.seq) == replayed.payload

    def left(self, live: Arrival, *, expected: int) -> bool:
        """Whether a live batch ahead of the ``expected`` number is one that it had sent before it died: of
        two connections, ZeroMQ reads now the one, now the other.
        """
        if not expected < live.seq or expected >= self._next_seq or live.ts is None:
            return False
        if not self._clock_tells or not live.ts < self._born_ts < math.inf:
            return False
        return live.seq >= self._next_seq or any(live.seq in hole for hole in self._lost) or self.has(live)

    def has(self, live: Arrival) -> bool:
        """Whether this batch was delivered as its own."""
        return self._recent.get(live.seq) == live.payload
