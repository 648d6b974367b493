"""Blocks copied between a KV cache and the CPU tier: every byte, every order, every failure."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers.slow_copy import Setup, setups, slow_copy
from tiers import (
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    TierContractError,
    TierError,
    TierValueError,
    TransferResult,
)
from tiers.row_layout import RowLayout
from tiers.transfer.block_copies import BlockCopies
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CacheRef, CanonicalKVCaches, allocate_kv_caches
from tiers.transfer.worker import CPUOffloadingWorker

DEADLINE = 60.0

LARGE = Setup(
    (3 << 19, 80_000),
    [[CacheRef(0, 3 << 19), CacheRef(1, 79_999)]],
    2,
    8,
    6,
    GPULoadStoreSpec([7, 1, 2, 5], [4], [1]),
    CPULoadStoreSpec([4, 0, 3]),
)
"""As large as real blocks: copied in pieces, by several threads; and one ref whose pages have odd sizes."""


def store(blocks: list[int], slots: list[int]) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec]:
    """GPU blocks of the only group → slots of as many."""
    return GPULoadStoreSpec(blocks, [len(blocks)], [0]), CPULoadStoreSpec(slots)


def load(slots: list[int], blocks: list[int]) -> tuple[CPULoadStoreSpec, GPULoadStoreSpec]:
    return store(blocks, slots)[::-1]


class Small:
    """Eight GPU blocks and eight slots of 64 bytes; GPU block n is filled with n."""

    def __init__(self) -> None:
        self.kv_caches = allocate_kv_caches(8, [64])
        self.memory = HostMemory(8, RowLayout((64,)))
        self.kv_caches.tensors[0].copy_(torch.arange(8, dtype=torch.int8)[:, None].expand(8, 64))
        self.worker = CPUOffloadingWorker(self.kv_caches, 1, self.memory, threads=2, max_jobs=4)

    def slots(self) -> list[int]:
        """What the slots hold."""
        first = self.memory.tensor[:, 0].tolist()
        assert torch.equal(self.memory.tensor[:, :64], self.memory.tensor[:, :1].expand(8, 64))
        return first


@pytest.fixture
def small() -> Iterator[Small]:
    made = Small()
    yield made
    made.worker.check_integrity()
    made.worker.shutdown()
    made.memory.close()


class Gate:
    """Holds copies up that match, until it opens; all others go through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: Callable[[BlockCopies], bool]) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        run = BlockCopies.run

        def held_up(copies: BlockCopies) -> None:
            if held(copies):
                self.reached.set()
                assert self.open.wait(DEADLINE)
            run(copies)

        monkeypatch.setattr(BlockCopies, "run", held_up)


def fail(monkeypatch: pytest.MonkeyPatch, failing: Callable[[BlockCopies], bool]) -> None:
    """These copies raise instead of copying."""
    run = BlockCopies.run

    def broken(copies: BlockCopies) -> None:
        if failing(copies):
            raise RuntimeError("the bus is on fire")
        run(copies)

    monkeypatch.setattr(BlockCopies, "run", broken)


def collect(worker: CPUOffloadingWorker, count: int) -> list[TransferResult]:
    """Poll until so many results are there."""
    results: list[TransferResult] = []
    deadline = time.monotonic() + DEADLINE
    while len(results) < count:
        assert time.monotonic() < deadline, f"only {results}"
        results += worker.get_finished()
        threading.Event().wait(0.001)
    return results


def carry_out(setup: Setup, kv_caches: CanonicalKVCaches, memory: HostMemory, *, to_cpu: bool) -> None:
    """Let a worker do it, and compare both memories, byte by byte, with what the slow way makes of them."""
    gpu = [tensor.cpu().numpy().copy() for tensor in kv_caches.tensors]
    cpu = memory.tensor.numpy().copy()
    nbytes = slow_copy(setup, gpu, cpu, to_cpu=to_cpu)
    worker = CPUOffloadingWorker(kv_caches, setup.blocks_per_chunk, memory)
    sides = (setup.gpu, setup.cpu)
    began = time.perf_counter()
    worker.transfer_async(1, *(sides if to_cpu else sides[::-1]))
    worker.wait([1])
    wall = time.perf_counter() - began
    (result,) = worker.get_finished()
    worker.check_integrity()
    worker.shutdown()
    assert (result.job_id, result.success, result.transfer_size) == (1, True, nbytes)
    assert result.transfer_time is not None
    assert 0 < result.transfer_time < wall
    for tensor, expected in zip(kv_caches.tensors, gpu, strict=True):
        np.testing.assert_array_equal(tensor.cpu().numpy(), expected)
    np.testing.assert_array_equal(memory.tensor.numpy(), cpu)


