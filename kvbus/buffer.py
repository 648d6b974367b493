"""What a publisher can still replay: its last batches, and from which number on nothing is missing.

Pure and single-threaded: no sockets, no clock, no lock. It does not give out numbers twice, does not keep
more than it was allowed, and does not guess why a number is absent.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

from msgspec import Struct

BUFFER_STEPS: Final = 10_000
BUFFER_BYTES: Final = 256 * 1024 * 1024


class Kept(Struct, frozen=True, gc=False):
    """One batch as it was sent."""

    topic: bytes
    seq: int
    payload: bytes


class ReplayBuffer:
    """The newest batches in order of their numbers, bounded by count (batches) and by payload bytes.

    A batch larger than ``buffer_bytes`` is not kept at all. ``buffer_steps`` 0 keeps nothing.
    """

    def __init__(self, buffer_steps: int = BUFFER_STEPS, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        if buffer_steps < 0 or buffer_bytes < 0:
            raise ValueError("a replay buffer cannot hold less than nothing")
        self.buffer_steps = buffer_steps
        self.buffer_bytes = buffer_bytes
        self.next_seq = 0
        self.payload_bytes = 0
        self._kept: deque[Kept] = deque()
        self._floor: int | None = None  # None: no number was used yet

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def first_seq(self) -> int | None:
        """From here on a replay lacks nothing that was ever sent; None if it would be ``next_seq``."""
        return None if self._floor == self.next_seq else self._floor

    def keep(self, topic: bytes, seq: int, payload: bytes) -> None:
        """Take in a batch. Raises ``ValueError`` for a number below ``next_seq``: call ``restart`` first."""
        if seq < self.next_seq:
            raise ValueError(f"number {seq} after {self.next_seq - 1}: numbers only go up within one run")
        if self._floor is None:
            self._floor = seq
        self.next_seq = seq + 1
        self.payload_bytes += len(payload)
        self._kept.append(Kept(topic, seq, payload))
        while len(self._kept) > self.buffer_steps or self.payload_bytes > self.buffer_bytes:
            gone = self._kept.popleft()
            self.payload_bytes -= len(gone.payload)
            self._floor = gone.seq + 1

    def give_up(self, count: int) -> None:
        """Use up ``count`` numbers for batches that will never be sent: their loss shows as a hole."""
        if count < 0:
            raise ValueError(f"cannot give up {count} numbers")
        if self._floor is None:
            self._floor = self.next_seq
        self.next_seq += count

    def since(self, start_seq: int) -> list[Kept]:
        """The kept batches with seq ≥ ``start_seq``, oldest first. Costs as much as it returns."""
        newest_first = []
        for kept in reversed(self._kept):
            if kept.seq < start_seq:
                break
            newest_first.append(kept)
        newest_first.reverse()
        return newest_first

    def restart(self) -> None:
        """Forget everything and number from 0 again, as a new process would."""
        self._kept.clear()
        self.payload_bytes = 0
        self.next_seq = 0
        self._floor = None

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        seqs = [kept.seq for kept in self._kept]
        assert all(a < b for a, b in pairwise(seqs)), "numbers do not rise"
        assert len(seqs) <= self.buffer_steps, "more batches than allowed"
        assert self.payload_bytes == sum(len(kept.payload) for kept in self._kept), "bytes miscounted"
        assert self.payload_bytes <= self.buffer_bytes, "more bytes than allowed"
        if self._floor is None:
            assert self.next_seq == len(seqs) == 0, "numbers used without a floor"
        else:
            assert 0 <= self._floor <= self.next_seq, "floor above the next number"
            assert not seqs or self._floor <= seqs[0], "a kept batch below the floor"
            assert not seqs or seqs[-1] < self.next_seq, "a kept batch from the future"
