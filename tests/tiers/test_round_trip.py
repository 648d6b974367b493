"""Every byte survives GPU → CPU → a medium → CPU → GPU, whatever blocks, groups and chunks are made of."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiers.s3_bucket import Bucket
from tiers import (
    CPUPrimaryTierOffloadingManager,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    ReqContext,
    ScheduleEndContext,
    SecondaryTierManager,
    TieringOffloadingManager,
    make_offload_key,
)
from tiers.filesystem.tier import FilesystemTier
from tiers.objectstore.tier import ObjectStoreTier
from tiers.row_layout import RowLayout
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CacheRef, allocate_kv_caches
from tiers.transfer.worker import CPUOffloadingWorker

PATIENCE_S = 60.0
STEP = ScheduleEndContext((), ())
REQUEST = ReqContext("r")
_examples = itertools.count()


@dataclass(frozen=True)
class Shape:
    """``chunks[g]``: how many chunks KV group g has, of ``blocks_per_chunk`` GPU blocks each. ``skip``: the
    load begins so many blocks into the first chunk of each group.
    """

    page_sizes: tuple[int, ...]
    group_refs: list[list[CacheRef]]
    blocks_per_chunk: int
    chunks: tuple[int, ...]
    skip: int

    @property
    def blocks(self) -> list[int]:
        """GPU blocks of each group."""
        return [count * self.blocks_per_chunk for count in self.chunks]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    page_sizes = tuple(draw(st.lists(st.integers(1, 9000), min_size=1, max_size=3)))
    indices = st.lists(st.sampled_from(range(len(page_sizes))), min_size=1, unique=True)
    groups = draw(st.lists(indices, min_size=1, max_size=3))
    refs = [[CacheRef(idx, draw(st.integers(1, page_sizes[idx]))) for idx in group] for group in groups]
    blocks_per_chunk = draw(st.integers(1, 4))
    chunks = tuple(draw(st.integers(0, 3)) for _ in groups[1:])
    return Shape(page_sizes, refs, blocks_per_chunk, (1, *chunks), draw(st.integers(0, blocks_per_chunk - 1)))


class Stack:
    """A GPU, a CPU tier with just enough slots, and one tier behind it, driven by hand."""

    def __init__(self, shape: Shape, make: Callable[[memoryview], SecondaryTierManager]) -> None:
        self.shape = shape
        total, slots = sum(shape.blocks), sum(shape.chunks)
        self.kv = allocate_kv_caches(2 * total, shape.page_sizes, group_refs=shape.group_refs)
        for tensor in self.kv.tensors:
            tensor.random_(-128, 128)
        self.memory = HostMemory(slots, RowLayout(shape.page_sizes, shape.blocks_per_chunk))
        self.worker = CPUOffloadingWorker(self.kv, shape.blocks_per_chunk, self.memory)
        self.tier = make(self.memory.view)
        primary = CPUPrimaryTierOffloadingManager(slots, self.memory.view, enable_events=True)
        self.manager = TieringOffloadingManager(primary, [self.tier])
        self.manager.on_new_request(REQUEST)
        self.keys = [
            make_offload_key(bytes([group, chunk]) * 16, group)
            for group, count in enumerate(shape.chunks)
            for chunk in range(count)
        ]
        self._jobs = itertools.count()

    def store(self, blocks: Sequence[int]) -> None:
        """GPU → CPU → the tier behind, all chunks, and forget them in the CPU tier."""
        output = self.manager.prepare_store(self.keys, REQUEST)
        assert output is not None
        whole = GPULoadStoreSpec(blocks, self.shape.blocks, [0] * len(self.shape.chunks))
        self._copy(whole, output.store_spec)
        self.manager.complete_store(self.keys, REQUEST)
        self._until(lambda: not self.manager.has_pending_work())
        self.manager.reset_cache()
        self.memory.tensor.zero_()

    def load(self, blocks: Sequence[int], sizes: Sequence[int]) -> None:
        """The tier behind → CPU → GPU, each group from its ``skip``-th block on."""
        self._until(lambda: {self.manager.lookup(key, REQUEST) for key in self.keys} == {LookupResult.HIT})
        cpu = self.manager.prepare_load(self.keys, REQUEST)
        self._copy(cpu, GPULoadStoreSpec(blocks, sizes, [self.shape.skip if size else 0 for size in sizes]))
        self.manager.complete_load(self.keys, REQUEST)

    def _copy(self, source: LoadStoreSpec, destination: LoadStoreSpec) -> None:
        job_id = next(self._jobs)
        self.worker.transfer_async(job_id, source, destination)
        self.worker.wait([job_id])
        (result,) = self.worker.get_finished()
        assert result.success

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, "it never came"
            self.manager.on_schedule_end(STEP)
            time.sleep(0.001)

    def close(self) -> None:
        self.manager.shutdown()
        self.worker.shutdown()
        self.memory.close()


def survives(shape: Shape, make: Callable[[memoryview], SecondaryTierManager]) -> None:
    """Store the first half of the GPU's blocks, load them into the second, and compare what counts."""
    stack = Stack(shape, make)
    try:
        total = sum(shape.blocks)
        before = [tensor.clone() for tensor in stack.kv.tensors]
        sources = list(range(total))[::-1]
        stack.store(sources)
        wanted, sizes, first = list[int](), list[int](), 0
        for count in shape.blocks:
            skipped = min(shape.skip, count)
            wanted += sources[first + skipped : first + count]
            sizes.append(count - skipped)
            first += count
        targets = [total + block for block in wanted]
        stack.load(targets, sizes)
        copied = dict[tuple[int, int], tuple[int, int]]()
        groups = [group for group, size in enumerate(sizes) for _ in range(size)]
        for group, source, target in zip(groups, wanted, targets, strict=True):
            for ref in shape.group_refs[group]:
                copied[ref.tensor_idx, target] = (source, ref.page_bytes)
        for idx, (old, now) in enumerate(zip(before, stack.kv.tensors, strict=True)):
            for block in range(2 * total):
                source, size = copied.get((idx, block), (block, 0))
                assert torch.equal(now[block, :size], old[source, :size]), "a block came back changed"
                assert torch.equal(now[block, size:], old[block, size:]), "a neighbour was overwritten"
    finally:
        stack.close()


@given(shape=shapes())
@settings(max_examples=40, deadline=None)
def test_through_files(shape: Shape) -> None:
    """GPU → CPU → files → CPU → GPU, with pages of any size, several tensors and groups, and loads that begin
    inside a chunk.
    """
    with tempfile.TemporaryDirectory() as folder:
        survives(shape, lambda view: FilesystemTier(None, view, path=folder))


@given(shape=shapes())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_through_an_object_store(bucket: Bucket, shape: Shape) -> None:
    """GPU → CPU → a bucket of a real S3 server → CPU → GPU."""
    url, prefix = bucket.server.url, f"example-{next(_examples)}"
    survives(
        shape, lambda view: ObjectStoreTier(None, view, bucket=bucket.name, prefix=prefix, endpoint_url=url)
    )