@given(setups(), st.booleans())
@example(LARGE, True)
@example(LARGE, False)
@settings(max_examples=100, deadline=None)
def test_every_byte_and_no_other(setup: Setup, to_cpu: bool) -> None:
    """Whatever the pages, groups, chunks and ids: what was named is copied, and nothing else changes, neither
    at the source nor in the same chunk beside it.
    """
    tiny = setup is not LARGE
    with contextlib.ExitStack() as limits:
        if tiny:  # so that small set-ups are cut up like large ones
            limits.enter_context(mock.patch("tiers.transfer.pieces.LONGEST", 3))
            limits.enter_context(mock.patch("tiers.transfer.thread_copier.PART_BYTES", 32))
        kv_caches, memory = setup.allocate()
        carry_out(setup, kv_caches, memory, to_cpu=to_cpu)
        memory.close()


def test_a_block_comes_back_as_it_went(small: Small) -> None:
    """What was stored and then loaded into another block is what it was."""
    small.worker.transfer_async(1, *store([3, 5], [0, 7]))
    small.worker.wait([1])
    small.worker.transfer_async(2, *load([7, 0], [0, 1]))
    small.worker.wait([2])
    assert small.kv_caches.tensors[0][:2, 0].tolist() == [5, 3]


def test_each_direction_is_a_queue_of_its_own(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs holds up the stores behind it, in whose order they then end, and no load."""
    gate = Gate(monkeypatch, lambda copies: copies.nbytes == 3 * 64)
    small.worker.transfer_async(1, *store([1, 3, 5], [0, 2, 4]))
    small.worker.transfer_async(2, *store([6], [6]))
    small.worker.transfer_async(3, *load([7], [7]))
    assert [result.job_id for result in collect(small.worker, 1)] == [3]
    assert gate.reached.wait(DEADLINE)
    assert small.slots() == [0] * 8
    small.worker.transfer_async(4, *load([7], [0]))
    small.worker.check_integrity()
    gate.open.set()
    small.worker.wait([4, 2])
    assert [result.job_id for result in small.worker.get_finished()] == [1, 2, 4]
    assert small.worker.get_finished() == []
    assert small.slots() == [1, 0, 3, 0, 5, 0, 6, 0]


def test_a_failed_copy_is_a_result(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says no success and no size, its reason is logged and counted, and what follows goes on."""
    fail(monkeypatch, lambda copies: copies.nbytes == 2 * 64)
    small.worker.transfer_async(1, *store([1, 3], [0, 2]))
    small.worker.transfer_async(2, *store([5], [4]))
    failed, succeeded = collect(small.worker, 2)
    assert (failed.job_id, failed.success, failed.transfer_size) == (1, False, None)
    assert (succeeded.job_id, succeeded.success, succeeded.transfer_size) == (2, True, 64)
    assert small.slots() == [0, 0, 0, 0, 5, 0, 0, 0]
    assert "the bus is on fire" in caplog.text
    stats = small.worker.get_stats()
    assert stats["store_failures.RuntimeError"] == 1
    assert (stats["store_jobs"], stats["store_bytes"], stats["store_pending"]) == (1, 64, 0)


def test_a_failed_part_waits_for_the_others(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer is not over while any part of it still writes, even if another part has failed."""
    monkeypatch.setattr("tiers.transfer.thread_copier.PART_BYTES", 64)
    fail(monkeypatch, lambda copies: not copies.sources[0].view(torch.int8).any())
    gate = Gate(monkeypatch, lambda copies: bool(copies.sources[0].view(torch.int8).any()))
    small.worker.transfer_async(1, *store([0, 3], [0, 2]))
    assert gate.reached.wait(DEADLINE)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(small.worker.wait, [1])
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        gate.open.set()
        waiting.result(DEADLINE)
    assert [result.success for result in small.worker.get_finished()] == [False]


@pytest.mark.parametrize(
    "missing", ["kvbus-store_0", "kvbus-store-copy_1", "kvbus-load_0", "kvbus-load-copy_1"]
)
def test_threads_are_there_before_the_first_copy(
    small: Small, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Where a thread cannot be started there is no worker, and no thread is left behind; no copy is ever
    given up for want of one.
    """
    start, before = threading.Thread.start, threading.active_count()

    def refused(thread: threading.Thread) -> None:
        if thread.name == missing:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(TierError, match="can't start new thread"):
        CPUOffloadingWorker(small.kv_caches, 1, small.memory, threads=2)
    assert threading.active_count() == before


def test_no_thread_is_started_later(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is there can copy, whatever becomes of the machine's threads."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tiers.transfer.thread_copier.PART_BYTES", 64)
    monkeypatch.setattr(threading.Thread, "start", refused)
    small.worker.transfer_async(1, *store([1, 3, 5], [0, 2, 4]))
    small.worker.transfer_async(2, *load([7, 6], [7, 6]))
    small.worker.wait([1, 2])
    assert all(result.success for result in small.worker.get_finished())


def test_parts_that_cannot_be_handed_out(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a part cannot be handed out, the transfer is over only when those that were have ended."""
    monkeypatch.setattr("tiers.transfer.thread_copier.PART_BYTES", 64)
    gate = Gate(monkeypatch, lambda copies: copies.nbytes == 64)
    pool, calls = small.worker._stores._copier._copying, iter(range(9))  # type: ignore[attr-defined]
    submit = pool.submit

    def second_refused(task: Callable[[], None]) -> object:
        if next(calls) == 1:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        return submit(task)

    monkeypatch.setattr(pool, "submit", second_refused)
    small.worker.transfer_async(1, *store([1, 3, 5], [0, 2, 4]))
    assert gate.reached.wait(DEADLINE)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(small.worker.wait, [1])
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        gate.open.set()
        waiting.result(DEADLINE)
    assert [result.success for result in small.worker.get_finished()] == [False]
    assert small.slots().count(0) == 7


def test_wait_is_for_jobs_under_way(small: Small) -> None:
    """A job that was never submitted, or whose result was delivered, cannot be waited for."""
    small.worker.transfer_async(1, *store([0], [0]))
    with pytest.raises(TierValueError, match="job 2"):
        small.worker.wait([1, 2])
    small.worker.wait([1, 1])
    small.worker.wait([])
    assert len(small.worker.get_finished()) == 1
    with pytest.raises(TierValueError, match="job 1"):
        small.worker.wait([1])


def test_shutdown_finishes_what_was_submitted(small: Small) -> None:
    """Both directions end; results can still be had, nothing more can be submitted, and twice is once."""
    small.worker.transfer_async(1, *store([1], [0]))
    small.worker.transfer_async(2, *load([7], [7]))
    small.worker.shutdown()
    small.worker.shutdown()
    assert [result.job_id for result in small.worker.get_finished()] == [1, 2]
    assert small.slots() == [1, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(TierContractError, match="shut down"):
        small.worker.transfer_async(3, *store([1], [0]))


def test_memory_is_free_once_its_owner_closes_it(tmp_path: Path) -> None:
    """A worker that was shut down holds nothing of the memory any more."""
    path = tmp_path / "slots"
    memory = HostMemory(2, RowLayout((64,)), path=path)
    worker = CPUOffloadingWorker(allocate_kv_caches(2, [64]), 1, memory)
    worker.transfer_async(1, *store([0, 1], [1, 0]))
    worker.shutdown()
    worker.get_finished()
    memory.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (*store([0, 1], [0]),),
        (*store([0], [0, 1]),),
        (*store([8], [0]),),
        (*store([-1], [0]),),
        (*load([8], [0]),),
        (GPULoadStoreSpec([0], [1, 0], [0, 0]), CPULoadStoreSpec([0])),
        (CPULoadStoreSpec([0]), CPULoadStoreSpec([1])),
    ],
)
def test_what_cannot_be_copied_is_not_queued(
    small: Small, src: GPULoadStoreSpec | CPULoadStoreSpec, dst: GPULoadStoreSpec | CPULoadStoreSpec
) -> None:
    """Ids left over, ids that do not exist, other groups and other memories are the caller's error."""
    with pytest.raises(TierValueError):
        small.worker.transfer_async(1, src, dst)
    assert small.worker.get_stats()["store_pending"] == small.worker.get_stats()["load_pending"] == 0


def test_a_job_id_names_one_job(small: Small) -> None:
    """An id can be used again only when its result was delivered, in whichever direction."""
    small.worker.transfer_async(1, *store([0], [0]))
    with pytest.raises(TierValueError, match="job 1 is not over"):
        small.worker.transfer_async(1, *load([1], [1]))
    collect(small.worker, 1)
    small.worker.transfer_async(1, *load([1], [1]))


def test_results_nobody_takes_have_a_limit(small: Small) -> None:
    """Beyond ``max_jobs`` undelivered transfers a submission is refused, until some are taken."""
    for job_id in range(4):
        small.worker.transfer_async(job_id, *store([0], [0]))
    with pytest.raises(TierContractError, match="4 store transfers"):
        small.worker.transfer_async(4, *store([0], [0]))
    collect(small.worker, 4)
    small.worker.transfer_async(4, *store([0], [0]))


@pytest.mark.parametrize(
    "limits",
    [{"threads": 0}, {"max_jobs": 0}, {"threads": "2"}, {"threads": True}, {"max_jobs": 1.5}],
    ids=str,
)
def test_limits_that_cannot_be(small: Small, limits: dict[str, Any]) -> None:
    """Nothing can be copied by no threads, or in no jobs."""
    with pytest.raises(TierValueError):
        CPUOffloadingWorker(small.kv_caches, 1, small.memory, **limits)


def test_memory_laid_out_for_another_cache() -> None:
    """A worker refuses memory whose rows are not those of its KV cache and chunk."""
    memory = HostMemory(2, RowLayout((64,), 2))
    for page, chunk in ((64, 1), (32, 2)):
        with pytest.raises(TierValueError, match="laid out for"):
            CPUOffloadingWorker(allocate_kv_caches(2, [page]), chunk, memory)
    memory.close()
