"""The composing manager: who is asked, who is written to, when, and in what order it is told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import ClassVar

import pytest

from tests.tiers.words import k, keys, say
from tiers import (
    CPUOffloadingManager,
    JobResult,
    Locality,
    LookupResult,
    Medium,
    MemoryTier,
    OffloadingEvent,
    OffloadKey,
    OffloadPolicy,
    ParentManager,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    SecondaryTierManager,
    TierContractError,
    TierFilter,
    TieringOffloadingManager,
    TierMatcher,
    TierValueError,
    TransferJob,
    UnknownRequestError,
)

STEP = ScheduleEndContext((), ())
HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY


class ByHand(SecondaryTierManager):
    """A tier that does what the test says: ``knows`` answers lookups, ``finish`` ends jobs."""

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(self, tier_type: str = "hand", *, policy: OffloadPolicy = OffloadPolicy.BLOCK_LEVEL) -> None:
        super().__init__(None, memoryview(b""), tier_type)
        self.policy = policy
        self.knows: dict[OffloadKey, LookupResult] = {}
        self.jobs: list[TransferJob] = []
        self.results: list[JobResult] = []
        self.calls: list[str] = []
        self.refuses: Exception | None = None
        self.serve: list[str] = []
        self.parent: ParentManager | None = None

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:  # noqa: ARG002
        self.calls.append(f"lookup {key[:-4].decode()}")
        return self.knows.get(key, MISS)

    def submit_store(self, job_metadata: TransferJob) -> None:
        if self.refuses:
            raise self.refuses
        self.jobs.append(job_metadata)

    submit_load = submit_store

    def finish(self, success: bool = True, arrived: Collection[OffloadKey] | None = None) -> None:
        for job in self.jobs:
            self.results.append(JobResult(job.job_id, success, arrived))
        self.jobs = []

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self.calls.append("poll")
        results, self.results = self.results, []
        return results

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self.calls.append(f"new {req_context.req_id}")
        return RequestOffloadingContext(self.policy)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.calls.append(f"finished {req_context.req_id}")

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        self.calls.append(f"touch {len(keys)}")

    def serve_external_requests(self, parent: ParentManager) -> None:
        self.parent = parent
        if self.serve:
            ctx = ReqContext("external")
            parent.on_new_request(ctx)
            for name in self.serve:
                if parent.lookup(k(name), ctx) is HIT:
                    self.jobs.append(parent.create_store_job(keys(name), ctx))
            parent.on_request_finished(ctx)
            self.serve = []

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: ARG002
        self.calls.append(f"step, {len(self.jobs)} jobs")

    def drain_jobs(self) -> None:
        self.calls.append("drain")
        self.finish()

    def shutdown(self) -> None:
        self.calls.append("shutdown")


A, B = ReqContext("a"), ReqContext("b")


def tiering(blocks: int, *tiers: SecondaryTierManager) -> TieringOffloadingManager:
    manager = TieringOffloadingManager(CPUOffloadingManager(blocks, enable_events=True), list(tiers))
    manager.on_new_request(A)
    manager.on_new_request(B)
    return manager


def store(manager: TieringOffloadingManager, names: str, ctx: ReqContext = A) -> None:
    output = manager.prepare_store(keys(names), ctx)
    assert output is not None
    manager.complete_store(output.keys_to_store, ctx)
    manager.check_integrity()


def step(manager: TieringOffloadingManager) -> None:
    manager.on_schedule_end(STEP)
    manager.check_integrity()


def named(job: TransferJob) -> tuple[int, str, list[int], bool]:
    return (
        job.job_id,
        b" ".join(key[:-4] for key in job.keys).decode(),
        job.block_ids.tolist(),
        job.is_promotion,
    )


def test_a_store_goes_to_every_tier() -> None:
    """When a store completes, each tier gets a job of its own with the same blocks, and both pin them."""
    one, two = ByHand(), ByHand()
    manager = tiering(2, one, two)
    store(manager, "x y")
    assert [named(job) for job in one.jobs + two.jobs] == [
        (0, "x y", [0, 1], False),
        (1, "x y", [0, 1], False),
    ]
    assert manager.prepare_store(keys("z"), A) is None
    one.finish()
    step(manager)
    assert manager.prepare_store(keys("z"), A) is None
    two.finish(success=False)
    step(manager)
    step(manager)
    assert manager.prepare_store(keys("z"), A) is not None
    assert manager.get_stats()["cascade_failures.2:hand.failed"] == 1


def test_a_failed_store_goes_nowhere() -> None:
    """A store whose bytes did not arrive is not passed on."""
    tier = ByHand()
    manager = tiering(2, tier)
    manager.prepare_store(keys("x"), A)
    manager.complete_store(keys("x"), A, False)
    assert tier.jobs == []


def test_promotions_are_staged_by_tier_and_request() -> None:
    """Blocks found below are submitted at the end of the step: one job for each tier and request."""
    one, two = ByHand("one"), ByHand("two")
    manager = tiering(8, one, two)
    one.knows = dict.fromkeys(keys("p q r"), HIT)
    two.knows = dict.fromkeys(keys("s"), HIT)
    assert [manager.lookup(key, A) for key in keys("q p s")] == [PENDING] * 3
    assert [manager.lookup(key, B) for key in keys("r q")] == [PENDING] * 2  # q came with a already
    assert one.jobs == two.jobs == []
    assert manager.has_pending_work()
    step(manager)
    assert [named(job) for job in one.jobs] == [(0, "q p", [0, 1], True), (1, "r", [3], True)]
    assert [named(job) for job in two.jobs] == [(2, "s", [2], True)]
    assert one.calls[-1] == "step, 2 jobs"
    one.finish()
    two.finish()
    assert manager.lookup(k("q"), A) is HIT
    assert say(manager.take_events()) == "+q +p | +r | +s"
    manager.check_integrity()


def test_a_full_primary_makes_a_miss() -> None:
    """A block below that has no room above is a MISS, counted, so that nobody waits for it."""
    tier = ByHand()
    manager = tiering(1, tier)
    manager.prepare_store(keys("x"), A)
    tier.knows = {k("y"): HIT}
    assert manager.lookup(k("y"), A) is MISS
    assert manager.get_stats()["promotion_allocation_failures"] == 1


def test_promotion_may_evict() -> None:
    """A promotion makes room like a store: the victim's removal comes inside lookup."""
    tier = ByHand()
    manager = tiering(1, tier)
    store(manager, "x")
    tier.finish()
    step(manager)
    tier.knows = {k("y"): HIT}
    assert manager.lookup(k("y"), A) is PENDING
    assert say(manager.take_events()) == "+x | -x:evicted"


