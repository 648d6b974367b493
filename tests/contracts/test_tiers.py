"""The contract of every manager and of every secondary tier, whatever is behind it.

A manager added to ``MANAGERS`` or a tier added to ``TIERS`` must pass everything here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.faulty_store import FaultyStore
from tests.tiers.seeded_workers import SeededWorkers
from tests.tiers.words import REQUEST, k, keys, slots_of
from tiers import (
    CPUOffloadingManager,
    CPUPrimaryTierOffloadingManager,
    JobResult,
    LookupResult,
    MemoryTier,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    ScheduleEndContext,
    SecondaryTierManager,
    TierContractError,
    TieringOffloadingManager,
    TransferJob,
)
from tiers.filesystem.tier import FilesystemTier
from tiers.storage.tier import StorageTier

STEP = ScheduleEndContext((), ())
BLOCKS = 4
SLOT_BYTES = 8


class Checked(Protocol):
    """Ours, all of them: they can be looked into after each step."""

    def check_integrity(self) -> None: ...


def tiering(policy: str, *tiers: SecondaryTierManager) -> TieringOffloadingManager:
    return TieringOffloadingManager(CPUOffloadingManager(BLOCKS, policy, True), tiers)


NO_MEMORY = memoryview(b"")


def storage(view: memoryview = NO_MEMORY, *, max_blocks: int | None = None) -> StorageTier:
    """Over a medium in memory, without threads."""
    return StorageTier(
        None,
        view,
        store=FaultyStore(),
        max_blocks=max_blocks,
        enable_events=True,
        workers=SeededWorkers(),
    )


class PatientTier(StorageTier):
    """With threads, and a step that waits for them: what takes time may take it."""

    def __init__(self, view: memoryview) -> None:
        super().__init__(None, view, store=FaultyStore(), enable_events=True, read_threads=2, write_threads=2)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        super().on_schedule_end(context)
        self.drain_jobs()


class PatientFilesystemTier(FilesystemTier):
    """In a folder that goes with it, and with a step that waits."""

    def __init__(self, view: memoryview) -> None:
        self._folder = TemporaryDirectory()
        super().__init__(None, view, path=self._folder.name, enable_events=True)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        super().on_schedule_end(context)
        self.drain_jobs()

    def shutdown(self) -> None:
        super().shutdown()
        self._folder.cleanup()


MANAGERS: dict[str, Callable[[], OffloadingManager]] = {
    "cpu, lru": lambda: CPUOffloadingManager(BLOCKS, "lru", True),
    "cpu, arc": lambda: CPUOffloadingManager(BLOCKS, "arc", True),
    "primary": lambda: CPUPrimaryTierOffloadingManager(BLOCKS, None, "lru", True),
    "tiering, nothing behind": lambda: tiering("lru"),
    "tiering, memory": lambda: tiering("arc", MemoryTier(enable_events=True)),
    "tiering, slow and small": lambda: tiering(
        "lru", MemoryTier(max_blocks=2, delay_steps=2, enable_events=True), MemoryTier(delay_steps=1)
    ),
    "tiering, storage": lambda: tiering("lru", storage()),
    "tiering, small storage and memory": lambda: tiering(
        "arc", storage(max_blocks=3), MemoryTier(enable_events=True)
    ),
}
TIERS: dict[str, Callable[[memoryview], SecondaryTierManager]] = {
    "memory": lambda view: MemoryTier(None, view, enable_events=True),
    "memory, later": lambda view: MemoryTier(None, view, delay_steps=1, enable_events=True),
    "memory, bounded": lambda view: MemoryTier(None, view, max_blocks=4, enable_events=True),
    "storage": storage,
    "storage, bounded": lambda view: storage(view, max_blocks=4),
    "storage, threads": PatientTier,
    "fs": PatientFilesystemTier,
}


@pytest.fixture(params=MANAGERS)
def manager(request: pytest.FixtureRequest) -> OffloadingManager:
    made = MANAGERS[request.param]()
    made.on_new_request(REQUEST)
    return made


def check(manager: object) -> None:
    """After each step."""
    getattr(manager, "check_integrity")()  # noqa: B009 - not of the protocol, but each of ours has it


def settle(manager: OffloadingManager) -> None:
    """Steps until nothing is under way."""
    for _ in range(20):
        manager.on_schedule_end(STEP)
        manager.lookup(k("nobody"), REQUEST)
        check(manager)
        if not manager.has_pending_work():
            return
    pytest.fail("work is pending for ever")


def stored(manager: OffloadingManager, names: str) -> list[OffloadKey]:
    output = manager.prepare_store(keys(names), REQUEST)
    assert output is not None
    manager.complete_store(output.keys_to_store, REQUEST)
    check(manager)
    settle(manager)
    return output.evicted_keys


def fold(events: Iterable[OffloadingEvent]) -> dict[tuple[str, str | None], Counter[OffloadKey]]:
    """Who holds what, by the events alone. Fails if a key is stored or removed out of turn."""
    held: dict[tuple[str, str | None], Counter[OffloadKey]] = {}
    for event in events:
        residents = held.setdefault((event.medium, event.ownership), Counter())
        for key in event.keys:
            residents[key] += -1 if event.removed else 1
            assert residents[key] in (0, 1), f"{key!r} stored twice or removed unstored"
        if event.ownership is None:
            assert residents.total() <= BLOCKS
    return held


def test_a_block_goes_through_its_states(manager: OffloadingManager) -> None:
    """MISS, HIT_PENDING between prepare and complete, HIT, and then it can be loaded from its slot."""
    assert manager.lookup(k("a"), REQUEST) is LookupResult.MISS
    output = manager.prepare_store(keys("a b"), REQUEST)
    assert output is not None
    assert manager.lookup(k("a"), REQUEST) is LookupResult.HIT_PENDING
    manager.complete_store(keys("a b"), REQUEST)
    assert manager.lookup(k("a"), REQUEST) is LookupResult.HIT
    assert slots_of(manager.prepare_load(keys("b a"), REQUEST)) == slots_of(output.store_spec)[::-1]
    manager.complete_load(keys("b a"), REQUEST)
    check(manager)


def test_keys_and_slots_belong_together(manager: OffloadingManager) -> None:
    """keys_to_store keeps the order given, without what is here, and has a slot for each."""
    stored(manager, "a")
    output = manager.prepare_store(keys("c a b c"), REQUEST)
    assert output is not None
    assert output.keys_to_store == keys("c b")
    assert len(set(slots_of(output.store_spec))) == 2
    check(manager)


def test_a_victim_leaves_before_its_slot_is_taken(manager: OffloadingManager) -> None:
    """What is evicted is said before what takes its place, in the order of eviction, by the primary."""
    stored(manager, "a b c d")
    list(manager.take_events())
    evicted = stored(manager, "e f")
    assert len(evicted) == 2
    own = [event for event in manager.take_events() if event.ownership is None]
    assert [(event.removed, event.keys) for event in own] == [(True, evicted), (False, keys("e f"))]
    assert own[0].reason == "evicted"


def test_a_reader_protects(manager: OffloadingManager) -> None:
    """What is being loaded is never evicted: no room means None, and nothing has changed."""
    stored(manager, "a b c d")
    list(manager.take_events())
    manager.prepare_load(keys("a b c d"), REQUEST)
    assert manager.prepare_store(keys("e"), REQUEST) is None
    check(manager)
    assert list(manager.take_events()) == []
    manager.complete_load(keys("a b c d"), REQUEST)
    assert manager.prepare_store(keys("e"), REQUEST) is not None


def test_loading_the_unreadable_is_refused(manager: OffloadingManager) -> None:
    """prepare_load of a block that is no HIT, and complete_load of one nobody reads, are refused."""
    stored(manager, "a")
    with pytest.raises(TierContractError):
        manager.prepare_load(keys("a x"), REQUEST)
    with pytest.raises(TierContractError):
        manager.complete_load(keys("a"), REQUEST)
    check(manager)


def test_failed_stores_are_not_announced(manager: OffloadingManager) -> None:
    """A failed store frees its slot, goes to no tier, and makes no event."""
    manager.prepare_store(keys("a"), REQUEST)
    manager.complete_store(keys("a"), REQUEST, False)
    check(manager)
    settle(manager)
    assert manager.lookup(k("a"), REQUEST) is LookupResult.MISS
    assert list(manager.take_events()) == []


def test_every_event_once(manager: OffloadingManager) -> None:
    """Events are handed out once even if nobody goes through them, and numbered without a gap or a double."""
    stored(manager, "a")
    first = iter(manager.take_events())
    next(first)
    stored(manager, "b")
    numbers = sorted(event.emit_seq or 0 for event in manager.take_events())
    assert all(event.keys == keys("a") for event in first)
    assert len(numbers) == len(set(numbers)) > 0
    assert list(manager.take_events()) == []


def test_reset_forgets_and_says_so(manager: OffloadingManager) -> None:
    """After a reset the primary holds nothing, the events say so in order, and it works on."""
    stored(manager, "a b")
    manager.prepare_store(keys("c"), REQUEST)
    manager.reset_cache()
    check(manager)
    events = list(manager.take_events())
    assert fold(events)["CPU", None].total() == 0
    assert [e.keys for e in events if e.reason == "reset"] == [keys("a b")]
    stored(manager, "d")
    assert manager.lookup(k("d"), REQUEST) is LookupResult.HIT


def test_finishing_is_no_end_of_completions(manager: OffloadingManager) -> None:
    """A store that completes after its request finished still counts."""
    manager.prepare_store(keys("a"), REQUEST)
    manager.on_request_finished(REQUEST)
    manager.complete_store(keys("a"), REQUEST)
    check(manager)
    assert manager.lookup(k("a"), REQUEST) is LookupResult.HIT


def test_shutdown_twice(manager: OffloadingManager) -> None:
    """Shutting down is safe to do again."""
    stored(manager, "a")
    manager.shutdown()
    manager.shutdown()


NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4).map(" ".join)


@pytest.mark.parametrize("make", MANAGERS.values(), ids=list(MANAGERS))
@given(st.lists(st.tuples(st.sampled_from(["store", "fail", "load", "touch", "reset", "step"]), NAMES)))
def test_events_tell_what_is_here(
    make: Callable[[], OffloadingManager], steps: list[tuple[str, str]]
) -> None:
    """Folding the events gives exactly what can be looked up, and never more than fits."""
    manager, events = make(), list[OffloadingEvent]()
    manager.on_new_request(REQUEST)
    for step, names in steps:
        play(manager, step, names)
        check(manager)
        events += manager.take_events()
        fold(events)
    settle(manager)
    events += manager.take_events()
    resident = +fold(events).get(("CPU", None), Counter())
    assert {key for key in keys("a b c d e f g h") if in_primary(manager, key)} == set(resident)


def in_primary(manager: OffloadingManager, key: OffloadKey) -> bool:
    tier = manager.primary_tier if isinstance(manager, TieringOffloadingManager) else manager
    return tier.lookup(key, REQUEST) is LookupResult.HIT


def play(manager: OffloadingManager, step: str, names: str) -> None:
    match step:
        case "store" | "fail":
            output = manager.prepare_store(keys(names), REQUEST)
            if output is not None and output.keys_to_store:
                manager.complete_store(output.keys_to_store, REQUEST, step == "store")
        case "load":
            hits = [key for key in keys(names) if manager.lookup(key, REQUEST) is LookupResult.HIT]
            # A lookup may have begun a promotion, and that may have evicted an earlier hit.
            hits = [key for key in hits if in_primary(manager, key)]
            manager.prepare_load(hits, REQUEST)
            check(manager)
            manager.complete_load(hits, REQUEST)
        case "touch":
            manager.touch(keys(names), REQUEST)
        case "reset":
            manager.reset_cache()
        case "step":
            manager.on_schedule_end(STEP)


# Secondary tiers


class Behind:
    """A tier with a primary's memory of eight slots, and jobs by hand."""

    def __init__(self, make: Callable[[memoryview], SecondaryTierManager]) -> None:
        self.memory = bytearray(8 * SLOT_BYTES)
        self.tier = make(memoryview(self.memory).cast("B", (8, SLOT_BYTES)))
        self.tier.on_new_request(REQUEST)
        self.next_job = 0

    def fill(self, slot: int, content: bytes) -> None:
        self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = content.ljust(SLOT_BYTES, b".")

    def at(self, slot: int) -> bytes:
        return bytes(self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]).rstrip(b".")

    def run(self, names: str, slots: list[int], *, load: bool = False) -> JobResult:
        job = TransferJob(self.next_job, keys(names), np.array(slots, dtype=np.int64), load, REQUEST)
        self.next_job += 1
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        results: list[JobResult] = []
        for _ in range(100):
            results += self.tier.get_finished_jobs()
            check(self.tier)
            if results:
                break
            self.tier.on_schedule_end(STEP)
        (result,) = results
        assert result.job_id == job.job_id
        return result

    def store(self, names: str) -> JobResult:
        for slot, name in enumerate(names.split()):
            self.fill(slot, name.encode())
        return self.run(names, list(range(len(names.split()))))


