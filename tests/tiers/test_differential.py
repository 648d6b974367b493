"""Managers against their slow models: the same results, the same events, integrity after every step."""

from __future__ import annotations

import random

import pytest

from tests.tiers.model import SlowCPU
from tests.tiers.slow_tiering import SlowMemory, SlowTiering
from tests.tiers.words import parts, short, slots_of
from tiers import (
    CPUOffloadingManager,
    MemoryTier,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    TieringOffloadingManager,
    make_offload_key,
)


class Differential:
    """One seeded life of a tier. Every failure is reproduced by its arguments."""

    def __init__(self, seed: int, policy: str) -> None:
        self.chance = chance = random.Random(seed)
        capacity = chance.choice([1, 2, 4, 8, 13, 21])
        threshold, tracked = chance.choice([1, 1, 1, 2]), capacity + 2
        self.real = CPUOffloadingManager(capacity, policy, True, threshold, tracked)
        self.slow = SlowCPU(capacity, policy, threshold=threshold, tracked=tracked)
        self.at_most = min(5, capacity + 1)
        self.names = [make_offload_key(bytes([n]), n % 3) for n in range(2 * capacity + 3)]
        self.contexts = [ReqContext(f"r{n}") for n in range(3)]
        self.loads: list[list[OffloadKey]] = []
        self.stores: list[list[OffloadKey]] = []
        self.emitted = 0
        self.steps = (
            [self.lookup] * 4
            + [self.touch] * 3
            + [self.prepare_store] * 4
            + [self.complete_store] * 5
            + [self.prepare_load] * 2
            + [self.complete_load] * 4
            + [self.take]
        )

    def run(self, steps: int) -> int:
        """Take ``steps`` steps and compare after each; how many events there were."""
        for _ in range(steps):
            (self.reset if self.chance.random() < 0.004 else self.chance.choice(self.steps))()
            self.real.check_integrity()
            self.compare()
        self.take()
        return self.emitted

    def compare(self) -> None:
        stats = self.real.get_stats()
        assert stats["resident"] == len(self.slow.refs)
        assert stats["evictable"] == sum(readers == 0 for readers in self.slow.refs.values())
        assert stats["being_written"] == sum(readers == -1 for readers in self.slow.refs.values())

    @property
    def ctx(self) -> ReqContext:
        return self.chance.choice(self.contexts)

    def some(self) -> list[OffloadKey]:
        """A few keys, in any order, now and then one twice."""
        found = self.chance.sample(self.names, self.chance.randint(0, self.at_most))
        if found and self.chance.random() < 0.1:
            found.append(self.chance.choice(found))
        return found

    def lookup(self) -> None:
        for key in self.some():
            assert self.real.lookup(key, self.ctx).name == self.slow.lookup(key)

    def touch(self) -> None:
        found = self.some()
        self.real.touch(found, self.ctx)
        self.slow.touch(found)

    def prepare_store(self) -> None:
        found = self.some()
        output, expected = parts(self.real.prepare_store(found, self.ctx)), self.slow.prepare_store(found)
        assert output == expected
        if expected is not None and expected[0]:
            self.stores.append(expected[0])

    def complete_store(self) -> None:
        """Whole, in part, with more than was asked for, or failed."""
        if not self.stores:
            return
        found = self.stores.pop(self.chance.randrange(len(self.stores)))
        self.chance.shuffle(found)
        if self.chance.random() < 0.2:
            half = len(found) // 2
            self.stores.append(found[half:])
            found = found[:half]
        if self.chance.random() < 0.2:
            # Blocks that are ready, and unknown ones: both are to be ignored.
            found = found + [key for key in self.some() if self.slow.refs.get(key, 0) >= 0]
        success = self.chance.random() < 0.8
        self.real.complete_store(found, self.ctx, success)
        self.slow.complete_store(found, success)

    def prepare_load(self) -> None:
        found = [key for key in self.some() if self.slow.refs.get(key, -1) >= 0]
        assert slots_of(self.real.prepare_load(found, self.ctx)) == self.slow.prepare_load(found)
        if found:
            self.loads.append(found)

    def complete_load(self) -> None:
        if self.loads:
            found = self.loads.pop(self.chance.randrange(len(self.loads)))
            self.real.complete_load(found, self.ctx)
            self.slow.complete_load(found)

    def take(self) -> None:
        events = list(self.real.take_events())
        assert short(events) == self.slow.take_events()
        assert [event.emit_seq for event in events] == list(range(self.emitted, self.emitted + len(events)))
        assert {event.medium for event in events} <= {"CPU"}
        self.emitted += len(events)

    def reset(self) -> None:
        self.real.reset_cache()
        self.slow.reset()
        if self.stores and self.chance.random() < 0.5:
            self.real.complete_store(self.stores[0], self.ctx)  # of before: nobody waits for it
            self.slow.complete_store(self.stores[0], True)
        self.loads.clear()
        self.stores.clear()


