"""A secondary tier in this process's own memory: a dict of bytes. Real, and the smallest there is.

For tests, and for authors of tiers to start from. It shows the duties: a store of what is here already says
nothing, room is made and announced before it is taken, what is being read is never evicted, a job that did
not fit announces what did land. It does not outlive the process and takes no part in any other machine.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import ClassVar, Final

from tiers.errors import TierValueError
from tiers.jobs import JobResult, TransferJob
from tiers.keys import OffloadKey
from tiers.lru import LRUCachePolicy
from tiers.manager import LookupResult
from tiers.medium import Medium
from tiers.offloading_event import EventBuffer, OffloadingEvent
from tiers.policy import BlockStatus
from tiers.request import ReqContext, RequestOffloadingContext, ScheduleEndContext
from tiers.secondary import SecondaryTierManager

NOWHERE: Final = memoryview(b"")


class MemoryTier(SecondaryTierManager):
    """At most ``max_blocks`` blocks (None: no bound), the least recently used leaves first.

    After a job its first block is the most recently used, so the tail of a prefix leaves before its head.
    ``delay_steps``: a job is done after so many ``on_schedule_end``, 0 at once. With an empty
    ``primary_kv_view`` only the books are kept. Raises ``TierValueError`` for a negative number.
    """

    medium: ClassVar[Medium | None] = Medium.CPU

    def __init__(
        self,
        offloading_spec: object = None,
        primary_kv_view: memoryview = NOWHERE,
        tier_type: str = "memory",
        *,
        max_blocks: int | None = None,
        delay_steps: int = 0,
        enable_events: bool = False,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type)
        if delay_steps < 0 or (max_blocks is not None and max_blocks < 0):
            raise TierValueError(
                f"max_blocks {max_blocks}, delay_steps {delay_steps}", next_step="Give 0 or more of each."
            )
        self.max_blocks = sys.maxsize if max_blocks is None else max_blocks
        self.delay_steps = delay_steps
        self._rows = primary_kv_view.cast("B") if primary_kv_view.nbytes else None
        self._row_bytes = primary_kv_view.strides[0] if primary_kv_view.strides else 0
        self._events = EventBuffer(
            Medium.CPU, enabled=enable_events, ownership=tier_type, removal_expected=True
        )
        self._blocks: dict[OffloadKey, tuple[BlockStatus, bytes]] = {}
        self._policy = LRUCachePolicy(self.max_blocks)
        self._step = 0
        self._waiting: deque[tuple[int, TransferJob]] = deque()
        self._finished: list[JobResult] = []
        self._counts: Counter[str] = Counter()

    @property
    def capacity(self) -> int | None:
        return None if self.max_blocks == sys.maxsize else self.max_blocks

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:  # noqa: ARG002
        return LookupResult.HIT if key in self._blocks else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._waiting.append((self._step + self.delay_steps, job_metadata))
        self._work()

    def submit_load(self, job_metadata: TransferJob) -> None:
        """What is here now stays here until it was copied."""
        for key in job_metadata.keys:
            if key in self._blocks:
                self._pin(key, +1)
        self._waiting.append((self._step + self.delay_steps, job_metadata))
        self._work()

    def get_finished_jobs(self) -> Iterable[JobResult]:
        finished, self._finished = self._finished, []
        return finished

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:  # noqa: ARG002
        return RequestOffloadingContext()

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._policy.touch(keys, req_context)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: ARG002
        self._step += 1
        self._work()

    def drain_jobs(self) -> None:
        self._work(all_of_it=True)

    def has_pending_work(self) -> bool:
        return bool(self._waiting or self._finished)

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self._events.take()

    def number_events(self, numbers: Iterator[int]) -> None:
        self._events.number_from(numbers)

    def get_stats(self) -> Mapping[str, float]:
        return {**self._counts, **self._events.counts, "resident": len(self._blocks)}

    def shutdown(self) -> None:
        """Let the blocks go. The tier ends with its process: there is nobody to tell."""
        self._blocks.clear()
        self._policy.clear()
        self._waiting.clear()

    def _work(self, *, all_of_it: bool = False) -> None:
        while self._waiting and (all_of_it or self._waiting[0][0] <= self._step):
            _, job = self._waiting.popleft()
            self._finished.append(self._load(job) if job.is_promotion else self._store(job))

    def _store(self, job: TransferJob) -> JobResult:
        """Block for block, as on a medium: one that has to leave for another of its job comes again last."""
        todo = OrderedDict(zip(job.keys, job.block_ids.tolist(), strict=True))
        evicted: list[OffloadKey] = []
        landed: list[OffloadKey] = []
        used: dict[OffloadKey, None] = {}
        count = len(todo)
        while todo:
            key, slot = todo.popitem(last=False)
            if key not in self._blocks:
                if not self._make_room(todo, evicted, keep=used.keys()):
                    continue
                self._land(key, slot)
                landed.append(key)
            used[key] = None
        self._policy.touch([key for key in job.keys if key in used], job.req_context)
        self._events.removed(evicted, "evicted")
        self._events.stored(landed)
        self._counts.update(evictions=len(evicted), stores=len(landed), stores_without_room=count - len(used))
        return JobResult(job.job_id, len(used) == count)

    def _make_room(
        self, todo: OrderedDict[OffloadKey, int], evicted: list[OffloadKey], *, keep: AbstractSet[OffloadKey]
    ) -> bool:
        """Evict for one block, if there is anybody to evict."""
        if len(self._blocks) >= self.max_blocks and (victims := self._policy.evict(1, keep)):
            victim = victims[0][0]
            evicted.append(victim)
            del self._blocks[victim]
            if victim in todo:
                todo.move_to_end(victim)
        return len(self._blocks) < self.max_blocks

    def _land(self, key: OffloadKey, slot: int) -> None:
        block = BlockStatus(slot, 0)
        self._blocks[key] = (block, self._read(slot))
        self._policy.insert(key, block)

    def _load(self, job: TransferJob) -> JobResult:
        found = []
        for key, slot in zip(job.keys, job.block_ids.tolist(), strict=True):
            if key in self._blocks and self._blocks[key][0].ref_cnt > 0:
                self._write(slot, self._blocks[key][1])
                self._pin(key, -1)
                found.append(key)
        self._policy.touch(found, job.req_context)
        self._counts["loads"] += len(found)
        whole = len(found) == len(job.keys)
        return JobResult(job.job_id, whole, successful_keys=None if whole else found)

    def _pin(self, key: OffloadKey, readers: int) -> None:
        block, _ = self._blocks[key]
        block.ref_cnt += readers
        if block.ref_cnt == 0:
            self._policy.mark_evictable(key)
        elif block.ref_cnt == readers:
            self._policy.mark_non_evictable(key)

    def _read(self, slot: int) -> bytes:
        start = slot * self._row_bytes
        return b"" if self._rows is None else bytes(self._rows[start : start + self._row_bytes])

    def _write(self, slot: int, row: bytes) -> None:
        if self._rows is not None:
            self._rows[slot * self._row_bytes : (slot + 1) * self._row_bytes] = row

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self._policy.check_integrity()
        assert len(self._blocks) <= self.max_blocks, "more blocks than allowed"
        assert all(self._policy.get(key) is block for key, (block, _) in self._blocks.items()), (
            "a block is lost"
        )
        pins = Counter(key for _, job in self._waiting if job.is_promotion for key in job.keys)
        assert all(b.ref_cnt <= pins[key] for key, (b, _) in self._blocks.items()), "pinned by nobody"
