"""The CPU tier's books: which block lies in which slot, who reads it, who has to leave. No tensor.

The primary tier of vLLM's ``v1/kv_offload``, the only one that the GPU copies from and to. Workers own the
memory and move the bytes; here a slot is a number. An event is made at the moment the books change: the
blocks that leave are announced when their slots are given away, the new ones when their bytes are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from tiers.errors import TierContractError
from tiers.keys import OffloadKey
from tiers.manager import LookupResult, OffloadingManager
from tiers.medium import Medium
from tiers.offloading_event import EventBuffer, OffloadingEvent
from tiers.policy import WRITING, BlockStatus, CachePolicyFactory
from tiers.request import ReqContext, RequestOffloadingContext
from tiers.reuse import ReuseTracker
from tiers.slots import Slots
from tiers.specs import CPULoadStoreSpec, LoadStoreSpec, PrepareStoreOutput

MAX_TRACKER_SIZE: Final = 64_000


class CPUOffloadingManager(OffloadingManager):
    """``num_blocks`` slots under a cache policy (``lru``, ``arc``, or one of your own).

    ``enable_events``: without it nothing is announced. ``store_threshold`` ≥ 2: only blocks that were
    looked up so often are stored; ``max_tracker_size`` keys are counted. Raises ``TierValueError`` for
    sizes and names that cannot be.
    """

    def __init__(
        self,
        num_blocks: int,
        cache_policy: str = "lru",
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = MAX_TRACKER_SIZE,
        *,
        cache_policy_module_path: str | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.store_threshold = store_threshold
        self._slots = Slots(num_blocks)
        policy = CachePolicyFactory.get_cache_policy_cls(cache_policy, cache_policy_module_path)
        self._policy = policy(num_blocks)
        self._reuse = ReuseTracker(store_threshold, max_tracker_size) if store_threshold >= 2 else None
        self._events = EventBuffer(Medium.CPU, enabled=enable_events)
        self._blocks: dict[OffloadKey, BlockStatus] = {}
        self._num_evictable = 0
        self._num_write_pending = 0
        self._counts: Counter[str] = Counter()

    # Reading

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:  # noqa: ARG002
        if self._reuse is not None:
            self._reuse.saw(key)
        block = self._blocks.get(key)
        if block is None:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if block.ref_cnt == WRITING else LookupResult.HIT

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:  # noqa: ARG002
        blocks = [self._ready(key) for key in keys]
        pinned = []
        for key, block in zip(keys, blocks, strict=True):
            if block.ref_cnt == 0:
                pinned.append(key)
            block.ref_cnt += 1
        if pinned:
            self._num_evictable -= len(pinned)
            self._policy.mark_all_non_evictable(pinned)
        return CPULoadStoreSpec([block.block_id for block in blocks])

    def _ready(self, key: OffloadKey) -> BlockStatus:
        block = self._blocks.get(key)
        if block is None or block.ref_cnt == WRITING:
            state = "is not here" if block is None else "is still being written"
            raise TierContractError(
                f"block {key.hex()} cannot be loaded: it {state}",
                next_step="Load only what lookup said is a HIT, and pin it in the same step.",
            )
        return block

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._policy.touch(keys, req_context)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        blocks, released = self._blocks, []
        for done, key in enumerate(keys):
            block = blocks.get(key)
            if block is None or block.ref_cnt <= 0:
                for other in list(keys)[:done]:
                    blocks[other].ref_cnt += 1
                raise TierContractError(
                    f"nobody reads block {key.hex()}",
                    next_step="Complete each load that was prepared once, and none other.",
                )
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                released.append(key)
        if released:
            self._num_evictable += len(released)
            self._policy.mark_all_evictable(released)

    # Writing

    def prepare_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,  # noqa: ARG002
    ) -> PrepareStoreOutput | None:
        wanted = dict.fromkeys(keys)  # in order, each once
        if self._reuse is not None:
            wanted = dict.fromkeys(filter(self._reuse.enough, all_wanted := wanted))
            self._counts["stores_skipped"] += len(all_wanted) - len(wanted)
        known = self._blocks
        new = [key for key in wanted if key not in known]
        if not new:
            return PrepareStoreOutput([], CPULoadStoreSpec([]), [])
        self._counts[f"allocation_size.{size_class(len(new))}"] += 1
        evicted = self._make_room(len(new), protected=wanted)
        if evicted is None:
            return None
        slots = self._slots.take(len(new))
        blocks = list(zip(new, map(BlockStatus, slots), strict=True))
        known.update(blocks)
        self._policy.insert_all(blocks)
        self._num_write_pending += len(new)
        return PrepareStoreOutput(new, CPULoadStoreSpec(slots), evicted)

    def _make_room(self, count: int, *, protected: dict[OffloadKey, None]) -> list[OffloadKey] | None:
        """Evict until ``count`` slots are free: whom it met, in order. None, and no change, if it cannot."""
        need = count - self._slots.free
        if need <= 0:
            return []
        if need > self._num_evictable:
            self._counts["allocation_failures.in_use"] += 1
            return None
        victims = self._policy.evict(need, protected.keys())
        if victims is None:
            self._counts["allocation_failures.protected"] += 1
            return None
        evicted = [key for key, _ in victims]
        for key in evicted:
            del self._blocks[key]
        self._slots.give_back([block.block_id for _, block in victims])
        self._num_evictable -= len(victims)
        self._counts["evictions"] += len(victims)
        self._events.removed(evicted, "evicted")
        return evicted

    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,  # noqa: ARG002
        success: bool = True,
    ) -> None:
        known, arrived = self._blocks, []
        for key in keys:
            block = known.get(key)
            if block is not None and block.ref_cnt == WRITING:
                arrived.append(key)
                block.ref_cnt = 0
        if not arrived:
            return
        self._num_write_pending -= len(arrived)
        if success:
            self._num_evictable += len(arrived)
            self._policy.mark_all_evictable(arrived)
            self._counts["stores"] += len(arrived)
            self._events.stored(arrived)
            return
        for key in arrived:
            self._policy.remove(key)
        self._slots.give_back([known.pop(key).block_id for key in arrived])
        self._counts["store_failures"] += len(arrived)

    # The rest

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:  # noqa: ARG002
        return RequestOffloadingContext()

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self._events.take()

    def number_events(self, numbers: Iterator[int]) -> None:
        self._events.number_from(numbers)

    def reset_cache(self) -> None:
        """Forget every block. What was readable is announced as removed, oldest store first, behind the
        events that wait already; what was still being written goes in silence, as it came.
        """
        resident = [key for key, block in self._blocks.items() if block.ref_cnt != WRITING]
        self._events.removed(resident, "reset")
        self._counts["resets"] += 1
        self._blocks.clear()
        self._policy.clear()
        self._slots.reset()
        self._num_evictable = self._num_write_pending = 0
        if self._reuse is not None:
            self._reuse.clear()

    def get_stats(self) -> Mapping[str, float]:
        """Counters since the start, and gauges: blocks now ``resident``, ``evictable``, ``being_written``,
        ``being_read``; ``usage``, ``write_usage``, ``read_usage`` are pinned shares of the capacity (a full
        but idle cache has usage 0).
        """
        taken, size = self._slots.taken, max(1, self.num_blocks)
        pinned = taken - self._num_evictable
        return {
            **self._counts,
            **self._events.counts,
            "resident": taken,
            "evictable": self._num_evictable,
            "being_written": self._num_write_pending,
            "being_read": pinned - self._num_write_pending,
            "usage": pinned / size,
            "write_usage": self._num_write_pending / size,
            "read_usage": (pinned - self._num_write_pending) / size,
        }

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self._slots.check_integrity()
        self._policy.check_integrity()
        self._events.check_integrity()
        counts = Counter(min(block.ref_cnt, 1) for block in self._blocks.values())
        assert min(counts, default=0) >= WRITING, "a count of readers below -1"
        assert counts[0] == self._num_evictable, "evictable blocks miscounted"
        assert counts[WRITING] == self._num_write_pending, "blocks being written miscounted"
        assert len(self._blocks) == self._slots.taken <= self.num_blocks, "slots leak"
        slots = {block.block_id for block in self._blocks.values()}
        assert len(slots) == len(self._blocks), "two blocks in one slot"
        assert not any(map(self._slots.is_free, slots)), "a block in a free slot"
        assert all(self._policy.get(k) is b for k, b in self._blocks.items()), "the policy lost a block"


def size_class(count: int) -> int:
    """The upper bound of the histogram class of ``count``: the next power of two."""
    return 1 << (count - 1).bit_length()
