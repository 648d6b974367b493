"""The storage tier over a medium that can fail, stall, corrupt and lose: books, events, bytes, threads."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.tiers.faulty_store import FaultyStore
from tests.tiers.seeded_workers import SeededWorkers
from tests.tiers.words import REQUEST, k, keys, say
from tiers import (
    CPUOffloadingManager,
    JobResult,
    Locality,
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    TierContractError,
    TieringOffloadingManager,
    TierValueError,
    TransferJob,
)
from tiers.storage.backpressure import Backpressure
from tiers.storage.block_store import BlockUnsureError
from tiers.storage.tier import StorageTier

STEP = ScheduleEndContext((), ())
SLOTS, SLOT_BYTES = 16, 8
OTHER = ReqContext("other")


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Stage:
    """A tier, its medium, the primary's memory, and jobs by names of blocks."""

    def __init__(
        self,
        *,
        store: FaultyStore | None = None,
        threads: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.memory = bytearray(SLOTS * SLOT_BYTES)
        self.store = store or FaultyStore()
        self.workers = None if threads else SeededWorkers(seed)
        self.now = 0.0
        if not threads:
            options |= {"clock": lambda: self.now}
        self.tier = StorageTier(
            None,
            memoryview(self.memory).cast("B", (SLOTS, SLOT_BYTES)),
            "fs",
            store=self.store,
            enable_events=True,
            workers=self.workers,
            **options,
        )
        self.tier.on_new_request(REQUEST)
        self.next_job = 0

    def job(self, names: str, *, load: bool = False, request: ReqContext = REQUEST) -> TransferJob:
        found = keys(names)
        job = TransferJob(self.next_job, found, np.arange(len(found), dtype=np.int64), load, request)
        self.next_job += 1
        return job

    def submit_store(self, names: str) -> None:
        for slot, name in enumerate(names.split()):
            self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = content(name)
        self.tier.submit_store(self.job(names))
        self.tier.check_integrity()

    def submit_load(self, names: str, *, request: ReqContext = REQUEST) -> None:
        self.memory[:] = bytes(len(self.memory))
        self.tier.submit_load(self.job(names, load=True, request=request))
        self.tier.check_integrity()

    def finished(self) -> list[JobResult]:
        results = list(self.tier.get_finished_jobs())
        self.tier.check_integrity()
        return results

    def store_all(self, names: str) -> JobResult:
        self.submit_store(names)
        return self.settle()

    def load_all(self, names: str, *, request: ReqContext = REQUEST) -> JobResult:
        self.submit_load(names, request=request)
        return self.settle()

    def settle(self) -> JobResult:
        """The one result that is to come."""
        results = self.finished()
        while self.workers and self.workers.outstanding:
            self.workers.step()
            results += self.finished()
        (result,) = results
        return result

    def wait(self, seconds: float) -> None:
        """Time passes, a step ends, and what it began is done."""
        self.now += seconds
        self.tier.on_schedule_end(STEP)
        self.tier.drain_jobs()
        self.tier.check_integrity()

    def in_slot(self, slot: int) -> bytes:
        return bytes(self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES])

    def said(self) -> str:
        return say(self.tier.take_events())

    def look(self, name: str, request: ReqContext = REQUEST) -> LookupResult:
        found = self.tier.lookup(k(name), request)
        self.tier.check_integrity()
        return found

    def stat(self, name: str) -> float:
        return self.tier.get_stats().get(name, 0)


def content(name: str) -> bytes:
    return name.encode().ljust(SLOT_BYTES, b".")


@contextmanager
def threaded(**options: Any) -> Iterator[Stage]:
    """A stage with real threads, shut down at the end."""
    stage = Stage(threads=True, **options)
    try:
        yield stage
    finally:
        stage.store.gate.set()
        stage.tier.shutdown()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


# Bounds and evictions


def test_room_is_made_before_it_is_taken() -> None:
    """A full tier announces the least recently used as evicted, deletes it, and only then writes."""
    stage = Stage(max_blocks=3)
    assert stage.store_all("a b c").success
    stage.tier.touch(keys("a"), REQUEST)
    assert stage.store_all("d e").success
    # Of one job the tail of the prefix leaves first; b and c were used together, so c is older.
    assert stage.said() == "+a +b +c | -c:evicted -b:evicted | +d +e"
    assert list(stage.store.blocks) == keys("a d e")
    assert stage.store.most_bytes <= 3 * SLOT_BYTES
    assert (stage.stat("evictions"), stage.stat("resident"), stage.stat("resident_bytes")) == (2, 3, 24)


