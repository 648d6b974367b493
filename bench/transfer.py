"""Blocks copied between a KV cache and the CPU tier, next to one large copy of as many bytes.

Timed from submission to the end, as a caller sees it: making the list of pieces, handing it to a thread, the
copy. `contiguous` is what a fresh pool gives out; `scattered` has every block and every slot at random, so no
two are neighbours. The large copy goes between the same two memories, the same way, on as many threads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch

from bench.figures import Figure, Section, rate
from tiers.row_layout import RowLayout
from tiers.specs import CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CanonicalKVCaches, allocate_kv_caches
from tiers.transfer.worker import CPUOffloadingWorker

BLOCK_SIZES: Final = {"64 KiB": 64 << 10, "512 KiB": 512 << 10, "2 MiB": 2 << 20}
POOL_BYTES: Final = 384 << 20
COPY_BYTES: Final = 128 << 20
QUIET_SECONDS: Final = 0.02
"""torch's own threads spin for some milliseconds after a large copy, on a core that the next one needs."""


def transfer(*, rounds: int, device: str | None = None) -> Section:
    """GB/s of both directions; with CUDA on the GPU, else between two regions of the CPU's memory."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    reach = "≥ 0.9 at 2 MiB" if device == "cuda" else "≥ 0.85"
    figures: list[Figure] = []
    for name, block_bytes in BLOCK_SIZES.items():
        with memories(block_bytes, device) as (kv_caches, memory):
            figures += compared(name, kv_caches, memory, rounds=rounds, reach=reach)
    note = f"{COPY_BYTES >> 20} MiB a copy, {rounds} rounds, on {device}; {torch.get_num_threads()} threads"
    return Section("transfer", note, tuple(figures))


@contextmanager
def memories(block_bytes: int, device: str) -> Iterator[tuple[CanonicalKVCaches, HostMemory]]:
    blocks = POOL_BYTES // block_bytes
    kv_caches = allocate_kv_caches(blocks, [block_bytes], device=device)
    memory = HostMemory(blocks, RowLayout(kv_caches.page_sizes), pin=device == "cuda")
    kv_caches.tensors[0].random_(-128, 127)
    memory.tensor.fill_(1)  # the first touch of a page is the kernel's work
    yield kv_caches, memory
    memory.close()


def compared(
    name: str, kv_caches: CanonicalKVCaches, memory: HostMemory, *, rounds: int, reach: str
) -> Iterator[Figure]:
    """Each order and each way."""
    count = COPY_BYTES // kv_caches.page_sizes[0]
    chance = random.Random(7)
    first = list(range(count))
    anywhere = [chance.sample(range(kv_caches.num_blocks), count) for _ in range(2)]
    large = kv_caches.tensors[0][:count], memory.tensor[:count]
    worker = CPUOffloadingWorker(kv_caches, 1, memory)
    for order, (blocks, slots) in {"contiguous": (first, first), "scattered": anywhere}.items():
        gpu, cpu = GPULoadStoreSpec(blocks, [count], [0]), CPULoadStoreSpec(slots)
        for way, specs, (source, destination) in (
            ("store", (gpu, cpu), large),
            ("load", (cpu, gpu), large[::-1]),
        ):
            one, many = in_turn(
                partial(copy_one, source, destination), partial(copy_many, worker, *specs), rounds
            )
            what = f"{way} {name}, {order}"
            yield rate(what, "GB/s", many, against="one large copy", base=one, reach=reach)
    worker.shutdown()


def in_turn(
    one: Callable[[], None], many: Callable[[], None], rounds: int
) -> tuple[list[float], list[float]]:
    """GB/s of both, a round each in turn, after one that warms up."""
    figures: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for copy, found in zip((one, many), figures, strict=True):
            time.sleep(QUIET_SECONDS)
            began = time.perf_counter()
            copy()
            found.append(COPY_BYTES / (time.perf_counter() - began) / 1e9)
    return figures[0][1:], figures[1][1:]


def copy_one(source: torch.Tensor, destination: torch.Tensor) -> None:
    destination.copy_(source, non_blocking=True)
    if source.is_cuda or destination.is_cuda:
        torch.cuda.synchronize()


def copy_many(worker: CPUOffloadingWorker, src: LoadStoreSpec, dst: LoadStoreSpec) -> None:
    worker.transfer_async(0, src, dst)
    worker.wait([0])
    (result,) = worker.get_finished()
    assert result.success
