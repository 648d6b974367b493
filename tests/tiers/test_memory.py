"""The memory tier: its bound, its pins, its time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.faulty_store import FaultyStore
from tests.tiers.seeded_workers import SeededWorkers
from tests.tiers.words import REQUEST, k, keys, say
from tiers import JobResult, LookupResult, MemoryTier, ScheduleEndContext, TierValueError, TransferJob
from tiers.keys import OffloadKey
from tiers.request import ReqContext
from tiers.storage.tier import StorageTier

STEP = ScheduleEndContext((), ())
SOMEBODY_ELSE = ReqContext("somebody else")


def job(number: int, names: str, *, load: bool = False) -> TransferJob:
    found = keys(names)
    return TransferJob(number, found, np.arange(len(found), dtype=np.int64), load, REQUEST)


def finished(tier: MemoryTier) -> list[JobResult]:
    tier.check_integrity()
    return list(tier.get_finished_jobs())


def test_room_is_made_before_it_is_taken() -> None:
    """A full tier removes the least recently used before it stores, and a touch is a use."""
    tier = MemoryTier(max_blocks=3, enable_events=True)
    tier.submit_store(job(0, "a b c"))
    tier.touch(keys("c"), REQUEST)
    tier.submit_store(job(1, "d e"))
    assert say(tier.take_events()) == "+a +b +c | -b:evicted -a:evicted | +d +e"
    assert [result.success for result in finished(tier)] == [True, True]


def test_what_does_not_fit_is_not_announced() -> None:
    """A job larger than the tier fails, and what did land is announced and stays."""
    tier = MemoryTier(max_blocks=2, enable_events=True)
    tier.submit_store(job(0, "a"))
    tier.submit_store(job(1, "b c d"))
    assert say(tier.take_events()) == "+a | -a:evicted | +b +c"
    assert [result.success for result in finished(tier)] == [True, False]
    assert tier.get_stats() == {"stores": 3, "stores_without_room": 1, "evictions": 1, "resident": 2}


def test_what_is_being_read_stays() -> None:
    """A block under a load is not evicted, and is evictable again afterwards."""
    tier = MemoryTier(max_blocks=1, delay_steps=1, enable_events=True)
    tier.submit_store(job(0, "a"))
    tier.on_schedule_end(STEP)
    tier.submit_store(job(1, "b"))
    tier.submit_load(job(2, "a", load=True))
    tier.check_integrity()
    tier.on_schedule_end(STEP)
    assert [(r.job_id, r.success) for r in finished(tier)] == [(0, True), (1, False), (2, True)]
    tier.submit_store(job(3, "b"))
    tier.drain_jobs()
    assert say(tier.take_events()) == "+a | -a:evicted | +b"


def test_a_job_takes_its_steps() -> None:
    """With a delay a block is there after so many steps, not before."""
    tier = MemoryTier(delay_steps=2)
    tier.submit_store(job(0, "a"))
    tier.on_schedule_end(STEP)
    assert (tier.lookup(k("a"), REQUEST), finished(tier)) == (LookupResult.MISS, [])
    assert tier.has_pending_work()
    tier.on_schedule_end(STEP)
    assert tier.lookup(k("a"), REQUEST) is LookupResult.HIT
    assert [result.job_id for result in finished(tier)] == [0]
    assert not tier.has_pending_work()


def test_a_block_that_left_in_between_fails_alone() -> None:
    """A load of a block that was evicted before it was submitted fails for that block."""
    tier = MemoryTier(max_blocks=2)
    tier.submit_store(job(0, "a b"))
    tier.submit_store(job(1, "c"))
    tier.submit_load(job(2, "a b c", load=True))
    assert finished(tier)[-1] == JobResult(2, False, keys("a c"))


def test_negative_sizes() -> None:
    """A tier cannot hold fewer than no blocks, nor be done before it began."""
    with pytest.raises(TierValueError):
        MemoryTier(max_blocks=-1)
    with pytest.raises(TierValueError):
        MemoryTier(delay_steps=-1)


NAMES = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=6, unique=True).map(" ".join)


@given(
    bound=st.integers(0, 6),
    steps=st.lists(st.tuples(st.sampled_from(["store", "store", "load", "touch"]), NAMES), max_size=25),
)
def test_it_keeps_what_a_storage_tier_keeps(bound: int, steps: list[tuple[str, str]]) -> None:
    """Under the same bound the same jobs leave the same blocks in both, which is what a what-if stands on."""
    medium = StorageTier(
        None,
        memoryview(bytearray(8)).cast("B", (8, 1)),
        store=FaultyStore(),
        max_blocks=bound,
        workers=SeededWorkers(),
    )
    tiers = (MemoryTier(max_blocks=bound), medium)
    for number, (what, names) in enumerate(steps):
        for tier in tiers:
            match what:
                case "store":
                    tier.submit_store(job(number, names))
                case "load":
                    tier.submit_load(job(number, names, load=True))
                case "touch":
                    tier.touch(keys(names), REQUEST)
            tier.drain_jobs()
            tier.check_integrity()
        assert kept(tiers[0]) == kept(medium)
    medium.shutdown()


def kept(tier: MemoryTier | StorageTier) -> list[OffloadKey]:
    return [key for key in keys("a b c d e f g h i j") if tier.lookup(key, SOMEBODY_ELSE) is LookupResult.HIT]
