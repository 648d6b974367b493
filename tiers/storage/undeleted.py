"""Blocks that could not be deleted: when each is tried again, and whether to evict others meanwhile. Pure.

A block that is stuck is tried again after a while, and after twice the while; other stores go on beside it.
But where every delete fails, each eviction would turn a readable block into a stuck one. So after two
different blocks in a row got stuck, evictions are let through one at a time, each after a pause, until a
delete succeeds. Who deletes, and what the blocks take up meanwhile, is decided elsewhere.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Final

from msgspec import Struct

from tiers.keys import OffloadKey

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STUCK_IN_A_ROW: Final = 2
"""One bad block is no rule; a second one right after it may be, and each one more is lost to its readers."""
TRIED_AT_ONCE: Final = 64


class Backoff(Struct):
    """A pause that doubles with each failure; ``until`` in the clock's seconds."""

    failures: int = 0
    until: float = -math.inf

    def failed(self, now: float) -> None:
        self.until = now + min(FIRST_PAUSE_S * 2.0 ** min(self.failures, 16), LONGEST_PAUSE_S)
        self.failures += 1


class Undeleted:
    """Times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._backoffs: dict[OffloadKey, Backoff] = {}
        self._queue: list[tuple[float, int, OffloadKey]] = []
        self._numbers = itertools.count()
        self._places: dict[OffloadKey, int] = {}
        """The number of each block's place in the queue; others of it are of times gone by."""
        self._in_a_row = 0
        self._brake = Backoff()

    def __len__(self) -> int:
        return len(self._backoffs)

    def failed(self, key: OffloadKey, now: float) -> None:
        """A delete failed."""
        if key not in self._backoffs:
            self._in_a_row += 1
            if self._in_a_row >= STUCK_IN_A_ROW:
                self._brake.failed(now)
        self.put_off(key, now)

    def put_off(self, key: OffloadKey, now: float) -> None:
        """This block is to be deleted, but not at once."""
        backoff = self._backoffs.setdefault(key, Backoff())
        backoff.failed(now)
        self._places[key] = next(self._numbers)
        heapq.heappush(self._queue, (backoff.until, self._places[key], key))

    def deleted(self, key: OffloadKey) -> None:
        """A delete succeeded, of a stuck block or of any other."""
        self._backoffs.pop(key, None)
        self._places.pop(key, None)
        self._in_a_row = 0
        self._brake = Backoff()

    def due(self, now: float) -> list[OffloadKey]:
        """Blocks to try again now, at most 64, each once until it fails again."""
        found: list[OffloadKey] = []
        while self._queue and self._queue[0][0] <= now and len(found) < TRIED_AT_ONCE:
            _, number, key = heapq.heappop(self._queue)
            if self._places.get(key) == number:
                found.append(key)
        return found

    def may_evict(self, now: float) -> bool:
        """Whether somebody may be evicted. A yes counts: it is followed by a pause while deletes fail."""
        if now < self._brake.until:
            return False
        if self._brake.failures:
            self._brake.failed(now)
        return True

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert (self._brake.failures > 0) == (self._in_a_row >= STUCK_IN_A_ROW), "braked by nothing"
        assert self._places.keys() == self._backoffs.keys(), "a block has no place in the queue"
