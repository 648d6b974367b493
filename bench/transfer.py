"""Blocks copied between a KV cache and the CPU tier, next to plain copies of as many bytes.

Timed from submission to the end, as a caller sees it: making the list of pieces, handing it to a thread, the
copy. `contiguous` is what a fresh pool gives out; `scattered` has every block and every slot at random, so no
two are neighbours. Two plain copies go between the same two memories, the same way, on as many threads: one
large one of neighbouring bytes, and, on the CPU, memcpy of the very same blocks in the same order.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    with moving(kv_caches, memory) as worker, ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for order, (blocks, slots) in {"contiguous": (first, first), "scattered": anywhere}.items():
            gpu, cpu = GPULoadStoreSpec(blocks, [count], [0]), CPULoadStoreSpec(slots)
            there = kv_caches.tensors[0], blocks
            here = memory.tensor, slots
            for way, specs, (source, destination) in (
                ("store", (gpu, cpu), (there, here)),
                ("load", (cpu, gpu), (here, there)),
            ):
                plain = {"one large copy": partial(copy_one, source[0][:count], destination[0][:count])}
                if kv_caches.device.type == "cpu":
                    plain["memcpy of them"] = partial(
                        copy_each, addresses(*source), addresses(*destination), kv_caches.page_sizes[0], pool
                    )
                found = in_turn([partial(copy_many, worker, *specs), *plain.values()], rounds)
                what, wanted = f"{way} {name}, {order}", list(plain)[-1]
                for against, base in zip(plain, found[1:], strict=True):
                    wish = reach if against == wanted else ""
                    yield rate(what, "GB/s", found[0], against=against, base=base, reach=wish)


@contextmanager
def moving(kv_caches: CanonicalKVCaches, memory: HostMemory) -> Iterator[CPUOffloadingWorker]:
    worker = CPUOffloadingWorker(kv_caches, 1, memory)
    yield worker
    worker.shutdown()


def in_turn(copies: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """GB/s of each, a round each in turn, after one that warms up."""
    figures: list[list[float]] = [[] for _ in copies]
    for _ in range(rounds + 1):
        for copy, found in zip(copies, figures, strict=True):
            time.sleep(QUIET_SECONDS)
            began = time.perf_counter()
            copy()
            found.append(COPY_BYTES / (time.perf_counter() - began) / 1e9)
    return [found[1:] for found in figures]


def addresses(memory: torch.Tensor, rows: Sequence[int]) -> list[int]:
    """Where these rows begin."""
    start, row_bytes = memory.data_ptr(), memory.stride(0)
    return [start + row * row_bytes for row in rows]


def copy_each(
    sources: Sequence[int], destinations: Sequence[int], nbytes: int, pool: ThreadPoolExecutor
) -> None:
    """memcpy from each address to its partner, shared out between the pool's threads."""
    share = -(-len(sources) // torch.get_num_threads())

    def some(begin: int) -> None:
        for source, destination in zip(
            sources[begin : begin + share], destinations[begin : begin + share], strict=True
        ):
            ctypes.memmove(destination, source, nbytes)

    for _ in pool.map(some, range(0, len(sources), share)):
        pass


def copy_one(source: torch.Tensor, destination: torch.Tensor) -> None:
    destination.copy_(source, non_blocking=True)
    if source.is_cuda or destination.is_cuda:
        torch.cuda.synchronize()


def copy_many(worker: CPUOffloadingWorker, src: LoadStoreSpec, dst: LoadStoreSpec) -> None:
    worker.transfer_async(0, src, dst)
    worker.wait([0])
    (result,) = worker.get_finished()
    assert result.success