def test_partial_promotions() -> None:
    """Of a promotion that failed in part, what arrived is announced and the rest is as if never asked."""
    tier = ByHand()
    manager = tiering(3, tier)
    tier.knows = dict.fromkeys(keys("p q r"), HIT)
    for key in keys("p q r"):
        manager.lookup(key, A)
    step(manager)
    tier.knows = {}
    tier.finish(False, keys("r p"))
    assert [manager.lookup(key, A) for key in keys("p q r")] == [HIT, MISS, HIT]
    assert say(manager.take_events()) == "+p +r"
    stats = manager.get_stats()
    assert (stats["promotion_failures.1:hand.partial"], stats["promoted_blocks.1:hand"]) == (1, 2)


def test_who_is_asked() -> None:
    """Tiers are asked in order until one has it; one that does not know yet does not stop the search."""
    one, two = ByHand(), ByHand()
    manager = tiering(4, one, two)
    one.knows = dict.fromkeys(keys("p q"), RETRY)
    two.knows = {k("p"): HIT}
    assert [manager.lookup(key, A) for key in keys("p q r")] == [PENDING, RETRY, MISS]
    store(manager, "x")
    asked = len(one.calls)
    assert manager.lookup(k("x"), A) is HIT
    assert len(one.calls) == asked  # the primary has it
    stats = manager.get_stats()
    assert (stats["block_queries.1:hand"], stats["block_queries.2:hand"], stats["block_hits.2:hand"]) == (
        3,
        3,
        1,
    )