def test_bytes_are_bounded_too() -> None:
    """max_bytes counts payload bytes; a bound that is no multiple of a block is not used up."""
    stage = Stage(max_bytes=3 * SLOT_BYTES + 5)
    assert stage.store_all("a b c").success
    assert stage.store_all("d").success
    assert len(stage.store.blocks) == 3
    assert stage.store.most_bytes == 3 * SLOT_BYTES
    assert (stage.tier.capacity, Stage(max_bytes=9 * SLOT_BYTES, max_blocks=4).tier.capacity) == (3, 4)
    assert Stage().tier.capacity is None


def test_an_eviction_is_said_at_once_and_done_later() -> None:
    """The victim is out of the books when the store is submitted, whenever the medium deletes it."""
    stage = Stage(max_blocks=1)
    stage.store_all("a")
    stage.said()
    stage.submit_store("b")
    assert stage.said() == "-a:evicted"
    assert k("a") in stage.store.blocks
    stage.finished()
    assert stage.said() == "+b"


def test_what_does_not_fit_fails_alone() -> None:
    """A job larger than the tier announces what landed, and fails for the rest for want of room."""
    stage = Stage(max_blocks=2)
    assert not stage.store_all("a b c d").success
    assert stage.said() == "+a +b"
    assert stage.stat("store_failures.no_room") == 2


def test_what_is_being_read_or_was_asked_for_stays() -> None:
    """A block under a load, or named by the very job that needs room, is not evicted."""
    stage = Stage(max_blocks=1)
    stage.store_all("a")
    stage.submit_load("a")
    stage.submit_store("b")
    assert [r.success for r in stage.finished()] == [False, True]
    assert not stage.store_all("a b").success
    assert stage.said() == "+a"


def test_storing_again_is_silent_and_a_use() -> None:
    """A block that is here is not written again, not announced again, and becomes the most recent."""
    stage = Stage(max_blocks=2)
    stage.store_all("a")
    stage.store_all("b")
    assert stage.store_all("a").transfer_time is None
    assert stage.store.calls["put"] == 2
    stage.store_all("c")
    assert stage.said() == "+a | +b | -b:evicted | +c"


def test_a_load_is_a_use_backwards() -> None:
    """Of what was loaded together, the tail of the prefix leaves first."""
    stage = Stage(max_blocks=3)
    stage.store_all("a b c")
    assert stage.load_all("a b").success
    stage.store_all("d e")
    assert stage.said() == "+a +b +c | -c:evicted -b:evicted | +d +e"


# One key, several jobs


def test_a_block_that_is_being_written_is_not_written_twice() -> None:
    """A second job for it waits for the first; both succeed, and it is announced once."""
    stage = Stage()
    stage.submit_store("a b")
    stage.submit_store("b a")
    assert [(r.job_id, r.success) for r in stage.finished()] == [(0, True), (1, True)]
    assert stage.said() == "+a +b"
    assert stage.store.calls["put"] == 2


def test_a_shared_fate_may_be_failure() -> None:
    """When the writing job fails for a block, so does the one that waited for it, and nothing else of it."""
    stage = Stage()
    stage.store.fail["put", k("a")] = full()
    stage.submit_store("a b")
    stage.submit_store("a c")
    assert [r.success for r in stage.finished()] == [False, False]
    assert stage.said() == "+b | +c"
    assert stage.stat("store_failures.ENOSPC") == 2


def test_a_delete_never_overtakes_the_store_that_follows() -> None:
    """A block stored again while its delete is under way waits for it, and is there in the end."""
    stage = Stage(max_blocks=2)
    stage.store_all("a")
    stage.store_all("b")
    stage.submit_store("c")
    stage.submit_store("a")
    assert k("a") in stage.store.blocks
    while stage.tier.has_pending_work():
        assert all(result.success for result in stage.finished())
    assert sorted(stage.store.blocks) == keys("a c")
    assert stage.said() == "+a | +b | -a:evicted | +c | -b:evicted | +a"
    assert stage.store.most_bytes == 2 * SLOT_BYTES


def test_two_jobs_never_wait_for_each_other() -> None:
    """A block that waits for room is not overtaken by the same block of a later job, which it would join."""
    stage = Stage(max_blocks=3, task_bytes=0, seed=0)
    stage.store_all("y z")
    stage.store.corrupt |= set(keys("y z"))
    assert stage.workers is not None
    stage.submit_load("y z")
    stage.workers.run(0)
    stage.workers.run(0)
    stage.finished()  # both are leaving
    stage.submit_store("a b")  # there is room for a; b has to wait until y is deleted
    stage.workers.run(1)
    stage.finished()  # z is deleted
    stage.submit_store("b a")
    while stage.workers.outstanding:
        stage.workers.step()
        stage.finished()
    assert stage.said() == "+y +z | -y:corrupt -z:corrupt | +a +b"