@pytest.fixture(params=TIERS)
def behind(request: pytest.FixtureRequest) -> Iterator[Behind]:
    made = Behind(TIERS[request.param])
    yield made
    made.tier.shutdown()


def test_bytes_come_back(behind: Behind) -> None:
    """What was stored is loaded, byte for byte, into whatever slots the load names, and no others."""
    assert behind.store("a b c").success
    behind.memory[:] = bytes(len(behind.memory))
    assert behind.run("c a", [5, 2], load=True).success
    assert [behind.at(slot) for slot in (5, 2)] == [b"c", b"a"]
    assert sum(map(bool, behind.memory)) == 2 * SLOT_BYTES


def test_a_store_is_announced_when_it_is_there(behind: Behind) -> None:
    """A block can be looked up and is announced once it was stored, in the order submitted, with an owner."""
    assert behind.tier.lookup(k("a"), REQUEST) is LookupResult.MISS
    behind.store("b a")
    assert behind.tier.lookup(k("a"), REQUEST) is LookupResult.HIT
    (event,) = behind.tier.take_events()
    assert (event.removed, event.keys, event.medium) == (False, keys("b a"), behind.tier.medium)
    assert event.ownership == behind.tier.tier_type
    assert list(behind.tier.take_events()) == []


def test_a_store_of_what_is_there_is_silent(behind: Behind) -> None:
    """Storing again changes nothing and says nothing; only what is new is announced."""
    behind.store("a b")
    list(behind.tier.take_events())
    assert behind.store("a b").success
    assert list(behind.tier.take_events()) == []
    behind.store("b c")
    assert [event.keys for event in behind.tier.take_events()] == [keys("c")]