def test_filters_deny_tiers() -> None:
    """A request is served only from tiers that its filter allows."""
    near, far = ByHand(), ByHand()
    near.locality, far.locality = Locality.LOCAL, Locality.REMOTE
    manager = tiering(4, near, far)
    far.knows = {k("p"): HIT}
    local = ReqContext("l", load_tier_filter=TierFilter((TierMatcher(None, Locality.LOCAL),)))
    nobody = ReqContext("n", load_tier_filter=TierFilter(()))
    assert [manager.lookup(k("p"), ctx) for ctx in (local, nobody)] == [MISS, MISS]
    assert "lookup p" in near.calls
    assert "lookup p" not in far.calls
    assert manager.lookup(k("p"), A) is PENDING


def test_tiers_are_polled_once_a_step() -> None:
    """However many calls a step has, tiers are asked once what is finished."""
    tier = ByHand()
    manager = tiering(4, tier)
    for _ in range(3):
        manager.lookup(k("p"), A)
    store(manager, "x")
    step(manager)
    assert tier.calls.count("poll") == 1
    step(manager)
    assert tier.calls.count("poll") == 2


def test_a_store_after_the_step_shuts_the_gate() -> None:
    """As in vLLM, a store prepared after the step's end polls for the next step, whose lookups do not."""
    tier = ByHand()
    manager = tiering(4, tier)
    step(manager)
    store(manager, "x")
    tier.finish()
    manager.lookup(k("p"), A)
    assert manager.get_stats()["active_cascade_jobs"] == 1
    step(manager)
    assert manager.get_stats()["active_cascade_jobs"] == 1
    step(manager)
    assert manager.get_stats()["active_cascade_jobs"] == 0


def test_whole_requests_for_those_who_want_them() -> None:
    """A tier that wants whole requests gets at once what the primary has; the others do not."""
    whole, new = ByHand(policy=OffloadPolicy.REQUEST_LEVEL), ByHand()
    manager = tiering(8, whole, new)
    assert manager.on_new_request(A).policy is OffloadPolicy.REQUEST_LEVEL
    store(manager, "x")
    whole.finish()
    new.finish()
    manager.prepare_store(keys("x y"), A)
    assert [named(job)[1] for job in whole.jobs] == ["x"]
    assert new.jobs == []
    manager.complete_store(keys("y"), A)
    assert [named(job)[1] for job in whole.jobs + new.jobs] == ["x", "y", "y"]


def test_tiers_hear_of_the_end_after_the_last_store() -> None:
    """Secondary tiers hear that a request is over when none of its stores can cascade any more."""
    tier = ByHand()
    manager = tiering(4, tier)
    manager.prepare_store(keys("x"), A)
    manager.prepare_store(keys("y"), A)
    manager.on_request_finished(A)
    manager.complete_store(keys("x"), A)
    assert "finished a" not in tier.calls
    manager.complete_store(keys("y"), A, False)
    assert tier.calls[-1] == "finished a"
    with pytest.raises(KeyError, match="on_new_request"):
        manager.prepare_store(keys("z"), A)
    manager.on_request_finished(B)
    assert tier.calls[-1] == "finished b"


def test_completing_what_was_not_begun() -> None:
    """A completion without a store, or of a request nobody announced, is refused."""
    manager = tiering(4, ByHand())
    with pytest.raises(AssertionError, match="no store to complete"):
        manager.complete_store(keys("x"), A)
    with pytest.raises(UnknownRequestError):
        manager.complete_store(keys("x"), ReqContext("unknown"))


def test_nobodys_superset_completes_a_promotion() -> None:
    """A block on its way up becomes readable when its tier says so, not when a store names it too."""
    tier = ByHand()
    manager = tiering(4, tier)
    tier.knows = {k("p"): HIT}
    manager.lookup(k("p"), B)
    manager.prepare_store(keys("x p"), A)
    manager.complete_store(keys("x p"), A)
    assert manager.lookup(k("p"), A) is PENDING
    assert [named(job)[1] for job in tier.jobs] == ["x"]