def test_a_key_named_twice() -> None:
    """Of a key named twice a store takes one; a load fills both slots."""
    stage = Stage()
    assert stage.store_all("a a").success
    assert stage.said() == "+a"
    assert stage.load_all("a a").success
    assert stage.in_slot(0) == stage.in_slot(1) == content("a")


def test_a_job_of_nothing_is_done() -> None:
    """A job without keys is reported like any other."""
    stage = Stage()
    assert stage.store_all("") == JobResult(0, True)
    assert stage.load_all("") == JobResult(1, True)


# A medium that fails


def test_a_job_that_fails_half_way() -> None:
    """What landed is announced, in the job's order, in one event; the rest is counted with its cause."""
    stage = Stage()
    stage.store.fail["put", k("b")] = full()
    result = stage.store_all("c b a")
    assert (result.success, result.successful_keys) == (False, None)
    assert result.transfer_time is not None
    assert stage.said() == "+c +a"
    assert stage.stat("store_failures.ENOSPC") == 1
    assert sorted(stage.store.blocks) == sorted(keys("c a"))


@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EROFS"])
def test_the_cause_is_a_counter_and_the_tier_goes_on(code: str) -> None:
    """The system's name of the error is the reason; when the medium works again, so does the tier."""
    stage = Stage(max_blocks=2)
    number = getattr(errno, code)
    stage.store.fail["put", None] = OSError(number, os.strerror(number))
    assert not stage.store_all("a b").success
    assert stage.said() == ""
    assert stage.stat(f"store_failures.{code}") == 2
    stage.store.fail.clear()
    assert stage.store_all("a b").success


def test_a_store_of_a_foreign_library_may_raise_anything() -> None:
    """An error that is no OSError is that block's failure too, under its own name; nothing hangs."""
    stage = Stage()
    stage.store.fail["put", None] = ZeroDivisionError()
    assert not stage.store_all("a").success
    assert stage.stat("store_failures.ZeroDivisionError") == 1
    assert stage.stat("stranded") == 1  # who raises what he should not may have written all the same


def test_a_block_that_cannot_be_deleted_keeps_its_room() -> None:
    """It is out of the books and takes its room; when it can be deleted at last, the room is free again."""
    stage = Stage(max_blocks=1)
    stage.store_all("a")
    stage.store.stuck.add(k("a"))
    for _ in range(3):
        assert not stage.store_all("b").success
        assert stage.look("a") is LookupResult.MISS
    assert (stage.stat("delete_failures.EPERM"), stage.stat("stranded")) == (1, 1)
    assert stage.stat("store_failures.no_room") == 3
    assert list(stage.store.blocks) == keys("a")
    stage.store.stuck.clear()
    stage.wait(1.0)
    assert stage.store_all("b").success
    assert stage.said() == "+a | -a:evicted | +b"
    assert stage.store.most_bytes == SLOT_BYTES


def test_one_stuck_block_stops_no_store() -> None:
    """A store whose victim stays evicts another; the stuck one is tried again ever more seldom."""
    stage = Stage(max_blocks=8)
    stage.store_all("0 1 2 3 4 5 6 7")
    stage.store.stuck.add(k("7"))
    assert stage.store_all("8").success
    assert stage.said().endswith("-7:evicted | -6:evicted | +8")
    for n in range(9, 59):
        assert stage.store_all(str(n)).success
        stage.wait(10.0)
    assert (stage.stat("stranded"), stage.stat("resident")) == (1, 7)
    assert stage.stat("delete_failures.EPERM") < 20
    assert stage.store.most_bytes == 8 * SLOT_BYTES


def test_where_a_victim_stays_all_who_want_the_block_get_other_room() -> None:
    """A job that joined the one that was to write the block shares the second attempt as it did the first."""
    stage = Stage(max_blocks=2)
    stage.store_all("a b")
    stage.store.stuck.add(k("b"))
    stage.submit_store("c")
    stage.submit_store("c")
    assert [result.success for result in stage.finished() + stage.finished()] == [True, True]
    assert stage.said() == "+a +b | -b:evicted | -a:evicted | +c"


def test_a_medium_that_deletes_nothing_keeps_its_blocks_readable() -> None:
    """When one block after the other gets stuck, evicting stops, but for one now and then to find out."""
    stage = Stage(max_blocks=40, task_bytes=0)
    for n in range(0, 40, 10):
        stage.store_all(" ".join(map(str, range(n, n + 10))))
    stage.store.fail["delete", None] = OSError(errno.EACCES, "no")
    for n in range(100, 150):
        assert not stage.store_all(str(n)).success
    assert (stage.stat("stranded"), stage.stat("resident")) == (2, 38)
    for n in range(150, 160):
        stage.wait(0.9)
        stage.store_all(str(n))
    assert stage.stat("resident") >= 34
    stage.store.fail.clear()
    stage.wait(70.0)
    assert stage.stat("stranded") == 0
    assert stage.store_all("z").success


