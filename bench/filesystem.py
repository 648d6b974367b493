"""The filesystem tier, next to plain ``os.writev`` and ``os.readv`` of the same files.

Both move the same bytes in files of the same size in the same folders, with as many threads that take as much
at a time, and past or through the page cache alike. The plain side makes and names no header, sums nothing
and renames nothing: what is left of its speed is what the tier's care costs. Folders are made beforehand.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.figures import Figure, Section, rate
from tiers import OffloadKey, ReqContext, TransferJob, make_offload_key
from tiers.filesystem.folder import BLOCK_SUFFIX
from tiers.filesystem.tier import FilesystemTier
from tiers.storage.block_kind import BlockKind
from tiers.storage.block_name import block_name
from tiers.storage.block_store import HEADER_BYTES
from tiers.storage.tier import TASK_BYTES

SIZES: Final = (64 << 10, 512 << 10, 2 << 20)
ROUND_BYTES: Final = 64 << 20
THREADS: Final = 16
REQUEST: Final = ReqContext("bench")


def filesystem(*, rounds: int) -> Section:
    """GB/s of payload written and read: 64 KiB, 512 KiB and 2 MiB a block, both ways to the disk."""
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="kvbus-bench-") as root:
        for direct, size in itertools.product((True, False), SIZES):
            figures += compared(Path(root), size, direct=direct, rounds=rounds)
    note = f"{ROUND_BYTES >> 20} MiB a round, {rounds} rounds in turn; {THREADS} threads; no fsync"
    return Section("filesystem", note, tuple(figures))


def compared(root: Path, size: int, *, direct: bool, rounds: int) -> list[Figure]:
    count = ROUND_BYTES // size
    memory = memoryview(mmap.mmap(-1, ROUND_BYTES))
    memory[:] = np.random.default_rng(7).bytes(ROUND_BYTES)
    keys = [make_offload_key(hashlib.sha256(b"%d" % n).digest(), 0) for n in range(count)]
    seconds: dict[str, list[float]] = {name: [] for name in ("write", "plain write", "read", "plain read")}
    for _ in range(rounds):
        with plain(root / "plain", keys, memory, size=size, direct=direct) as (write, read):
            seconds["plain write"].append(timed(write))
            seconds["plain read"].append(timed(read))
        with tier(root / "tier", keys, memory, size=size, direct=direct) as (store, load):
            seconds["write"].append(timed(store))
            seconds["read"].append(timed(load))
    gigabytes = {name: [ROUND_BYTES / s / 1e9 for s in values] for name, values in seconds.items()}
    how = f"{size >> 10} KiB, {'O_DIRECT' if direct else 'page cache'}"
    return [
        rate(
            f"{kind}, {how}",
            "GB/s",
            gigabytes[kind],
            against=f"plain {kind}",
            base=gigabytes[f"plain {kind}"],
            reach="≥ 0.85×",
        )
        for kind in ("write", "read")
    ]


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


Work = tuple[Callable[[], None], Callable[[], None]]
"""Writes all blocks; reads all blocks."""


@contextmanager
def tier(
    root: Path, keys: Sequence[OffloadKey], memory: memoryview, *, size: int, direct: bool
) -> Iterator[Work]:
    """One job each way. The files are gone afterwards, the folders stay."""
    paths = laid_out(root / BlockKind(size).name, keys)
    view = memory.cast("B", (len(keys), size))
    made = FilesystemTier(
        None, view, path=root, direct=direct, read_threads=THREADS // 2, write_threads=THREADS // 2
    )

    def run(number: int, *, load: bool) -> None:
        job = TransferJob(number, list(keys), np.arange(len(keys), dtype=np.int64), load, REQUEST)
        (made.submit_load if load else made.submit_store)(job)
        made.drain_jobs()
        (result,) = made.get_finished_jobs()
        assert result.success

    yield lambda: run(0, load=False), lambda: run(1, load=True)
    made.shutdown()
    for path in paths:
        path.with_name(f"{path.name}{BLOCK_SUFFIX}").unlink()


@contextmanager
def plain(
    root: Path, keys: Sequence[OffloadKey], memory: memoryview, *, size: int, direct: bool
) -> Iterator[Work]:
    """The same files without the tier: opened, written or read in one call, closed."""
    paths = laid_out(root, keys)
    header = memoryview(mmap.mmap(-1, HEADER_BYTES))
    mode = os.O_DIRECT if direct else 0

    def write(number: int) -> None:
        file = os.open(paths[number], os.O_WRONLY | os.O_CREAT | os.O_EXCL | mode, 0o644)
        os.writev(file, [header, memory[number * size : (number + 1) * size]])
        os.close(file)

    def read(number: int) -> None:
        file = os.open(paths[number], os.O_RDONLY | mode)
        os.readv(file, [header, memory[number * size : (number + 1) * size]])
        os.close(file)

    step = max(1, TASK_BYTES // size)
    pieces = [range(start, min(start + step, len(keys))) for start in range(0, len(keys), step)]
    with ThreadPoolExecutor(THREADS) as pool:

        def run(move: Callable[[int], None]) -> None:
            def several(piece: range) -> None:
                for number in piece:
                    move(number)

            for _ in pool.map(several, pieces):
                pass

        yield lambda: run(write), lambda: run(read)
    for path in paths:
        path.unlink()


def laid_out(root: Path, keys: Sequence[OffloadKey]) -> list[Path]:
    """Where the blocks go, in folders that are there."""
    paths = [root / block_name(key) for key in keys]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    return paths
