"""The worker that moves blocks between the GPU and the CPU tier: asynchronous, each direction in its order.

It is told slots and copies bytes; which block is where, and who may not leave meanwhile, is the scheduler's
business. The two directions know nothing of each other: a block is loaded only after its store was reported,
and the blocks of a transfer are not reused before its own report. A failed copy is a result like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch

from tiers.argument import whole_number
from tiers.errors import TierContractError, TierValueError
from tiers.jobs import TransferResult
from tiers.specs import BlockIds, CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
from tiers.transfer.block_copies import BlockCopies, join
from tiers.transfer.copier import Copier
from tiers.transfer.copy_plan import plan_copy
from tiers.transfer.direction import Direction
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CanonicalKVCaches
from tiers.transfer.pieces import RefPieces
from tiers.transfer.stream_copier import StreamCopier
from tiers.transfer.thread_copier import ThreadCopier

MAX_JOBS: Final = 65_536


class CPUOffloadingWorker:
    """Copies between ``kv_caches`` and ``host_memory``, ``blocks_per_chunk`` GPU blocks in a slot.

    ``threads``: how many share one copy when both are CPU memory; None is as many as torch uses.
    ``max_jobs``: transfers of one direction submitted and not yet delivered. Raises ``TierValueError`` if one
    of these is below 1, or the memory was laid out for other pages or chunks. The memory is its owner's, to
    close after ``shutdown``.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        host_memory: HostMemory,
        *,
        threads: int | None = None,
        max_jobs: int = MAX_JOBS,
    ) -> None:
        layout = host_memory.layout
        if (layout.page_sizes, layout.blocks_per_chunk) != (kv_caches.page_sizes, blocks_per_chunk):
            raise TierValueError(
                f"pages of {kv_caches.page_sizes} bytes, {blocks_per_chunk} a chunk, in memory laid out for "
                f"{layout.page_sizes}, {layout.blocks_per_chunk} a chunk",
                next_step="Make the memory for the layout of this KV cache.",
            )
        threads = torch.get_num_threads() if threads is None else threads
        whole_number("threads", threads, at_least=1)
        whole_number("max_jobs", max_jobs, at_least=1)
        self.blocks_per_chunk = blocks_per_chunk
        self.num_gpu_blocks = kv_caches.num_blocks
        self.num_cpu_blocks = host_memory.num_blocks
        self._groups = [
            [RefPieces(ref, kv_caches, host_memory) for ref in refs] for refs in kv_caches.group_refs
        ]
        self._stores = Direction("store", copier_for(kv_caches.device, "store", threads), max_jobs=max_jobs)
        try:
            loading = copier_for(kv_caches.device, "load", threads)
        except BaseException:
            self._stores.shutdown()
            raise
        self._loads = Direction("load", loading, max_jobs=max_jobs)
        self._directions = (self._stores, self._loads)
        self._is_shut_down = False

    def transfer_async(self, job_id: int, src: LoadStoreSpec, dst: LoadStoreSpec) -> None:
        """Copy the blocks of ``src`` to ``dst``, GPU → CPU or back as their types say; returns at once.

        The slots of ``dst`` are distinct. Raises ``TierValueError``, and nothing is queued, for ids that do
        not match or do not exist and for a job id in use; ``TierContractError`` after ``shutdown`` and
        beyond ``max_jobs``.
        """
        if self._is_shut_down:
            raise TierContractError("this worker was shut down", next_step="Submit before that.")
        if any(job_id in direction for direction in self._directions):
            raise TierValueError(f"job {job_id} is not over", next_step="Give each transfer its own id.")
        match src, dst:
            case GPULoadStoreSpec(), CPULoadStoreSpec():
                self._stores.submit(job_id, self._cut(src, dst))
            case CPULoadStoreSpec(), GPULoadStoreSpec():
                self._loads.submit(job_id, self._cut(dst, src).reversed())
            case _:
                raise TierValueError(
                    f"a transfer from {type(src).__name__} to {type(dst).__name__}",
                    next_step="Give a GPULoadStoreSpec and a CPULoadStoreSpec.",
                )

    def _cut(self, gpu: GPULoadStoreSpec, cpu: CPULoadStoreSpec) -> BlockCopies:
        check_ids(gpu.block_ids, self.num_gpu_blocks, "GPU blocks")
        check_ids(cpu.block_ids, self.num_cpu_blocks, "CPU slots")
        plans = plan_copy(gpu, cpu, blocks_per_chunk=self.blocks_per_chunk, num_groups=len(self._groups))
        return join(ref.cut(plan) for plan in plans for ref in self._groups[plan.group_idx])

    def get_finished(self) -> list[TransferResult]:
        """What is over and was not delivered yet: stores, then loads, each in the order of submission.

        ``transfer_size`` is the unpadded bytes, None if the copy failed: then what lies at its destination is
        anything. ``transfer_time`` is that of the copy, in seconds.
        """
        return self._stores.take_finished() + self._loads.take_finished()

    def wait(self, job_ids: Iterable[int]) -> None:
        """Until these are over; ``get_finished`` still delivers them. Raises ``TierValueError``, at once, for
        a job that was never submitted or is delivered already.
        """
        waited_for = [(job_id, self._direction_of(job_id)) for job_id in job_ids]
        for job_id, direction in waited_for:
            direction.wait(job_id)

    def _direction_of(self, job_id: int) -> Direction:
        for direction in self._directions:
            if job_id in direction:
                return direction
        raise TierValueError(
            f"job {job_id} is not under way", next_step="Wait for jobs that get_finished has not delivered."
        )

    def get_stats(self) -> Mapping[str, float]:
        """Of each direction (``store``, ``load``), of what was delivered: ``_jobs`` that succeeded and their
        ``_bytes``, ``_failures`` by exception, ``_seconds`` of copying; and ``_pending``, not delivered yet.
        """
        return {**self._stores.get_stats(), **self._loads.get_stats()}

    def shutdown(self) -> None:
        """Finish what was submitted, stores first. Results can still be had. Safe to call twice."""
        self._is_shut_down = True
        for direction in self._directions:
            direction.shutdown()
        self._groups.clear()  # the views in it would keep the memory alive

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        for direction in self._directions:
            direction.check_integrity()


def check_ids(block_ids: BlockIds, count: int, what: str) -> None:
    if len(block_ids) and not 0 <= block_ids.min() <= block_ids.max() < count:
        raise TierValueError(
            f"{what} {block_ids.min()} to {block_ids.max()} of {count}",
            next_step=f"Number them from 0 to {count - 1}.",
        )


def copier_for(device: torch.device, name: str, threads: int) -> Copier:
    return StreamCopier(device) if device.type == "cuda" else ThreadCopier(name, threads)