def test_a_stuck_block_can_be_stored_again() -> None:
    """Its old self is deleted first; if that fails, so does the store."""
    stage = Stage(max_blocks=2)
    stage.store_all("a b")
    stage.store.stuck.add(k("b"))
    assert stage.store_all("c").success
    assert not stage.store_all("b").success
    assert stage.stat("store_failures.EPERM") == 1
    stage.store.stuck.clear()
    assert stage.store_all("b").success
    assert stage.look("b") is LookupResult.HIT
    assert stage.store.most_bytes == 2 * SLOT_BYTES


# Puts of which nobody knows what became


def lost(name: str) -> BlockUnsureError:
    return BlockUnsureError(k(name), TimeoutError(errno.ETIMEDOUT, "no answer"))


def test_a_put_whose_answer_is_lost_takes_its_room() -> None:
    """The job fails, nothing is announced; the bytes that may lie there count until they are deleted."""
    stage = Stage(max_blocks=2)
    for name in "abcdef":
        stage.store.fail["put", k(name)] = lost(name)
        assert not stage.store_all(name).success
        assert len(stage.store.blocks) <= 2
    assert stage.said() == ""
    assert stage.look("a") is LookupResult.MISS
    assert (stage.stat("stranded"), stage.stat("stores_unsure")) == (2, 2)
    assert (stage.stat("store_failures.ETIMEDOUT"), stage.stat("store_failures.no_room")) == (2, 4)
    stage.wait(1.0)
    assert (stage.stat("stranded"), stage.store.blocks) == (0, {})
    assert stage.store_all("x y").success
    assert stage.store.most_bytes == 2 * SLOT_BYTES


def test_a_block_of_a_lost_answer_is_stored_again_in_order() -> None:
    """What may lie there is deleted before the same block is put once more."""
    stage = Stage()
    stage.store.fail["put", k("a")] = lost("a")
    stage.store_all("a")
    del stage.store.fail["put", k("a")]
    assert stage.store_all("a").success
    assert stage.store.calls["delete"] == 1
    assert stage.said() == "+a"
    assert (stage.stat("stores"), stage.stat("stores_found")) == (1, 0)


def test_a_put_that_failed_for_certain_leaves_nothing() -> None:
    """An error that promises so gives the room back at once, and nobody deletes anything."""
    stage = Stage(max_blocks=1)
    stage.store.fail["put", k("a")] = full()
    stage.store_all("a")
    assert (stage.stat("stranded"), stage.stat("stores_unsure")) == (0, 0)
    assert stage.store_all("b").success
    assert stage.store.calls["delete"] == 0


# Loads


def test_a_corrupt_block_fails_alone_and_leaves() -> None:
    """It is deleted, announced as corrupt, a miss from then on; the others of the job arrive."""
    stage = Stage()
    stage.store_all("a b c")
    stage.store.corrupt.add(k("b"))
    result = stage.load_all("a b c")
    assert (result.success, result.successful_keys) == (False, keys("a c"))
    assert (stage.in_slot(0), stage.in_slot(2)) == (content("a"), content("c"))
    stage.finished()
    assert stage.said() == "+a +b +c | -b:corrupt"
    assert k("b") not in stage.store.blocks
    assert stage.look("b") is LookupResult.MISS
    assert stage.look("b", OTHER) is LookupResult.MISS
    assert stage.stat("load_failures.corrupt") == 1


def test_a_vanished_block_leaves_the_books() -> None:
    """A block deleted behind the tier's back is announced as deleted when a load finds out."""
    stage = Stage()
    stage.store_all("a b")
    del stage.store.blocks[k("a")]
    assert stage.load_all("a b").successful_keys == keys("b")
    assert stage.said() == "+a +b | -a:deleted"
    assert stage.look("a", OTHER) is LookupResult.MISS
    assert stage.store_all("a").success
    assert stage.look("a", OTHER) is LookupResult.HIT


def test_an_error_that_may_pass_is_not_held_against_the_block() -> None:
    """After EIO the request that met it sees a miss, so nothing loops; others may try again."""
    stage = Stage()
    stage.store_all("a")
    stage.store.fail["get", None] = OSError(errno.EIO, "no")
    assert stage.load_all("a").successful_keys == []
    assert stage.said() == "+a"
    assert stage.stat("load_failures.EIO") == 1
    assert stage.look("a") is LookupResult.MISS
    assert stage.look("a", OTHER) is LookupResult.HIT
    stage.store.fail.clear()
    assert stage.load_all("a", request=OTHER).success
    stage.tier.on_request_finished(REQUEST)
    assert stage.look("a") is LookupResult.HIT


