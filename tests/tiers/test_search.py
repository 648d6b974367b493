"""Finding a prefix in the tiers: what is pinned, what is not any more, and who supplied it."""

from __future__ import annotations

from tests.tiers.words import k, keys, slots_of, store
from tiers import (
    CPUOffloadingManager,
    LookupResult,
    MemoryTier,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    TieringOffloadingManager,
    TransferJob,
)
from tiers.serving.search import Found, PrefixSearch

REQUEST = ReqContext("r")


def manager(
    cpu: int, behind: str, in_cpu: str = "", tier: MemoryTier | None = None
) -> TieringOffloadingManager:
    """``behind``: blocks that only the memory tier has; ``in_cpu``: blocks that only the CPU has."""
    primary = CPUOffloadingManager(cpu)
    composed = TieringOffloadingManager(primary, [tier or MemoryTier()])
    composed.on_new_request(REQUEST)
    for name in behind.split():
        composed.prepare_store([k(name)], REQUEST)
        composed.complete_store([k(name)], REQUEST)
        while composed.has_pending_work():
            composed.on_schedule_end(ScheduleEndContext())
    primary.reset_cache()
    if in_cpu:
        store(primary, in_cpu)
    return composed


def found(composed: TieringOffloadingManager, names: str) -> tuple[Found, int]:
    """What a search finds, and how many steps it took."""
    search, steps = PrefixSearch(composed, keys(names), req_context=REQUEST), 1
    while not search.look():
        composed.on_schedule_end(ScheduleEndContext())
        steps += 1
        assert steps < 50
    return search.take(), steps


def pinned(composed: TieringOffloadingManager) -> float:
    return composed.primary_tier.get_stats()["being_read"]


def test_a_run_of_both_tiers() -> None:
    """Blocks of the CPU and of the tier behind it, in the order of the prompt, each with its supplier."""
    composed = manager(4, behind="b d", in_cpu="a c")
    run, steps = found(composed, "a b c d")
    assert run.keys == keys("a b c d")
    assert run.suppliers == [1, 2, 1, 2]
    assert len(set(slots_of(run.cpu))) == 4
    assert (steps, pinned(composed)) == (2, 4)
    composed.complete_load(run.keys, REQUEST)
    assert pinned(composed) == 0


def test_it_ends_before_the_first_miss() -> None:
    """What is behind a missing block is of no use, and nothing of it stays pinned."""
    composed = manager(4, behind="b", in_cpu="a d")
    run, _ = found(composed, "a b c d")
    assert run.keys == keys("a b")
    assert pinned(composed) == 2


class Losing(MemoryTier):
    """A tier whose disk dies when it is read."""

    dead = False

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.MISS if self.dead else super().lookup(key, req_context)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self.dead = True
        raise OSError(f"job {job_metadata.job_id}: the disk is gone")


def test_a_promotion_that_fails_ends_it_there() -> None:
    """A block that did not come up is a miss: pins behind it, taken while it was on its way, are given up."""
    composed = manager(4, behind="b", in_cpu="a c", tier=Losing())
    run, steps = found(composed, "a b c")
    assert (run.keys, run.suppliers, steps) == (keys("a"), [1], 2)
    assert pinned(composed) == 1


def test_a_full_cpu_tier_cuts_it() -> None:
    """Pins are never given up for what comes later: the prefix is as long as the CPU has room."""
    composed = manager(2, behind="b c d", in_cpu="a")
    run, _ = found(composed, "a b c d")
    assert run.keys == keys("a b")
    assert run.suppliers == [1, 2]


def test_nothing_to_look_for() -> None:
    """No blocks, no steps."""
    run, steps = found(manager(2, behind="a"), "")
    assert (run.keys, run.suppliers, steps) == ([], [], 1)
