"""Adaptive replacement: blocks seen once and blocks seen again, and a boundary that learns. Pure.

After Megiddo and Modha's ARC (FAST 2003), as vLLM's ``v1/kv_offload`` has it: T1 holds blocks seen once, T2
those seen again; B1 and B2 remember keys that left either. A touch of a remembered key moves the boundary.
It never adapts on lookup or insert, and pinned blocks keep their place without being walked over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from tiers.keys import OffloadKey
from tiers.order import EvictableOrder, Walk
from tiers.policy import BlockStatus, CachePolicy, Victims
from tiers.request import ReqContext


class ARCCachePolicy(CachePolicy):
    """``t1`` and ``t2`` in their orders, pinned blocks included; ``b1`` and ``b2`` are keys alone."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.target_t1_size = 0.0
        self.t1: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.t2: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self.b2: OrderedDict[OffloadKey, None] = OrderedDict()
        self._order1 = EvictableOrder()
        self._order2 = EvictableOrder()
        self._place = 0

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.t1.get(key) or self.t2.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        self._place = block.place = self._place + 1
        self.t1[key] = block
        self.b1.pop(key, None)
        self.b2.pop(key, None)
        if block.ref_cnt == 0:
            self._order1.add(key, block)

    def remove(self, key: OffloadKey) -> None:
        seen_once = key in self.t1
        block = (self.t1 if seen_once else self.t2).pop(key)
        (self._order1 if seen_once else self._order2).discard(key, block)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        for key in reversed(keys if isinstance(keys, (list, tuple)) else list(keys)):
            if (block := self.t2.get(key)) is not None:
                self._renew(key, block)
            elif (block := self.t1.get(key)) is not None:
                self._see_again(key, block)
            elif key in self.b1:
                step = max(1.0, len(self.b2) / len(self.b1))
                self.target_t1_size = min(self.target_t1_size + step, float(self.cache_capacity))
                self.b1.move_to_end(key)
            elif key in self.b2:
                step = max(1.0, len(self.b1) / len(self.b2))
                self.target_t1_size = max(self.target_t1_size - step, 0.0)
                self.b2.move_to_end(key)

    def _renew(self, key: OffloadKey, block: BlockStatus) -> None:
        """T2, once more."""
        evictable = self._order2.discard(key, block)
        self._place = block.place = self._place + 1
        self.t2.move_to_end(key)
        if evictable:
            self._order2.add(key, block)

    def _see_again(self, key: OffloadKey, block: BlockStatus) -> None:
        """T1: over to T2, unless its bytes have not even arrived."""
        evictable = self._order1.discard(key, block)
        self._place = block.place = self._place + 1
        if block.ref_cnt < 0:
            self.t1.move_to_end(key)
            return
        del self.t1[key]
        self.t2[key] = block
        if evictable:
            self._order2.add(key, block)

    def mark_evictable(self, key: OffloadKey) -> None:
        self.mark_all_evictable((key,))

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.mark_all_non_evictable((key,))

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        once: list[tuple[int, OffloadKey, BlockStatus]] = []
        again: list[tuple[int, OffloadKey, BlockStatus]] = []
        for key in keys:
            if (block := self.t1.get(key)) is not None:
                once.append((block.place, key, block))
            else:
                block = self.t2[key]
                again.append((block.place, key, block))
        # A touch goes through keys backwards: in the order of their places they all come back in turn.
        for found, order in ((once, self._order1), (again, self._order2)):
            found.sort()
            for _, key, block in found:
                order.add(key, block)

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            if (block := self.t1.get(key)) is not None:
                self._order1.discard(key, block)
            else:
                self._order2.discard(key, self.t2[key])

    def evict(self, n: int, protected: AbstractSet[OffloadKey]) -> Victims | None:
        """The oldest of T1 while T1 is at its target or above, else of T2; of the other where one is out.

        Every entry of T1 counts against the target, pinned ones too; only evictable ones are walked.
        """
        if n <= 0:
            return []
        once, again = self._order1.walk(protected), self._order2.walk(protected)
        try:
            chosen = self._choose(n, once, again)
            for key, block, seen_once in chosen or ():
                self._give_up(key, block, seen_once=seen_once)
        finally:
            once.close()
            again.close()
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.cache_capacity:
                ghosts.popitem(last=False)
        return None if chosen is None else [(key, block) for key, block, _ in chosen]

    def _choose(self, n: int, once: Walk, again: Walk) -> list[tuple[OffloadKey, BlockStatus, bool]] | None:
        size, target = len(self.t1), int(self.target_t1_size)
        chosen: list[tuple[OffloadKey, BlockStatus, bool]] = []
        while len(chosen) < n:
            victim = next(once, None) if size >= target else None
            if seen_once := victim is not None:
                size -= 1
            else:
                victim = next(again, None)
                if victim is None:  # below target, and T2 has nothing to give: T1 after all (vLLM #55461)
                    victim, seen_once = next(once, None), True
                    if victim is None:
                        return None
            chosen.append((*victim, seen_once))
        return chosen

    def _give_up(self, key: OffloadKey, block: BlockStatus, *, seen_once: bool) -> None:
        if seen_once:
            del self.t1[key]
            self._order1.discard(key, block)
            self.b1[key] = None
        else:
            del self.t2[key]
            self._order2.discard(key, block)
            self.b2[key] = None

    def clear(self) -> None:
        for part in (self.t1, self.t2, self.b1, self.b2, self._order1, self._order2):
            part.clear()
        self.target_t1_size = 0.0

    def check_integrity(self) -> None:
        for blocks, order in ((self.t1, self._order1), (self.t2, self._order2)):
            order.check_integrity()
            free = [key for key, block in blocks.items() if block.ref_cnt == 0]
            assert free == [key for key, _ in order.walk(frozenset())], "not the evictable ones in order"
        held = [*self.t1, *self.t2, *self.b1, *self.b2]
        assert len(held) == len(set(held)), "a key in two lists"
        assert len(self.t1) + len(self.t2) <= self.cache_capacity, "more blocks than the capacity"
        assert max(len(self.b1), len(self.b2)) <= self.cache_capacity, "more ghosts than the capacity"
        assert 0 <= self.target_t1_size <= self.cache_capacity, "the target is out of range"