def test_two_readers_of_a_corrupt_block() -> None:
    """It is removed once, and an old reader's verdict does not touch the block that came after."""
    stage = Stage()
    stage.store_all("a")
    stage.store.corrupt.add(k("a"))
    stage.submit_load("a")
    stage.submit_load("a")
    assert [r.success for r in stage.finished()] == [False, False]
    assert stage.said() == "+a | -a:corrupt"
    stage.finished()
    assert stage.store_all("a").success
    assert stage.said() == "+a"


# What is there already


def test_an_inventory_is_announced_once() -> None:
    """Blocks of an earlier life are announced in inventory order, can be loaded, and count."""
    earlier = Stage()
    earlier.store_all("a b c")
    stage = Stage(store=earlier.store, max_blocks=3)
    assert stage.said() == "+a +b +c"
    assert stage.load_all("c").success
    assert stage.store_all("d").success
    assert stage.said() == "-a:evicted | +d"
    assert stage.stat("inventory") == 3


def test_an_inventory_beyond_the_bound_is_cut() -> None:
    """The blocks used longest ago are deleted before the tier opens, and were never announced."""
    earlier = Stage()
    earlier.store_all("a b c d")
    stage = Stage(store=earlier.store, max_blocks=2)
    assert stage.said() == "+c +d"
    assert list(stage.store.blocks) == keys("c d")
    assert (stage.stat("inventory_surplus"), stage.stat("evictions")) == (2, 0)


def test_a_medium_that_cannot_be_listed_is_not_opened() -> None:
    """What the inventory raises comes out of the constructor, and everything was let go."""
    store = FaultyStore()
    store.fail["inventory", None] = PermissionError(errno.EACCES, "no")
    with pytest.raises(PermissionError):
        Stage(store=store, threads=True)
    assert store.is_closed


def test_a_hundred_thousand_blocks_are_one_event() -> None:
    """A large inventory is taken in with one event, in order."""
    store = FaultyStore()
    found = [k(str(n)) for n in range(100_000)]
    store.blocks = dict.fromkeys(found, bytes(SLOT_BYTES))
    stage = Stage(store=store)
    (event,) = stage.tier.take_events()
    assert event.keys == found


# Shared media


def test_unknown_blocks_of_an_own_medium_are_misses() -> None:
    """Nobody is asked about a block that is not in the books unless the medium is shared."""
    stage = Stage()
    stage.store.blocks[k("a")] = content("a")
    assert stage.look("a") is LookupResult.MISS
    stage.tier.on_schedule_end(STEP)
    assert stage.look("a") is LookupResult.MISS


def test_a_foreign_block_is_adopted() -> None:
    """On a shared medium RETRY until answered; a block found is announced, counted, and evicted like ours."""
    stage = Stage(shared=True, max_blocks=2)
    stage.store_all("x y")
    stage.store.blocks |= {k("a"): content("a")}
    assert stage.look("a") is LookupResult.RETRY
    assert stage.look("b") is LookupResult.RETRY
    stage.now = 2.0
    stage.tier.on_schedule_end(STEP)
    assert [stage.look("a"), stage.look("b")] == [LookupResult.HIT, LookupResult.MISS]
    assert stage.store.calls["holds"] == 1
    assert stage.said() == "+x +y | -y:evicted | +a"
    assert stage.load_all("a").success
    assert stage.in_slot(0) == content("a")
    assert (stage.stat("adoptions"), stage.stat("lookup_async_delay_seconds")) == (1, 4.0)
    stage.finished()
    assert sorted(stage.store.blocks) == keys("a x")


def test_a_no_holds_for_the_life_of_the_request() -> None:
    """A request that was told no is not told otherwise; another one asks anew."""
    stage = Stage(shared=True)
    stage.look("a")
    stage.tier.on_schedule_end(STEP)
    assert stage.look("a") is LookupResult.MISS
    stage.store.blocks[k("a")] = content("a")
    assert stage.look("a") is LookupResult.MISS
    assert stage.look("a", OTHER) is LookupResult.RETRY
    stage.tier.on_schedule_end(STEP)
    assert stage.look("a", OTHER) is LookupResult.HIT


def test_a_medium_that_cannot_be_asked() -> None:
    """A question that fails is asked again, three times in all, each counted with its cause; then it is a
    miss.
    """
    stage = Stage(shared=True)
    stage.store.fail["holds", None] = TimeoutError()
    for _ in range(3):
        assert stage.look("a") is LookupResult.RETRY
        stage.tier.on_schedule_end(STEP)
    assert stage.look("a") is LookupResult.MISS
    assert stage.stat("lookup_failures.TimeoutError") == 3


