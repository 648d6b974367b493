"""The numbers a publisher has given out, shared by the thread that sends and the thread that replays.

One lock around a ``ReplayBuffer``; every method is short and takes it once. A number and its batch enter
together, so whatever a subscriber has seen live can be replayed from that moment on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from kvbus.buffer import Kept, ReplayBuffer
from kvbus.wire import PublisherInfo


class History:
    """``new_incarnation`` names a run of numbers (32 random hex digits); asked again when a run restarts.
    ``capacity``: see ``PublisherInfo``.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        new_incarnation: Callable[[], str],
        capacity: Mapping[str, int] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._buffer = buffer
        self._new_incarnation = new_incarnation
        self._incarnation = new_incarnation()
        self._capacity = dict(capacity or {})

    def number(self, topic: bytes, payload: bytes) -> int:
        """Give a batch the next number and keep it."""
        with self._lock:
            seq = self._buffer.next_seq
            self._buffer.keep(topic, seq, payload)
            return seq

    def keep(self, topic: bytes, seq: int, payload: bytes) -> None:
        """Keep a batch that has its number. One that goes back begins a new run, as a fresh process would."""
        with self._lock:
            if seq < self._buffer.next_seq:
                self._buffer.restart()
                self._incarnation = self._new_incarnation()
            self._buffer.keep(topic, seq, payload)

    def give_up(self, count: int) -> None:
        """Use up numbers for batches that were lost before they were sent."""
        with self._lock:
            self._buffer.give_up(count)

    def info(self) -> PublisherInfo:
        """Who this is and what it has, at one moment."""
        with self._lock:
            return self._info()

    def snapshot(self, start_seq: int) -> tuple[PublisherInfo, list[Kept]]:
        """The batches from ``start_seq`` on, and the info that was true of exactly these."""
        with self._lock:
            return self._info(), self._buffer.since(start_seq)

    def _info(self) -> PublisherInfo:
        buffer = self._buffer
        return PublisherInfo(self._incarnation, buffer.first_seq, buffer.next_seq, self._capacity)
