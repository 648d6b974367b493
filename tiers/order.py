"""Blocks that may be evicted, in the order of their places, while those that may not are elsewhere. Pure.

A block keeps its place while it is pinned and comes back to it. Nearly always that is behind everyone
here: then it is appended. A block that comes back *out of turn* goes into a small heap beside the queue, and
whoever walks sees both as one order. So pinned blocks cost a walk nothing, and coming back costs O(1), or
O(log k) with k blocks that came back out of turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Final

from tiers.keys import OffloadKey
from tiers.policy import BlockStatus

Walk = Generator[tuple[OffloadKey, BlockStatus], None, None]

STALE_ALLOWED: Final = 64
"""Heap entries of blocks that left may be this many more than the others, before they are swept out."""


class EvictableOrder:
    """Ordered by ``BlockStatus.place``, which no two blocks share and which must not change in here."""

    def __init__(self) -> None:
        self._queue: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self._last_place = -1
        self._heap: list[int] = []
        self._out_of_turn: dict[int, tuple[OffloadKey, BlockStatus]] = {}

    def __len__(self) -> int:
        return len(self._queue) + len(self._out_of_turn)

    def __contains__(self, key: OffloadKey) -> bool:
        """For checks, not for work: walks those out of turn."""
        return key in self._queue or any(key == other for other, _ in self._out_of_turn.values())

    def add(self, key: OffloadKey, block: BlockStatus) -> None:
        if block.place > self._last_place or not self._queue:
            self._queue[key] = block
            self._last_place = block.place
        else:
            self._out_of_turn[block.place] = (key, block)
            heappush(self._heap, block.place)

    def discard(self, key: OffloadKey, block: BlockStatus) -> bool:
        """Take a block out, and whether it was here."""
        if self._queue.pop(key, None) is not None:
            return True
        if self._out_of_turn.pop(block.place, None) is None:
            return False
        if len(self._heap) > 2 * len(self._out_of_turn) + STALE_ALLOWED:
            self._heap = list(self._out_of_turn)
            heapify(self._heap)
        return True

    def walk(self, protected: AbstractSet[OffloadKey]) -> Walk:
        """The blocks in order, without those protected. After a ``discard`` the walk must not go on."""
        if not self._out_of_turn:
            for item in self._queue.items():
                if item[0] not in protected:
                    yield item
            return
        seen: list[int] = []
        try:
            for item in self._both(seen):
                if item[0] not in protected:
                    yield item
        finally:
            for place in seen:
                if place in self._out_of_turn:
                    heappush(self._heap, place)

    def _both(self, seen: list[int]) -> Walk:
        """Queue and heap as one order. Places taken from the heap are noted in ``seen``."""
        queue = iter(self._queue.items())
        ahead = next(queue, None)
        while True:
            # Stale, or twice: a block that left and came back to its place has two entries.
            while self._heap and (self._heap[0] not in self._out_of_turn or self._heap[0] in seen[-1:]):
                heappop(self._heap)
            if self._heap and (ahead is None or self._heap[0] < ahead[1].place):
                seen.append(heappop(self._heap))
                yield self._out_of_turn[seen[-1]]
            elif ahead is None:
                return
            else:
                yield ahead
                ahead = next(queue, None)

    def clear(self) -> None:
        self._queue.clear()
        self._last_place = -1
        self._heap.clear()
        self._out_of_turn.clear()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        places = [block.place for block in self._queue.values()]
        assert places == sorted(set(places)), "the queue is not in order"
        assert not places or places[-1] <= self._last_place, "the last place is not the last"
        assert self._out_of_turn.keys() <= set(self._heap), "out of turn, but not in the heap"
        assert not self._queue.keys() & {key for key, _ in self._out_of_turn.values()}, "a block twice"
        assert all(place == b.place for place, (_, b) in self._out_of_turn.items()), "a place has changed"