def test_loads_are_silent(behind: Behind) -> None:
    """A load is no change of what is stored."""
    behind.store("a")
    list(behind.tier.take_events())
    behind.run("a", [3], load=True)
    assert list(behind.tier.take_events()) == []


def test_a_load_of_what_is_not_there_fails_for_it_alone(behind: Behind) -> None:
    """A load reports the keys it could copy, and fails for the others."""
    behind.store("a b")
    result = behind.run("a x b", [4, 5, 6], load=True)
    assert not result.success
    assert sorted(result.successful_keys or ()) == sorted(keys("a b"))
    assert (behind.at(4), behind.at(6)) == (b"a", b"b")


def test_drained_jobs_still_report(behind: Behind) -> None:
    """After drain_jobs nothing touches the memory, and every job is reported once."""
    job = TransferJob(0, keys("a"), np.array([0], dtype=np.int64), False, REQUEST)
    behind.tier.submit_store(job)
    behind.tier.drain_jobs()
    behind.fill(0, b"other")
    assert [result.job_id for result in behind.tier.get_finished_jobs()] == [0]
    assert list(behind.tier.get_finished_jobs()) == []
    assert not behind.tier.has_pending_work()


@pytest.mark.parametrize("make", [bounded for name, bounded in TIERS.items() if "bounded" in name])
def test_after_a_job_its_first_block_is_the_most_recent(
    make: Callable[[memoryview], SecondaryTierManager],
) -> None:
    """Of what a job stored, found stored or loaded, the tail of the prefix leaves first, its head last."""
    for load in (False, True):
        behind = Behind(make)
        behind.store("c b d")
        behind.store("a b c d")
        if load:
            behind.store("d c b a")
            behind.run("a b c d", [4, 5, 6, 7], load=True)
        list(behind.tier.take_events())
        for name in ("w", "x", "y", "z"):
            behind.store(name)
        left = [key for event in behind.tier.take_events() if event.removed for key in event.keys]
        assert left == keys("d c b a")
        behind.tier.shutdown()