def test_one_block_that_cannot_be_asked_about_hides_no_other() -> None:
    """Of a batch those that were found are hits; the one nobody knows of is a hit when it can be found."""
    stage = Stage(shared=True)
    names = [str(n) for n in range(200)]
    stage.store.blocks |= {k(name): content(name) for name in names}
    stage.store.unknown.add(k("7"))
    assert {stage.look(name) for name in names} == {LookupResult.RETRY}
    stage.tier.on_schedule_end(STEP)
    looks = [stage.look(name) for name in names]
    assert looks.count(LookupResult.HIT) == 199
    assert looks[7] is LookupResult.RETRY
    assert stage.stat("lookup_failures.unknown") == 1
    stage.store.unknown.clear()
    stage.tier.on_schedule_end(STEP)
    assert stage.look("7") is LookupResult.HIT


def test_a_block_another_process_stored_first_is_taken_over() -> None:
    """A put that finds the block there writes nothing, and the tier announces the block as its own."""
    stage = Stage(shared=True)
    stage.store.blocks[k("a")] = content("a")
    assert stage.store_all("a b").success
    assert stage.said() == "+a +b"
    assert (stage.stat("stores"), stage.stat("stores_found"), stage.stat("bytes_stored")) == (1, 1, 8)


def test_an_answer_from_before_the_store_is_ignored() -> None:
    """A block that was found, then stored, evicted and deleted by the tier itself, is not adopted."""
    stage = Stage(shared=True, max_blocks=1)
    workers = stage.workers
    assert workers is not None
    stage.store.blocks[k("a")] = content("a")
    stage.look("a")
    stage.tier.on_schedule_end(STEP)
    (answer,) = workers.take()
    stage.store_all("a")
    stage.store_all("b")
    stage.tier._book([answer])
    stage.tier.check_integrity()
    assert stage.said() == "+a | -a:evicted | +b"
    assert stage.look("a") is LookupResult.RETRY


def test_foreign_blocks_that_do_not_fit_are_left_alone() -> None:
    """With everything pinned a foreign block is a miss, and stays on the medium."""
    stage = Stage(shared=True, max_blocks=1)
    stage.store.blocks |= {k("a"): content("a"), k("b"): content("b")}
    stage.look("a")
    stage.look("b")
    stage.tier.on_schedule_end(STEP)
    assert [stage.look("a"), stage.look("b")] == [LookupResult.HIT, LookupResult.MISS]
    assert stage.said() == "+a"
    assert stage.stat("adoptions_without_room") == 1
    assert k("b") in stage.store.blocks


def test_adopted_blocks_leave_tail_first() -> None:
    """Of blocks found together, the one asked about last is evicted first, as if they had been touched."""
    stage = Stage(shared=True, max_blocks=2)
    stage.store.blocks |= {k("a"): content("a"), k("b"): content("b")}
    stage.look("a")
    stage.look("b")
    stage.tier.on_schedule_end(STEP)
    stage.finished()
    stage.store_all("c")
    assert stage.said() == "+a +b | -b:evicted | +c"


@pytest.mark.parametrize("seed", range(30))
def test_two_tiers_on_one_medium(seed: int) -> None:
    """Each stores, finds, evicts and deletes under the other's hands: no wrong byte, each story in order."""
    chance, store = random.Random(seed), FaultyStore()
    stages = [Stage(store=store, shared=True, max_blocks=n, seed=seed) for n in (3, 4)]
    held: list[set[OffloadKey]] = [set(), set()]
    for _ in range(300):
        which = chance.randrange(2)
        stage, names = stages[which], chance.sample("abcdefgh", 3)
        match chance.randrange(4):
            case 0:
                stage.store_all(" ".join(names))
            case 1:
                found = [name for name in names if stage.look(name) is LookupResult.HIT]
                result = stage.load_all(" ".join(found))
                for slot, name in enumerate(found):
                    if result.success or k(name) in (result.successful_keys or ()):
                        assert stage.in_slot(slot) == content(name)
            case 2:
                stage.tier.on_schedule_end(STEP)
                stage.tier.drain_jobs()
            case 3:
                stage.tier.on_request_finished(REQUEST)
        for event in stage.tier.take_events():
            assert held[which].isdisjoint(event.keys) != event.removed
            held[which] ^= set(event.keys)
        assert len(held[which]) <= (3, 4)[which]
    assert any(stage.stat("adoptions") for stage in stages)
    assert any(stage.stat("load_failures.missing") for stage in stages)


# Tasks and backpressure


@pytest.mark.parametrize(("task_bytes", "tasks"), [(0, 5), (SLOT_BYTES, 5), (2 * SLOT_BYTES, 3), (1000, 1)])
def test_a_job_is_cut_into_tasks(task_bytes: int, tasks: int) -> None:
    """A task carries at most task_bytes, but one block at least; the event is one whatever the tasks."""
    stage = Stage(task_bytes=task_bytes)
    stage.submit_store("a b c d e")
    assert stage.workers is not None
    assert stage.workers.outstanding == tasks
    stage.finished()
    assert stage.said() == "+a +b +c +d +e"


