"""The memory of an engine in torch tensors: GPU blocks, the CPU tier's rows, and the worker that copies.

One tensor of pages, one KV-cache group, a block a slot. "GPU" is CUDA, or a tensor on the CPU where there is
none: the copies are real either way. Each call waits for its copy; what is stored where is the engine's
business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch

from tiers.errors import TierMemoryError, TierValueError
from tiers.keys import OffloadKey
from tiers.row_layout import RowLayout
from tiers.serving.block_content import BlockContent
from tiers.serving.stack_spec import DEVICES
from tiers.specs import GPULoadStoreSpec, LoadStoreSpec
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CanonicalKVCaches, allocate_kv_caches
from tiers.transfer.worker import CPUOffloadingWorker
from tiers.transfer_times import TransferTimes


class TorchDevice:
    """``gpu_blocks`` blocks of ``block_bytes`` bytes on ``device`` and ``cpu_blocks`` rows for them in host
    memory, which is pinned where ``device`` is CUDA. ``auto``: CUDA if there is any.

    Raises ``TierValueError`` for sizes and devices that cannot be, ``TierMemoryError`` if there is not so
    much memory.
    """

    def __init__(self, gpu_blocks: int, cpu_blocks: int, *, block_bytes: int, device: str = "auto") -> None:
        where = chosen(device)
        self.name = where.type
        self._content = BlockContent(block_bytes, device=where)
        self._caches = allocated(gpu_blocks, block_bytes, where)
        self._pages = self._caches.tensors[0]
        with ExitStack() as opened:
            self._memory = HostMemory(cpu_blocks, RowLayout((block_bytes,)), pin=where.type == "cuda")
            opened.callback(self._memory.close)
            self._worker = CPUOffloadingWorker(self._caches, 1, self._memory)
            opened.callback(self._worker.shutdown)
            self._opened = opened.pop_all()
        self._jobs = 0
        self.times: Mapping[str, TransferTimes] = {"load": TransferTimes(), "store": TransferTimes()}

    @property
    def cpu_rows(self) -> memoryview:
        """The CPU tier's memory, shape (cpu_blocks, bytes a row)."""
        return self._memory.view

    def compute(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        self._content.write(self._pages, slots, keys)

    def load(self, cpu: LoadStoreSpec, slots: Sequence[int]) -> bool:
        return self._copy(cpu, gpu_side(slots), "load")

    def store(self, slots: Sequence[int], cpu: LoadStoreSpec) -> bool:
        return self._copy(gpu_side(slots), cpu, "store")

    def mismatches(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> list[int]:
        return self._content.differing(self._pages, slots, keys)

    def _copy(self, src: LoadStoreSpec, dst: LoadStoreSpec, kind: str) -> bool:
        self._jobs += 1
        self._worker.transfer_async(self._jobs, src, dst)
        self._worker.wait([self._jobs])
        (result,) = self._worker.get_finished()
        if result.success:
            self.times[kind].add(result.transfer_size or 0, result.transfer_time or 0.0)
        return result.success

    def close(self) -> None:
        """The worker first, then the memory. Safe to call twice."""
        self._opened.close()


def gpu_side(slots: Sequence[int]) -> GPULoadStoreSpec:
    """GPU slots of the one group there is."""
    return GPULoadStoreSpec(slots, (len(slots),), (0,))


def chosen(device: str) -> torch.device:
    """The device that a word means. Raises ``TierValueError`` where it is not there."""
    if device not in DEVICES:
        raise TierValueError(f"no device {device!r}", next_step=f"One of {', '.join(DEVICES)}.")
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise TierValueError("torch finds no CUDA device here", next_step="Use --device cpu, or auto.")
    return torch.device("cuda" if has_cuda and device != "cpu" else "cpu")


def allocated(gpu_blocks: int, block_bytes: int, device: torch.device) -> CanonicalKVCaches:
    try:
        return allocate_kv_caches(gpu_blocks, [block_bytes], device=device)
    except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
        raise TierMemoryError(
            f"no memory for {gpu_blocks} blocks of {block_bytes} bytes on {device}",
            next_step="Give fewer blocks, or smaller ones.",
        ) from error