def test_a_refused_job_has_failed() -> None:
    """A tier that cannot take a job has failed it: unpinned, counted with the cause, the others served."""
    bad, good = ByHand(), ByHand()
    manager = tiering(1, bad, good)
    bad.refuses = OSError("disk full")
    store(manager, "x")
    good.finish()
    step(manager)
    bad.knows = {k("y"): HIT}
    assert manager.lookup(k("y"), A) is PENDING
    step(manager)
    bad.knows = {}
    assert manager.lookup(k("y"), A) is MISS
    stats = manager.get_stats()
    assert stats["cascade_failures.1:hand.OSError"] == stats["promotion_failures.1:hand.OSError"] == 1
    assert stats["active_promotion_jobs"] == stats["active_cascade_jobs"] == 0


def test_an_unforeseen_error_goes_up_and_leaves_no_pin() -> None:
    """An error that is no refusal reaches the caller, and the blocks are not pinned for ever."""
    tier = ByHand()
    manager = tiering(1, tier)
    tier.refuses = TypeError("a bug")
    with pytest.raises(TypeError):
        store(manager, "x")
    manager.check_integrity()
    assert manager.get_stats()["0:primary.being_read"] == 0


@pytest.mark.parametrize("wrong", ["unknown", "twice", "of another tier"])
def test_results_must_be_of_own_jobs(wrong: str) -> None:
    """A tier that reports a job it does not have is refused."""
    one, two = ByHand(), ByHand()
    manager = tiering(4, one, two)
    store(manager, "x")
    job_id = {"unknown": 9, "twice": 0, "of another tier": 1}[wrong]
    one.results = [JobResult(0, True), JobResult(job_id, True)]
    step(manager)  # the gate is shut: this step has been polled
    with pytest.raises(TierContractError, match=f"job {job_id}"):
        step(manager)


def test_results_name_keys_of_the_job() -> None:
    """A promotion reported with keys that it never had is refused."""
    tier = ByHand()
    manager = tiering(4, tier)
    tier.knows = {k("p"): HIT}
    manager.lookup(k("p"), A)
    step(manager)
    tier.finish(False, keys("p z"))
    with pytest.raises(TierContractError, match="1 keys that are not in it"):
        manager.lookup(k("p"), A)


def test_parents_leave_the_asking_tier_out() -> None:
    """A tier that serves others sees the primary and its siblings, not itself, and reports what it took."""
    asking, sibling = ByHand(), ByHand()
    manager = tiering(4, asking, sibling)
    store(manager, "x")
    asking.finish()
    sibling.finish()
    step(manager)
    asking.calls, sibling.calls = [], []
    asking.serve = ["x", "q"]
    step(manager)
    assert "lookup q" in sibling.calls
    assert {"new external", "finished external"} <= set(sibling.calls)
    assert not any("external" in call or "lookup" in call for call in asking.calls)
    assert [named(job)[1:] for job in asking.jobs] == [("x", [0], False)]
    assert manager.get_stats()["0:primary.being_read"] == 1
    asking.finish()
    step(manager)
    assert manager.get_stats()["0:primary.being_read"] == 0


def test_parents_are_for_one_call() -> None:
    """A parent kept beyond the call it was given to is refused."""
    tier = ByHand()
    manager = tiering(4, tier)
    step(manager)
    assert tier.parent is not None
    with pytest.raises(TierContractError, match="after the call"):
        tier.parent.lookup(k("x"), A)


def test_reset_never_announces_what_it_drops() -> None:
    """A promotion that ends during a reset is not announced; what was readable is; tiers keep theirs."""
    tier = MemoryTier(enable_events=True, delay_steps=1)
    manager = tiering(3, tier)
    store(manager, "x")
    step(manager)
    for name in ("y", "z", "w"):
        store(manager, name)
        step(manager)
        step(manager)
    assert say(manager.take_events()) == "+x | +y | +z | -x:evicted | +w | +x | +y | +z | +w"
    manager.prepare_store(keys("v"), B)  # evicts y
    assert manager.lookup(k("x"), A) is PENDING  # evicts z
    step(manager)  # now it is there, and nobody has asked yet
    manager.reset_cache()
    manager.check_integrity()
    assert say(manager.take_events()) == "-y:evicted | -z:evicted | -w:reset"
    assert tier.lookup(k("x"), A) is HIT
    assert not manager.has_pending_work()
    store(manager, "u")