def test_a_slow_medium_gets_no_more_cascades() -> None:
    """Pressed, the composing manager pins nothing and counts what it dropped; loads go on."""
    stage = Stage(backpressure=Backpressure(high=1.0, low=0.5, warm_up=1))
    manager = TieringOffloadingManager(CPUOffloadingManager(8), [stage.tier])
    manager.on_new_request(REQUEST)
    assert stage.tier.backpressure is not None
    stage.tier.backpressure.stored(1000.0, 8)
    for names in ("a", "b c"):  # the first one goes through: somebody has to find out
        output = manager.prepare_store(keys(names), REQUEST)
        assert output is not None
        manager.complete_store(keys(names), REQUEST)
    stats = manager.get_stats()
    assert (stats["stores_dropped.1:fs.backpressure"], stats["blocks_dropped.1:fs.backpressure"]) == (1, 2)
    assert stats["1:fs.backpressure_pressed"] == 1
    manager.reset_cache()
    assert stage.look("a") is LookupResult.HIT
    assert stage.look("b") is LookupResult.MISS
    assert stage.tier.get_stats()["backpressure_pressed"] == 0


def test_time_on_the_medium_is_what_presses() -> None:
    """Seconds a MiB of what was written or failed; blocks that were there already say nothing."""
    stage = Stage(backpressure=Backpressure(high=1.0, low=0.5, warm_up=1), shared=True)
    stage.store.blocks[k("a")] = content("a")
    stage.store_all("a")
    assert stage.tier.backpressure is not None
    assert stage.tier.backpressure.mean is None
    stage.store_all("b")
    assert stage.tier.backpressure.mean == 0.0


# Threads, and the end


def test_blocks_go_and_come_back_with_real_threads() -> None:
    """Many jobs at once, bounded: every byte right, events and medium agree, the bound is never exceeded."""
    with threaded(max_blocks=40, read_threads=3, write_threads=3, task_bytes=16) as stage:
        held = set[OffloadKey]()
        for n in range(60):
            names = [f"{(n * 7 + i) % 90}" for i in range(8)]
            stage.submit_store(" ".join(names))
            stage.tier.drain_jobs()
            assert all(result.success for result in stage.finished())
            stage.submit_load(" ".join(names))
            stage.tier.drain_jobs()
            assert all(result.success for result in stage.finished())
            assert [stage.in_slot(slot) for slot in range(8)] == list(map(content, names))
        for event in stage.tier.take_events():
            assert held.isdisjoint(event.keys) != event.removed
            held ^= set(event.keys)
        assert held == set(stage.store.blocks)
        assert stage.store.most_bytes <= 40 * SLOT_BYTES


def test_the_bound_holds_with_many_threads() -> None:
    """However jobs overlap, the medium never holds more than max_bytes, and ends as the events say."""
    with threaded(max_bytes=10 * SLOT_BYTES, read_threads=2, write_threads=6, task_bytes=0) as stage:
        held, over = set[OffloadKey](), 0
        for n in range(300):
            stage.submit_store(f"{n % 37} {n * 3 % 41} {n * 5 % 43}")
            over += len(stage.finished())
        stage.tier.drain_jobs()
        assert over + len(stage.finished()) == 300
        for event in stage.tier.take_events():
            held = held - set(event.keys) if event.removed else held | set(event.keys)
            assert len(held) <= 10
        assert held == set(stage.store.blocks)
        assert stage.store.most_bytes <= 10 * SLOT_BYTES


def test_calls_do_not_wait_for_a_medium_that_stalls() -> None:
    """With the medium stalled every call returns; jobs are done when it moves again."""
    with threaded(max_blocks=2, shared=True) as stage:
        stage.store.gate.clear()
        stage.submit_store("a")
        assert stage.look("x") is LookupResult.RETRY
        stage.tier.on_schedule_end(STEP)
        assert stage.finished() == []
        assert stage.tier.has_pending_work()
        stage.store.gate.set()
        stage.tier.drain_jobs()
        assert [result.success for result in stage.finished()] == [True]
        until(lambda: not stage.tier.has_pending_work())


