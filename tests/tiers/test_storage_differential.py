"""The storage tier against its slow model: the same results and the same events, in any interleaving."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.tiers.faulty_store import FaultyStore
from tests.tiers.model import Said
from tests.tiers.seeded_workers import SeededWorkers
from tests.tiers.slow_storage import Ended, SlowStorage
from tests.tiers.words import short
from tiers import OffloadKey, ReqContext, ScheduleEndContext, TransferJob, make_offload_key
from tiers.storage.block_store import BlockCorruptError, BlockMissingError, BlockUnsureError
from tiers.storage.block_tasks import Outcome
from tiers.storage.block_work import DeletesDone, Done, LookupDone, ReadsDone, WritesDone
from tiers.storage.tier import StorageTier

SLOTS, SLOT_BYTES = 512, 4
KEYS = [make_offload_key(bytes([n]), 0) for n in range(9)]
REQUESTS = [ReqContext(name) for name in "xyz"]
STEPS = 150


def content(key: OffloadKey) -> bytes:
    return (key[:1] * SLOT_BYTES)[:SLOT_BYTES]


class Pair:
    """A tier and its model, fed with the same calls and with what the medium did."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bound = self.random.choice([0, 1, 2, 3, 5, 20])
        self.shared = self.random.random() < 0.4
        self.faulty = self.random.random() < 0.5
        self.store = FaultyStore()
        self.workers = SeededWorkers(seed)
        self.memory = bytearray(SLOTS * SLOT_BYTES)
        self.now = 0.0
        self.tier = StorageTier(
            None,
            memoryview(self.memory).cast("B", (SLOTS, SLOT_BYTES)),
            store=self.store,
            max_blocks=self.bound,
            enable_events=True,
            shared=self.shared,
            task_bytes=self.random.choice([0, 2 * SLOT_BYTES, 1000]),
            workers=self.workers,
            clock=lambda: self.now,
        )
        self.slow = SlowStorage(self.bound, shared=self.shared)
        self.seen = 0
        self.slot = 0
        self.jobs: dict[int, TransferJob] = {}
        self.held: set[OffloadKey] = set()
        self.lost: set[OffloadKey] = set()
        self.results: list[Ended] = []
        self.said: list[Said] = []

    # What is done

    def step(self) -> None:
        """One random call, and then everything must agree."""
        moves = [self.store_some, self.load_some, self.touch, self.look, self.work, self.work, self.work]
        moves += [self.poll, self.poll, self.end_of_step, self.begin, self.finish]
        moves += [self.harm, self.pass_time] if self.faulty else []
        moves += [self.foreign] if self.shared else []
        self.random.choice(moves)()
        self.agree()

    def some(self) -> list[OffloadKey]:
        return self.random.choices(KEYS, k=self.random.randrange(5))

    def job(self, *, is_load: bool) -> TransferJob:
        keys = self.some()
        slots = [(self.slot + n) % SLOTS for n in range(len(keys))]
        self.slot += len(keys)
        job = TransferJob(
            len(self.jobs), keys, np.array(slots, dtype=np.int64), is_load, self.random.choice(REQUESTS)
        )
        self.jobs[job.job_id] = job
        return job

    def store_some(self) -> None:
        job = self.job(is_load=False)
        for key, slot in zip(job.keys, job.block_ids.tolist(), strict=True):
            self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = content(key)
        self.tier.submit_store(job)
        self.slow.submit_store(job.job_id, list(job.keys), job.req_context.req_id)

    def load_some(self) -> None:
        job = self.job(is_load=True)
        self.tier.submit_load(job)
        self.slow.submit_load(job.job_id, list(job.keys), job.req_context.req_id)

    def touch(self) -> None:
        keys = self.some()
        self.tier.touch(keys, REQUESTS[0])
        self.slow.touch(keys)

    def look(self) -> None:
        key, request = self.random.choice(KEYS), self.random.choice(REQUESTS)
        found = self.tier.lookup(key, request).name
        self.learn()
        assert found == self.slow.lookup(key, request.req_id)

    def work(self) -> None:
        self.workers.step()

    def poll(self) -> None:
        results = list(self.tier.get_finished_jobs())
        self.learn()
        for result in results:
            arrived = None if result.successful_keys is None else tuple(result.successful_keys)
            self.results.append((result.job_id, result.success, arrived))
            self.compare_bytes(self.jobs[result.job_id], result.success, arrived)
        assert self.results == self.slow.results

    def compare_bytes(self, job: TransferJob, success: bool, arrived: Sequence[OffloadKey] | None) -> None:
        """What is reported as loaded is in its slot."""
        if job.is_promotion:
            for key, slot in zip(job.keys, job.block_ids.tolist(), strict=True):
                if success or key in (arrived or ()):
                    assert self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] == content(key)

    def end_of_step(self) -> None:
        self.tier.on_schedule_end(ScheduleEndContext((), ()))
        self.learn()
        self.slow.retry()
        self.slow.flush()

    def pass_time(self) -> None:
        self.now += self.random.choice([0.4, 1.0, 10.0, 100.0])
        self.slow.now = self.now

    def begin(self) -> None:
        request = self.random.choice(REQUESTS)
        self.tier.on_new_request(request)
        self.slow.begin(request.req_id)

    def finish(self) -> None:
        request = self.random.choice(REQUESTS)
        self.tier.on_request_finished(request)
        self.slow.finish(request.req_id)

    def harm(self) -> None:
        """The medium fails, recovers, rots or loses a block, loses answers, or never lets go of a block."""
        key = self.random.choice(KEYS)
        match self.random.randrange(9):
            case 0 | 1:
                operation = self.random.choice(["put", "get", "delete", "delete", "holds"])
                self.store.fail[operation, self.random.choice([key, None])] = OSError(errno.EIO, "no")
            case 5:
                lost = BlockUnsureError(key, TimeoutError(errno.ETIMEDOUT, "no answer"))
                self.store.fail["put", self.random.choice([key, key, None])] = lost
            case 6:
                self.store.unknown ^= {key}
            case 7 if len(self.store.stuck) < 3:
                self.store.stuck.add(key)
            case 2 if key in self.store.blocks:
                self.store.corrupt.add(key)
            case 3 if key in self.store.blocks:
                del self.store.blocks[key]
                self.store.corrupt.discard(key)
                self.lost.add(key)
            case 4:
                self.store.fail.clear()

    def foreign(self) -> None:
        """Another process stores a block, or deletes one."""
        key = self.random.choice(KEYS)
        if key not in self.store.blocks:
            self.store.blocks[key] = content(key)
        elif self.random.random() < 0.3:
            del self.store.blocks[key]
            self.lost.add(key)

    # What is learnt and compared

    def learn(self) -> None:
        """Tell the model what the tier was told."""
        new, self.seen = self.workers.taken[self.seen :], len(self.workers.taken)
        for done in new:
            self.tell(done)

    def tell(self, done: Done) -> None:
        match done:
            case WritesDone():
                self.slow.wrote(
                    [
                        (
                            written.write.key,
                            [(outcome.key, outcome.error is None) for outcome in written.deleted],
                            fate_of(written.block),
                        )
                        for written in done.blocks
                    ]
                )
            case ReadsDone():
                self.slow.read(
                    done.job.job.job_id, [(outcome.key, why(outcome.error)) for outcome in done.blocks]
                )
            case DeletesDone():
                self.slow.deleted([(outcome.key, outcome.error is None) for outcome in done.blocks])
            case LookupDone(batch=batch, answers=answers):
                self.slow.answered(batch, answers.found)

    def agree(self) -> None:
        """Same events; what is announced is on the medium; the bound holds; integrity."""
        events = list(self.tier.take_events())
        self.learn()
        self.said += short(events)
        assert self.said == self.slow.said
        for event in events:
            assert self.held.isdisjoint(event.keys) != event.removed or not event.keys
            self.held ^= set(event.keys)
            assert len(self.held) <= self.bound
        assert self.held == set(self.slow.queue)
        self.lost -= set(self.store.blocks)
        assert self.held - self.lost <= set(self.store.blocks)
        assert self.shared or self.store.most_bytes <= self.bound * SLOT_BYTES
        self.tier.check_integrity()

    def finish_all(self) -> None:
        """Everything comes to an end, and the medium holds what was announced."""
        self.tier.drain_jobs()
        self.learn()
        self.poll()
        self.agree()
        while self.tier.has_pending_work():  # questions, and what their answers begin
            self.work()
            self.poll()
            self.agree()
        assert [number for number, _, _ in sorted(self.results)] == list(range(len(self.jobs)))
        if not self.shared:
            assert set(self.store.blocks) - set(self.slow.stuck) == self.held - self.lost
        self.store.fail.clear()
        self.store.stuck.clear()
        self.now += 100.0
        self.end_of_step()
        self.tier.drain_jobs()
        assert self.tier.get_stats()["stranded"] == 0
        if not self.shared:
            assert set(self.store.blocks) == self.held - self.lost


def fate_of(block: Outcome | None) -> str:
    if block is None:
        return "untried"
    if block.error is None:
        return "there"
    return "unsure" if isinstance(block.error, BlockUnsureError) else "failed"


def why(error: Exception | None) -> str | None:
    match error:
        case None:
            return None
        case BlockCorruptError():
            return "corrupt"
        case BlockMissingError():
            return "missing"
    return "other"


@pytest.mark.parametrize("seed", range(200))
def test_the_tier_does_what_its_rules_say(seed: int) -> None:
    """Any order of calls and of tasks, on a medium that fails, rots, loses and is shared."""
    pair = Pair(seed)
    for _ in range(STEPS):
        pair.step()
    pair.finish_all()