def test_reset_drops_what_was_only_staged() -> None:
    """A promotion not yet submitted is forgotten, a finished request is ended, a live one goes on."""
    tier = ByHand()
    manager = tiering(4, tier)
    tier.knows = {k("p"): HIT}
    manager.lookup(k("p"), A)
    manager.prepare_store(keys("x"), A)
    manager.prepare_store(keys("y"), B)
    manager.on_request_finished(A)
    manager.reset_cache()
    assert tier.calls[-1] == "finished a"
    step(manager)
    assert tier.jobs == []
    store(manager, "y", B)


def test_a_tier_that_does_not_drain_is_named() -> None:
    """A tier that owes a result after draining stops the reset before the primary forgets anything."""

    class Owing(ByHand):
        def drain_jobs(self) -> None: ...

    manager = tiering(4, ByHand(), Owing("slow"))
    store(manager, "x")
    with pytest.raises(TierContractError, match="of 2:slow"):
        manager.reset_cache()
    assert manager.lookup(k("x"), A) is HIT


def test_drain_accounts_for_everything() -> None:
    """After drain_jobs no job is under way, and what arrived can be read."""
    tier = ByHand()
    manager = tiering(4, tier)
    store(manager, "x")
    tier.knows = {k("p"): HIT}
    manager.lookup(k("p"), A)
    step(manager)
    manager.drain_jobs()
    assert not manager.has_pending_work()
    assert manager.lookup(k("p"), A) is HIT


def test_events_primary_first_then_in_order() -> None:
    """A drain gives the primary's events, then each tier's; emit_seq is the order of their making."""
    one, two = (
        MemoryTier(tier_type="one", enable_events=True),
        MemoryTier(tier_type="two", enable_events=True),
    )
    manager = tiering(1, one, two)
    store(manager, "x")
    step(manager)
    store(manager, "y")
    events = list(manager.take_events())
    assert [(e.ownership, e.emit_seq) for e in events] == [
        (None, 0),
        (None, 3),
        (None, 4),
        ("one", 1),
        ("one", 5),
        ("two", 2),
        ("two", 6),
    ]
    assert [e.removal_expected for e in events if e.ownership] == [True] * 4
    assert list(manager.take_events()) == []


def test_no_event_is_lost_when_a_tier_raises() -> None:
    """What was taken before a tier raised comes with the next drain, once."""

    class Raising(ByHand):
        fails = True

        def take_events(self) -> Iterator[OffloadingEvent]:
            yield OffloadingEvent(keys("s"), Medium.STORAGE, False)
            if self.fails:
                self.fails = False
                raise OSError("later")

    manager = tiering(4, Raising())
    store(manager, "x")
    with pytest.raises(OSError, match="later"):
        manager.take_events()
    store(manager, "y")
    assert say(manager.take_events()) == "+x | +y | +s | +s"


def test_touch_reaches_every_tier() -> None:
    """A use counts in the primary and in each tier behind it."""
    tier = ByHand()
    manager = tiering(2, tier)
    store(manager, "x y")
    tier.finish()
    step(manager)
    manager.touch(keys("y x"), A)
    assert tier.calls[-1] == "touch 2"
    store(manager, "z")
    assert "-x:evicted" in say(manager.take_events())


def test_secondaries_shut_down_first() -> None:
    """Secondary tiers are shut down in order, then the primary, even if one of them raises."""
    order: list[str] = []

    class Last(CPUOffloadingManager):
        def shutdown(self) -> None:
            order.append("primary")

    class Noting(ByHand):
        def shutdown(self) -> None:
            order.append(self.tier_type)
            if self.tier_type == "one":
                raise OSError("stuck")

    manager = TieringOffloadingManager(Last(1), [Noting("one"), Noting("two")])
    with pytest.raises(OSError, match="stuck"):
        manager.shutdown()
    assert order == ["one", "two", "primary"]


def test_no_threshold_under_tiers() -> None:
    """A primary that refuses blocks not asked for often enough cannot take promotions."""
    with pytest.raises(TierValueError, match="store_threshold 2"):
        TieringOffloadingManager(CPUOffloadingManager(4, store_threshold=2))
