"""Blocks copied between a CUDA device and pinned memory. Needs an accelerator: `pytest -m gpu tests/gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers.slow_copy import Setup, setups
from tests.tiers.test_transfer import LARGE, carry_out
from tiers import CPULoadStoreSpec, GPULoadStoreSpec
from tiers.row_layout import RowLayout
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import allocate_kv_caches
from tiers.transfer.worker import CPUOffloadingWorker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BUSY_CYCLES: Final = 500_000_000
"""A fraction of a second on the device: long against a copy that does not wait for it."""

PAGE: Final = 1 << 20


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("to_cpu", [True, False])
def test_large_blocks_arrive(pin: bool, to_cpu: bool) -> None:
    """Every byte that was named is copied and no other, from and to pinned and unpinned memory."""
    kv_caches, memory = LARGE.allocate("cuda", pin=pin)
    assert memory.pinned == pin
    carry_out(LARGE, kv_caches, memory, to_cpu=to_cpu)
    memory.close()


@given(setups(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_byte_and_no_other(setup: Setup, to_cpu: bool) -> None:
    """The same for whatever pages, groups, chunks and ids."""
    kv_caches, memory = setup.allocate("cuda", pin=True)
    carry_out(setup, kv_caches, memory, to_cpu=to_cpu)
    memory.close()


def keep_busy() -> None:
    """Queue something on the current stream that takes a while."""
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]


class OneBlock:
    """A block on the device, a slot in pinned memory, and a worker between them."""

    def __init__(self) -> None:
        kv_caches = allocate_kv_caches(1, [PAGE], device="cuda")
        self.block = kv_caches.tensors[0]
        self.memory = HostMemory(1, RowLayout((PAGE,)), pin=True)
        self.worker = CPUOffloadingWorker(kv_caches, 1, self.memory)
        self.gpu, self.cpu = GPULoadStoreSpec([0], [1], [0]), CPULoadStoreSpec([0])


@pytest.fixture
def one() -> Iterator[OneBlock]:
    made = OneBlock()
    yield made
    made.worker.shutdown()
    made.memory.close()


def test_a_store_waits_for_the_block_to_be_computed(one: OneBlock) -> None:
    """What the engine has queued on its stream before a store is part of what is stored."""
    keep_busy()
    one.block.fill_(7)
    one.worker.transfer_async(1, one.gpu, one.cpu)
    one.worker.wait([1])
    assert bool((one.memory.tensor == 7).all())


def test_a_load_waits_for_what_was_queued_before_it(one: OneBlock) -> None:
    """A write that the engine queued before a load does not overwrite what was loaded."""
    one.memory.tensor.fill_(5)
    keep_busy()
    one.block.zero_()
    one.worker.transfer_async(1, one.cpu, one.gpu)
    one.worker.wait([1])
    torch.cuda.synchronize()
    assert bool((one.block == 5).all())


def test_submitting_does_not_wait(one: OneBlock) -> None:
    """While the engine's stream is busy a transfer is submitted, not over, and delivered later, once."""
    keep_busy()
    one.worker.transfer_async(1, one.gpu, one.cpu)
    assert one.worker.get_finished() == []
    one.worker.wait([1])
    assert [result.job_id for result in one.worker.get_finished()] == [1]
    assert one.worker.get_finished() == []
    one.worker.check_integrity()


def test_stores_end_in_order(one: OneBlock) -> None:
    """Transfers of one direction end in the order of submission, and each is timed by itself."""
    for job_id in range(20):
        one.worker.transfer_async(job_id, one.gpu, one.cpu)
    one.worker.wait([19])
    results = one.worker.get_finished()
    assert [result.job_id for result in results] == list(range(20))
    assert all(result.transfer_time and result.transfer_time > 0 for result in results)


def test_a_failed_copy_is_a_result(one: OneBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that cannot be queued is reported in its turn, and the next one succeeds."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the bus is on fire")

    with monkeypatch.context() as patch:
        patch.setattr("torch._foreach_copy_", broken)
        one.worker.transfer_async(1, one.gpu, one.cpu)
    one.worker.transfer_async(2, one.gpu, one.cpu)
    one.worker.wait([2])
    assert [(result.job_id, result.success) for result in one.worker.get_finished()] == [
        (1, False),
        (2, True),
    ]
    assert one.worker.get_stats()["store_failures.RuntimeError"] == 1