class TieringDifferential:
    """One seeded life of a composing manager over one to three memory tiers, some small, some slow."""

    def __init__(self, seed: int, policy: str) -> None:
        self.chance = chance = random.Random(seed)
        capacity = chance.choice([1, 3, 6, 10])
        shapes = [
            (chance.choice([2, 4, 9, 100]), chance.choice([0, 0, 1, 3])) for _ in range(chance.randint(1, 3))
        ]
        self.tiers = [MemoryTier(max_blocks=n, delay_steps=d, enable_events=True) for n, d in shapes]
        self.real = TieringOffloadingManager(CPUOffloadingManager(capacity, policy, True), self.tiers)
        self.slow = SlowTiering(SlowCPU(capacity, policy), [SlowMemory(n, d) for n, d in shapes])
        self.names = [make_offload_key(bytes([n]), n % 2) for n in range(2 * capacity + 3)]
        self.at_most = min(4, capacity + 1)
        self.contexts = [ReqContext(f"r{n}") for n in range(3)]
        for ctx in self.contexts:
            self.real.on_new_request(ctx)
        self.stores: list[tuple[ReqContext, list[OffloadKey]]] = []
        self.loads: list[list[OffloadKey]] = []
        self.events = self.promotions = 0

    def run(self, steps: int) -> int:
        """Take ``steps`` steps and compare after each; how many events there were."""
        acts = [self.lookup, self.touch, self.load, self.prepare, self.complete, self.step]
        for _ in range(steps):
            (self.reset if self.chance.random() < 0.004 else self.chance.choice(acts))()
            self.real.check_integrity()
            for tier in self.tiers:
                tier.check_integrity()
            events = list(self.real.take_events())
            assert short(events) == self.slow.take_events()
            self.events += len(events)
        return self.events

    def some(self) -> list[OffloadKey]:
        return self.chance.sample(self.names, self.chance.randint(1, self.at_most))

    def lookup(self) -> None:
        ctx = self.chance.choice(self.contexts)
        for key in self.some():
            answer = self.real.lookup(key, ctx).name
            assert answer == self.slow.lookup(key, ctx.req_id)
            self.promotions += answer == "HIT_PENDING"

    def touch(self) -> None:
        found = self.some()
        self.real.touch(found, self.contexts[0])
        self.slow.touch(found)

    def load(self) -> None:
        """Begin a load of what can be loaded, or end one."""
        ctx = self.contexts[0]
        if self.loads and self.chance.random() < 0.7:
            found = self.loads.pop()
            self.real.complete_load(found, ctx)
            self.slow.primary.complete_load(found)
        elif found := [key for key in self.some() if self.slow.primary.refs.get(key, -1) >= 0]:
            assert slots_of(self.real.prepare_load(found, ctx)) == self.slow.primary.prepare_load(found)
            self.loads.append(found)

    def prepare(self) -> None:
        ctx, found = self.chance.choice(self.contexts), self.some()
        expected = self.slow.prepare_store(found)
        assert parts(self.real.prepare_store(found, ctx)) == expected
        if expected is not None and expected[0]:
            self.stores.append((ctx, expected[0]))

    def complete(self) -> None:
        if self.stores:
            ctx, found = self.stores.pop(self.chance.randrange(len(self.stores)))
            success = self.chance.random() < 0.8
            self.real.complete_store(found, ctx, success)
            self.slow.complete_store(found, success)

    def step(self) -> None:
        self.real.on_schedule_end(ScheduleEndContext((), ()))
        self.slow.schedule_end()

    def reset(self) -> None:
        self.real.reset_cache()
        self.slow.reset()
        self.stores.clear()
        self.loads.clear()


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_tiers_behind_as_the_slow_model_has_them(policy: str) -> None:
    """With tiers behind the primary, every result and event is the one that plain lists give."""
    lives = [TieringDifferential(seed, policy) for seed in range(20)]
    assert sum(life.run(250) for life in lives) > 1000
    assert sum(life.promotions for life in lives) > 200


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_million_calls_with_tiers_behind(policy: str) -> None:
    """The same over a million calls in all."""
    lives = [TieringDifferential(seed, policy) for seed in range(5000, 5500)]
    assert sum(life.run(1000) for life in lives) > 100_000
    assert sum(life.promotions for life in lives) > 10_000


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_twenty_thousand_calls_as_the_slow_model_has_them(policy: str) -> None:
    """In random lives of a tier, every result and event is the one that plain lists give."""
    events = [Differential(seed, policy).run(500) for seed in range(20)]
    assert sum(events) > 1000


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_two_million_calls_as_the_slow_model_has_them(policy: str) -> None:
    """The same over two million calls in all."""
    events = [Differential(seed, policy).run(1000) for seed in range(1000, 2000)]
    assert sum(events) > 100_000
