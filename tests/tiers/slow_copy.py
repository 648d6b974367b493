"""Transfers done slowly and obviously, a page at a time, in numpy; and whole set-ups, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiers.row_layout import RowLayout
from tiers.specs import CPULoadStoreSpec, GPULoadStoreSpec
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CacheRef, CanonicalKVCaches, allocate_kv_caches

Bytes = NDArray[np.int8]


@dataclass(frozen=True)
class Setup:
    """A KV cache's layout and one transfer in it; ids distinct, on either side."""

    page_sizes: tuple[int, ...]
    group_refs: list[list[CacheRef]]
    blocks_per_chunk: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    gpu: GPULoadStoreSpec
    cpu: CPULoadStoreSpec

    def allocate(self, device: str = "cpu", *, pin: bool = False) -> tuple[CanonicalKVCaches, HostMemory]:
        """Both memories, every byte of them noise."""
        kv_caches = allocate_kv_caches(
            self.num_gpu_blocks, self.page_sizes, group_refs=self.group_refs, device=device
        )
        memory = HostMemory(self.num_cpu_blocks, RowLayout(self.page_sizes, self.blocks_per_chunk), pin=pin)
        for tensor in (*kv_caches.tensors, memory.tensor):
            tensor.copy_(torch.randint(-128, 128, tensor.shape, dtype=torch.int8))
        return kv_caches, memory


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    page_sizes = tuple(draw(st.lists(st.integers(1, 48), min_size=1, max_size=3)))
    tensors = st.lists(st.sampled_from(range(len(page_sizes))), unique=True, max_size=3)
    sizes = st.tuples(st.integers(0, 5), st.integers(0, 9))
    chunk = draw(st.integers(1, 4))
    group_refs, counts = [], []
    for _ in range(draw(st.integers(1, 3))):
        group_refs.append(
            [CacheRef(idx, draw(st.integers(1, page_sizes[idx]))) for idx in draw(tensors)]
            if draw(st.booleans())
            else [CacheRef(idx, size) for idx, size in enumerate(page_sizes)]
        )
        counts.append(draw(sizes))
    num_blocks = sum(size for size, _ in counts)
    num_slots = sum(len({(index + n) // chunk for n in range(size)}) for size, index in counts)
    gpu_ids = draw(ids(num_blocks))
    cpu_ids = draw(ids(num_slots))
    return Setup(
        page_sizes,
        group_refs,
        chunk,
        max([num_blocks, *(n + 1 for n in gpu_ids)], default=1) + 1,
        max([num_slots, *(n + 1 for n in cpu_ids)], default=1) + 1,
        GPULoadStoreSpec(gpu_ids, [size for size, _ in counts], [index for _, index in counts]),
        CPULoadStoreSpec(cpu_ids),
    )


def ids(count: int) -> st.SearchStrategy[list[int]]:
    """``count`` distinct ids: one run, or scattered."""
    scattered = st.lists(st.integers(0, count + 3), unique=True, min_size=count, max_size=count)
    return st.just(list(range(count))) | scattered


def slow_copy(setup: Setup, gpu: list[Bytes], cpu: Bytes, *, to_cpu: bool) -> int:
    """Carry the set-up's transfer out in these arrays, in place. Returns how many bytes that was."""
    nbytes, at_block, at_slot = 0, 0, 0
    for group, refs in enumerate(setup.group_refs):
        size, index = setup.gpu.group_sizes[group], setup.gpu.block_indices[group]
        slot_of = {}  # chunk of the request → slot
        for n in range(index, index + size):
            if n // setup.blocks_per_chunk not in slot_of:
                slot_of[n // setup.blocks_per_chunk] = setup.cpu.block_ids[at_slot]
                at_slot += 1
            block, slot = setup.gpu.block_ids[at_block], slot_of[n // setup.blocks_per_chunk]
            at_block += 1
            for ref in refs:
                before = sum(setup.page_sizes[: ref.tensor_idx]) * setup.blocks_per_chunk
                begin = before + n % setup.blocks_per_chunk * setup.page_sizes[ref.tensor_idx]
                page = gpu[ref.tensor_idx][block, : ref.page_bytes]
                place = cpu[slot, begin : begin + ref.page_bytes]
                place[:], page[:] = (page.copy(),) * 2 if to_cpu else (place.copy(),) * 2
                nbytes += ref.page_bytes
    return nbytes
