"""Least recently used: whoever was used longest ago leaves first. Pure.

A use is the end of a store, the end of a load, or a touch. Pinned blocks stand in no queue: they come in
again at the most recent end when their last reader leaves, so nothing ever walks over them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from tiers.keys import OffloadKey
from tiers.policy import BlockStatus, CachePolicy, Victims
from tiers.request import ReqContext


class LRUCachePolicy(CachePolicy):
    """Every operation is O(1) a block; ``evict`` also steps over protected blocks that are next in turn.

    A block is in one of two dicts, so that a store and an eviction touch little memory: at a million blocks
    that is what they cost.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._pinned: dict[OffloadKey, BlockStatus] = {}
        # An OrderedDict: taking from the front of a plain dict walks over all that was taken before.
        self._evictable: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self._evictable.get(key) or self._pinned.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        (self._pinned if block.ref_cnt else self._evictable)[key] = block

    def insert_all(self, blocks: Iterable[tuple[OffloadKey, BlockStatus]]) -> None:
        pinned, evictable = self._pinned, self._evictable
        for key, block in blocks:
            (pinned if block.ref_cnt else evictable)[key] = block

    def remove(self, key: OffloadKey) -> None:
        if self._pinned.pop(key, None) is None:
            del self._evictable[key]

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        evictable = self._evictable
        for key in reversed(keys if isinstance(keys, (list, tuple)) else list(keys)):
            if key in evictable:
                evictable.move_to_end(key)

    def mark_evictable(self, key: OffloadKey) -> None:
        self.mark_all_evictable((key,))

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.mark_all_non_evictable((key,))

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        pinned, evictable = self._pinned, self._evictable
        for key in keys:
            evictable[key] = pinned.pop(key)

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        pinned, evictable = self._pinned, self._evictable
        for key in keys:
            pinned[key] = evictable.pop(key)

    def evict(self, n: int, protected: AbstractSet[OffloadKey]) -> Victims | None:
        if n <= 0:
            return []
        victims: Victims = []
        for item in self._evictable.items():
            if item[0] not in protected:
                victims.append(item)
                if len(victims) == n:
                    break
        else:
            return None
        for key, _ in victims:
            del self._evictable[key]
        return victims

    def clear(self) -> None:
        self._pinned.clear()
        self._evictable.clear()

    def check_integrity(self) -> None:
        assert all(block.ref_cnt == 0 for block in self._evictable.values()), "evictable, but in use"
        assert all(block.ref_cnt != 0 for block in self._pinned.values()), "pinned by nobody"
        assert not self._evictable.keys() & self._pinned.keys(), "a block twice"
        assert len(self._evictable) + len(self._pinned) <= self.cache_capacity, "more than the capacity"