def test_shutdown_drops_what_has_not_begun() -> None:
    """What is being copied is finished, what waits never reports, threads are gone, the store is closed."""
    stage = Stage(threads=True, read_threads=1, write_threads=1, task_bytes=0)
    stage.store.gate.clear()
    stage.submit_store("a b c d e f")
    for _ in range(2):
        assert stage.store.waiting.acquire(timeout=10)
    closing = threading.Thread(target=stage.tier.shutdown)
    closing.start()
    until(lambda: stage.tier._work._workers._is_closed)  # type: ignore[attr-defined]
    stage.store.gate.set()
    closing.join(10)
    assert not closing.is_alive()
    assert sorted(stage.store.blocks) == keys("a b")
    assert stage.store.is_closed
    assert list(stage.tier.get_finished_jobs()) == []
    assert not stage.tier.has_pending_work()
    stage.tier.check_integrity()
    stage.tier.shutdown()
    with pytest.raises(TierContractError):
        stage.tier.submit_store(stage.job("z"))


def test_asking_ends_at_shutdown() -> None:
    """Of a thousand questions to a slow medium those in the call under way are waited for, no others."""
    stage = Stage(threads=True, shared=True, read_threads=1, write_threads=1)
    stage.store.gate.clear()
    for n in range(1000):
        stage.look(str(n))
    stage.tier.on_schedule_end(STEP)
    assert stage.store.waiting.acquire(timeout=10)
    closing = threading.Thread(target=stage.tier.shutdown)
    closing.start()
    until(stage.tier._work._is_over.is_set)
    stage.store.gate.set()
    closing.join(10)
    assert not closing.is_alive()
    assert stage.store.calls["holds"] == 1


def test_draining_waits_for_no_questions() -> None:
    """Questions touch no memory of the primary: jobs are drained while the medium is still being asked."""
    stage = Stage(shared=True, seed=1)
    assert stage.workers is not None
    for n in range(5):
        stage.look(str(n))
        stage.tier.on_schedule_end(STEP)
    stage.tier.drain_jobs()
    assert len(stage.workers.waiting) == 5
    assert stage.tier.has_pending_work()


@pytest.mark.parametrize("slots", [[-1], [SLOTS], [0, 1], [[0]], [1.0]])
def test_a_job_names_slots_that_there_are(slots: Any) -> None:
    """A slot outside the primary's memory, or not one for each key, is refused, and nothing has changed."""
    stage = Stage()
    job = TransferJob(0, keys("a"), np.array(slots), False, REQUEST)
    with pytest.raises(TierValueError):
        stage.tier.submit_store(job)
    with pytest.raises(TierValueError):
        stage.tier.submit_load(job)
    assert not stage.tier.has_pending_work()
    assert stage.stat("stores_under_way") == stage.stat("loads_under_way") == 0


def test_its_place() -> None:
    """Events carry medium, locality and ownership, and promise a removal; sizes that are none are refused."""
    stage = Stage(locality=Locality.REMOTE)
    stage.store_all("a")
    (event,) = stage.tier.take_events()
    assert (event.medium, event.locality, event.ownership) == (Medium.STORAGE, Locality.REMOTE, "fs")
    assert event.removal_expected
    assert stage.tier.locality is Locality.REMOTE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_blocks", -1),
        ("max_blocks", 1.5),
        ("max_blocks", True),
        ("max_bytes", "10GB"),
        ("task_bytes", -1),
        ("task_bytes", 0.5),
        ("read_threads", "8"),
        ("write_threads", 0),
        ("shared", "false"),
        ("enable_events", 1),
    ],
)
def test_arguments_that_cannot_be(name: str, value: object) -> None:
    """A size written as text, or a word that is not true or false, is refused by name."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(TierValueError, match=name):
        StorageTier(None, memoryview(b""), store=FaultyStore(), **options)


def test_numbers_of_a_run() -> None:
    """Bytes and the times of recent jobs can be had."""
    stage = Stage()
    stage.store_all("a b")
    stage.load_all("a")
    stats = stage.tier.get_stats()
    assert (stats["stores"], stats["loads"]) == (2, 1)
    assert (stats["bytes_stored"], stats["bytes_loaded"]) == (16, 8)
    times = stage.tier.transfer_times()
    assert {kind: (time.bytes, list(time.recent)) for kind, time in times.items()} == {
        "load": (8, [0.0]),
        "store": (16, [0.0]),
    }


def test_seconds_of_several_threads_count_once() -> None:
    """Three stores at once are under way no longer than one: from the first one's submission to the last
    result, without the time in between in which there was none.
    """
    stage = Stage(seed=0, task_bytes=0)
    assert stage.workers is not None
    stage.submit_store("a b")
    stage.now = 1.0
    stage.submit_store("c")
    stage.submit_store("d")
    for now in (2.0, 3.0, 4.0, 5.0):
        stage.now = now
        stage.workers.step()
        stage.finished()
    stage.now = 100.0
    stage.submit_store("e")
    stage.now = 101.0
    stage.settle()
    assert (stage.stat("write_seconds"), stage.stat("read_seconds")) == (6.0, 0.0)
    assert stage.stat("bytes_stored") == 5 * SLOT_BYTES
