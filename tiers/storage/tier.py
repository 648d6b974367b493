"""A secondary tier over any medium that keeps blocks by key: bounded, announced, never waiting.

The scheduler's thread owns the books; threads only move blocks between the primary's memory and a
``BlockStore``, and hand back how it went. The books move when results are taken: in ``lookup``,
``get_finished_jobs`` and ``on_schedule_end``. What is announced is on the medium, what is on the medium is
announced, and what cannot be told apart from a good block by length and checksum is never handed out. What
kind of medium it is, the store knows alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar, Final

from tiers.argument import yes_or_no
from tiers.jobs import JobResult, TransferJob
from tiers.keys import OffloadKey
from tiers.manager import LookupResult
from tiers.medium import Locality, Medium
from tiers.offloading_event import EventBuffer, OffloadingEvent
from tiers.request import ReqContext, RequestOffloadingContext, ScheduleEndContext
from tiers.secondary import SecondaryTierManager
from tiers.storage.async_lookup import AsyncLookup
from tiers.storage.backpressure import Backpressure
from tiers.storage.block_store import BlockStore
from tiers.storage.block_work import BlockWork, Clock, DeletesDone, Done, LookupDone, ReadsDone, WritesDone
from tiers.storage.books import StorageBooks
from tiers.storage.found_blocks import adopt, take_inventory
from tiers.storage.loads import Loads
from tiers.storage.primary_rows import PrimaryRows
from tiers.storage.read_priority import ReadPriorityPool, Workers
from tiers.storage.shelf import Shelf
from tiers.storage.stores import Stores
from tiers.transfer_times import TransferTimes

TASK_BYTES: Final = 1 << 20


class StorageTier(SecondaryTierManager):
    """At most ``max_bytes`` payload bytes and ``max_blocks`` blocks lie on the medium (None: no bound).

    What lies there already is announced when the tier is opened, as far as it fits; the rest, used longest
    ago, is deleted. A block that cannot be deleted, or that may lie there after a put whose answer was lost,
    takes its room until it is deleted, which is tried again and again beside the stores; so the bound is kept
    even then. Only blocks of other processes can exceed it, until as many are deleted.

    ``shared``: other processes store on the same medium, so a block that is not in the books is looked for
    there. ``task_bytes``: see ``BlockWork``. ``workers`` replaces the threads.

    The tier owns ``store`` and closes it, unless it refuses its arguments. Raises ``TierValueError`` for
    arguments that are not of their type or size, and what ``store.inventory`` raises.
    """

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: object,
        primary_kv_view: memoryview,
        tier_type: str = "storage",
        *,
        store: BlockStore,
        max_bytes: int | None = None,
        max_blocks: int | None = None,
        enable_events: bool = False,
        locality: Locality | None = None,
        shared: bool = False,
        read_threads: int = 8,
        write_threads: int = 8,
        task_bytes: int = TASK_BYTES,
        backpressure: Backpressure | None = None,
        workers: Workers[Done] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type)
        self.locality = locality
        self.shared = yes_or_no("shared", shared)
        self.backpressure = backpressure
        self._clock = clock
        self._rows = PrimaryRows(primary_kv_view)
        self._is_over = False
        events = EventBuffer(
            Medium.STORAGE,
            enabled=yes_or_no("enable_events", enable_events),
            locality=locality,
            ownership=tier_type,
            removal_expected=True,
        )
        self._shelf = Shelf(max_blocks=max_blocks, max_bytes=max_bytes)
        self._books = StorageBooks(self._shelf, events, block_bytes=self._rows.row_bytes, clock=clock)
        self._questions = AsyncLookup()
        self._work = BlockWork(
            store,
            workers or ReadPriorityPool(read_threads, write_threads, name=tier_type),
            row=self._rows.row,
            block_bytes=self._rows.row_bytes,
            task_bytes=task_bytes,
            clock=clock,
        )
        self._stores = Stores(self._books, self._work, questions=self._questions)
        self._loads = Loads(self._books, self._work, questions=self._questions)
        try:
            take_inventory(list(store.inventory()), self._books, work=self._work)
            self.drain_jobs()
        except BaseException:
            self.shutdown()
            raise

    @property
    def capacity(self) -> int | None:
        """By both bounds."""
        return self._shelf.bound.holds(self._rows.row_bytes)

    # Reading

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT or MISS by the books; RETRY while a shared medium is being asked."""
        self._poll()
        if self._questions.is_missing(key, req_context.req_id):
            return LookupResult.MISS
        if self._shelf.is_resident(key):
            return LookupResult.HIT
        if self.shared and self._shelf.is_absent(key):
            asked = self._questions.ask(key, req_context.req_id, now=self._clock())
            return LookupResult.RETRY if asked else LookupResult.MISS
        return LookupResult.MISS

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Raises ``TierValueError`` for slots that the primary does not have; nothing has changed then."""
        self._rows.check(job_metadata)
        self._loads.submit(job_metadata)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._shelf.touch(keys, req_context)

    # Writing

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Raises as ``submit_load``."""
        self._rows.check(job_metadata)
        self._stores.submit(job_metadata)

    def refuses_stores(self) -> str | None:
        """``"backpressure"`` while the medium is too slow; but one job at a time finds out if it still is."""
        is_pressed = self.backpressure is not None and self.backpressure.is_pressed
        return "backpressure" if is_pressed and len(self._stores) else None

    # Steps

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._poll()
        return self._books.take_finished()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: ARG002
        """Send the step's questions to the medium, and try to delete what was stuck there."""
        self._poll()
        self._work.delete(self._books.take_due())
        for batch, keys in self._questions.flush():
            self._work.ask(batch, keys)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._questions.begin(req_context.req_id)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._questions.forget(req_context.req_id)

    def has_pending_work(self) -> bool:
        return self._work.is_outstanding or self._books.is_finished

    def drain_jobs(self) -> None:
        """Carries out everything that was begun, except questions, which touch nothing; the next store is
        measured as if it were the first.
        """
        while self._work.is_moving:
            self._book(self._work.wait())
        if self.backpressure is not None:
            self.backpressure.reset()

    def _poll(self) -> None:
        self._book(self._work.take())

    def _book(self, results: Iterable[Done]) -> None:
        for done in results:
            match done:
                case WritesDone():
                    self._measure(done)
                    self._stores.book(done)
                case ReadsDone():
                    self._loads.book(done)
                case DeletesDone(blocks=outcomes):
                    for outcome in outcomes:
                        self._books.deleted(outcome)
                    self._stores.resume(outcomes)
                case LookupDone():
                    self._answer(done)

    def _measure(self, done: WritesDone) -> None:
        """Blocks that were written, or should have been; not those that were there already."""
        if self.backpressure is not None:
            tried = sum(w.block is not None and (w.block.is_new or bool(w.block.error)) for w in done.blocks)
            self.backpressure.stored(done.ended - done.begun, tried * self._rows.row_bytes)

    def _answer(self, done: LookupDone) -> None:
        """What other processes stored, and somebody waits for, is taken in."""
        for reason, count in done.answers.failures.items():
            self._books.counts[f"lookup_failures.{reason}"] += count
        waiting = self._questions.answered(done.batch, done.answers.found, now=self._clock())
        refused = adopt(list(waiting), self._books, work=self._work)
        for key in refused:
            for req_id in waiting[key]:
                self._questions.mark_miss((key,), req_id)

    # The rest

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self._books.events.take()

    def number_events(self, numbers: Iterator[int]) -> None:
        self._books.events.number_from(numbers)

    def transfer_times(self) -> Mapping[str, TransferTimes]:
        """Of the jobs, under ``load`` and ``store``. Seconds are those between a job's submission and its
        result with at least one such job under way, by the scheduler's clock.
        """
        return self._books.times

    def get_stats(self) -> Mapping[str, float]:
        stats = {**self._books.get_stats(), **self._questions.get_stats()}
        stats["stores_under_way"] = len(self._stores)
        stats["loads_under_way"] = len(self._loads)
        if self.backpressure is not None:
            stats["backpressure_pressed"] = int(self.backpressure.is_pressed)
            stats["backpressure_seconds_per_mib"] = self.backpressure.mean or 0.0
        return stats

    def shutdown(self) -> None:
        """Jobs that have not begun never report; those under way end first. Then the store is closed."""
        self._is_over = True
        self._work.shutdown()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self._books.check_integrity()
        self._questions.check_integrity()
        self._stores.check_integrity()
        self._loads.check_integrity()
        jobs = len(self._stores) + len(self._loads)
        assert self._is_over or self._work.is_outstanding or not jobs, "a job is stuck"
