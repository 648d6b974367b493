"""Eviction before store, checked exactly: with the slots that only the process itself knows.

A slot is given up before it is taken (DESIGN, contract 3). The wire carries no slots, so each store's slot is
noted where it is given out; the events are then judged in their order, in process and out of a log.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from kvbus import BlockRemoved, BlockStored, Event, EventBatch, Received, Subscriber, record
from kvbus.engines import Engine as Tiers
from sinks.duckdb import DuckDBLog, open_log
from tests.tiers.hearing import Heard
from tests.tiers.words import slots_of
from tiers import (
    CPUOffloadingManager,
    LookupResult,
    MemoryTier,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
    TieringOffloadingManager,
    make_offload_key,
)
from tiers.gpu.pool import GPUBlockPool
from tiers.voice.announcer import Announcer
from tiers.voice.voices import Address, Voice

GPU_SLOTS, CPU_SLOTS, MEMORY_SLOTS = 9, 6, 11
STEP = ScheduleEndContext((), ())


class Change(NamedTuple):
    """One block of one event: it came into this slot, or (None) it left."""

    block: int
    slot: int | None


def judge(changes: Iterable[Change], capacity: int) -> str | None:
    """What is wrong with the order, or None: no slot is taken from a block that has not been removed."""
    holder: dict[int, int] = {}
    stored, removed, displaced = Counter[int](), Counter[int](), Counter[int]()
    resident = 0
    for block, slot in changes:
        if slot is None:
            removed[block] += 1
            resident -= 1
            if removed[block] > stored[block]:
                return f"{block} was removed and is nowhere"
            continue
        if (former := holder.get(slot)) is not None:
            displaced[former] += 1  # of several copies, any one may be the one removed
            if removed[former] < displaced[former]:
                return f"slot {slot} was taken by {block} while {former} was in it"
        holder[slot] = block
        stored[block] += 1
        resident += 1
        if resident > capacity:
            return f"{resident} blocks in {capacity} slots"
    return None


class NotedCPU(CPUOffloadingManager):
    """Notes the slot of each block at the moment it is said to be stored."""

    def __init__(self, num_blocks: int, policy: str) -> None:
        super().__init__(num_blocks, policy, True)
        self.slots: list[int] = []
        self._given: dict[OffloadKey, int] = {}

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is not None:
            self._given.update(zip(output.keys_to_store, slots_of(output.store_spec), strict=True))
        return output

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        if success:
            arriving = [k for k in keys if self.lookup(k, req_context) is LookupResult.HIT_PENDING]
            self.slots += [self._given[key] for key in arriving]
        super().complete_store(keys, req_context, success)


class Life:
    """A GPU, a CPU tier and a memory tier under a seeded driver. ``slots``: of each store, tier by tier."""

    def __init__(self, seed: int, policy: str, voices: dict[str, Voice | Address]) -> None:
        self.chance = random.Random(seed)
        self.gpu = GPUBlockPool(GPU_SLOTS, 2, enable_events=True)
        self.cpu = NotedCPU(CPU_SLOTS, policy)
        behind = MemoryTier(None, tier_type="far", max_blocks=MEMORY_SLOTS, enable_events=True)
        self.manager = TieringOffloadingManager(self.cpu, [behind])
        self.announcer = Announcer(self.manager, voices, gpu=self.gpu)
        self.gpu_slots: list[int] = []
        self.shares: list[list[list[Event]]] = [[], [], []]
        self.capacities = (GPU_SLOTS, CPU_SLOTS, MEMORY_SLOTS)

    @property
    def slots(self) -> list[Iterable[int]]:
        """The far tier has no slots: there the capacity alone is judged."""
        return [self.gpu_slots, self.cpu.slots, range(1_000_000)]

    def run(self, requests: int) -> None:
        for number in range(requests):
            self._request(ReqContext(f"r{number}"))
            self.manager.on_schedule_end(STEP)
            if self.chance.random() < 0.6:
                self.drain()
            if self.chance.random() < 0.02:
                self.manager.reset_cache()
        self.drain()

    def drain(self) -> None:
        for tier, share in enumerate(self.announcer.drain().shares):
            self.shares[tier].append(share)

    def _request(self, request: ReqContext) -> None:
        """Compute a few blocks, now and then one that is cached already, and offload them."""
        chance, manager = self.chance, self.manager
        blocks = [chance.randrange(30) for _ in range(chance.randint(1, 4))]
        hashes = [block.to_bytes(32, "big") for block in dict.fromkeys(blocks)]
        slots = self.gpu.allocate(len(hashes))
        assert slots is not None
        self.gpu_slots += slots
        self.gpu.cache(slots, hashes, token_ids=[(1, 2)] * len(hashes), parent=None)
        self.gpu.free(slots[::-1])
        keys = [make_offload_key(block_hash, 0) for block_hash in hashes]
        manager.on_new_request(request)
        for key in keys[: chance.randint(0, 2)]:
            manager.lookup(key, request)
        output = manager.prepare_store(keys, request)
        if output is not None and output.keys_to_store:
            manager.complete_store(output.keys_to_store, request, chance.random() < 0.9)
        manager.on_request_finished(request)


def changes(events: Iterable[Event], slots: Iterable[int]) -> list[list[Change]]:
    """Block by block what each event changes; ``slots``: of each store, in the order of the events."""
    waiting = iter(slots)
    told = []
    for event in events:
        match event:
            case BlockStored():
                told.append([Change(block, next(waiting)) for block in event.block_hashes])
            case BlockRemoved():
                told.append([Change(block, None) for block in event.block_hashes])
            case _:
                raise AssertionError(f"nobody said {event}")
    return told


def flat(told: Sequence[Sequence[Change]]) -> list[Change]:
    return [change for event in told for change in event]


def quiet() -> dict[str, Voice | Address]:
    return {"gpu": Heard(), "cpu": Heard(), "far": Heard()}


def lived(seed: int, policy: str) -> Life:
    life = Life(seed, policy, quiet())
    life.run(120)
    return life


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_slot_is_given_up_before_it_is_taken(seed: int, policy: str) -> None:
    """In every tier's own stream the victim's BlockRemoved precedes the BlockStored that takes its slot, and
    resident blocks never exceed the capacity at any event.
    """
    life = lived(seed, policy)
    for shares, slots, capacity in zip(life.shares, life.slots, life.capacities, strict=True):
        told = changes((event for share in shares for event in share), slots)
        assert sum(len(event) for event in told) > 100
        assert judge(flat(told), capacity) is None


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("tier", [0, 1, 2])
def test_two_neighbouring_events_swapped_are_caught(tier: int, policy: str) -> None:
    """Wherever a store takes what the removal just before it gave up, both in the wrong order are caught."""
    life = lived(5, policy)
    told = changes((event for share in life.shares[tier] for event in share), life.slots[tier])
    caught, tried, holder = 0, 0, dict[int | None, int]()
    resident = 0
    for n, (first, second) in enumerate(itertools.pairwise(told)):
        resident += sum(1 if change.slot is not None else -1 for change in first)
        holder |= {change.slot: change.block for change in first if change.slot is not None}
        gone = {change.block for change in first if change.slot is None}
        taken = {holder.get(change.slot) for change in second if change.slot is not None}
        over = resident + len(gone) + len(second) > life.capacities[tier]
        if gone and second[0].slot is not None and (over if tier == 2 else gone & taken):
            tried += 1
            swapped = flat([*told[:n], second, first, *told[n + 2 :]])
            caught += judge(swapped, life.capacities[tier]) is not None
    assert caught == tried > 10


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_the_log_tells_the_same_order(policy: str, tmp_path: Path) -> None:
    """Out of a log that was recorded over the sockets comes the same order, and the same judgement."""
    names = ("gpu", "cpu", "far")
    voices: dict[str, Voice | Address] = {
        name: Address(f"ipc://{tmp_path}/{name}", f"ipc://{tmp_path}/{name}-replay") for name in names
    }
    life = Life(3, policy, voices)
    life.run(120)
    drains = sum(map(any, zip(*life.shares, strict=True)))
    with (
        life.announcer,
        Subscriber(life.announcer.feeds) as subscriber,
        DuckDBLog(tmp_path / "log.duckdb") as log,
    ):
        engines = [Tiers(names)]
        record(subscriber, log, stop=threading.Event(), engines=engines, max_batches=len(names) * drains)
    heard: dict[str, deque[Event]] = {name: deque() for name in names}
    with open_log(tmp_path / "log.duckdb") as reader:
        for _, entry in ((p.position, p.entry) for p in reader.entries()):
            if isinstance(entry, Received) and isinstance(entry.batch, EventBatch):
                heard[entry.source.source].extend(entry.batch.events)
    for name, shares, slots, capacity in zip(names, life.shares, life.slots, life.capacities, strict=True):
        assert list(heard[name]) == [event for share in shares for event in share]
        assert judge(flat(changes(heard[name], slots)), capacity) is None
