"""What events cost a run: the same requests through the same tiers, once with voices, once in silence.

GPU, CPU and files, real bytes, a synthetic trace. With voices every tier makes its events, which are
described, translated, encoded and sent on a socket each; in silence none of that happens. Nobody listens: a
reader's work is the reader's. Beside the whole, the share that the engine's own thread spends speaking.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.figures import Figure, Section, rate
from tiers import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from tiers.filesystem.tier import FilesystemTier
from tiers.gpu.pool import GPUBlockPool
from tiers.keys import OffloadKey
from tiers.serving.engine import ServingEngine
from tiers.serving.prompt import Prompt, prompts
from tiers.serving.synthetic import ChatTraffic, synthetic
from tiers.serving.torch_device import TorchDevice
from tiers.serving.workload import drive
from tiers.voice.announcer import Announcer
from tiers.voice.description import BlockDescription
from tiers.voice.voices import Address, Drain

SIZES: Final = (64 << 10, 512 << 10, 2 << 20)
REQUESTS: Final = {64 << 10: 200, 512 << 10: 60, 2 << 20: 25}
GPU_BLOCKS, CPU_BLOCKS, FS_BLOCKS, BLOCK_TOKENS = 96, 128, 256, 16
TRAFFIC: Final = ChatTraffic(conversations=16, max_blocks=32)


class TimedAnnouncer(Announcer):
    """Knows how long the engine's thread was with it."""

    seconds = 0.0

    def describe(self, key: OffloadKey, description: BlockDescription) -> None:
        began = time.perf_counter()
        super().describe(key, description)
        self.seconds += time.perf_counter() - began

    def drain(self) -> Drain:
        began = time.perf_counter()
        drained = super().drain()
        self.seconds += time.perf_counter() - began
        return drained


def run(*, rounds: int) -> Section:
    """Blocks a second with voices against in silence, at three block sizes."""
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="kvbus-bench-") as folder:
        for size in SIZES:
            figures += compared(Path(folder), size, rounds=rounds)
    sizes = f"{GPU_BLOCKS}/{CPU_BLOCKS}/{FS_BLOCKS} blocks on GPU (a CPU tensor), CPU, disk"
    note = f"{sizes}; {rounds} rounds in turn"
    return Section("run", note, tuple(figures))


def compared(folder: Path, size: int, *, rounds: int) -> list[Figure]:
    some = list(prompts(synthetic(7, requests=REQUESTS[size], traffic=TRAFFIC), BLOCK_TOKENS))
    blocks = sum(map(len, some))
    quiet: list[float] = []
    loud: list[float] = []
    shares: list[float] = []
    for number in range(rounds):
        seconds, _ = served(folder / f"quiet-{size}-{number}", some, size=size, speaks=False)
        quiet.append(blocks / seconds)
        seconds, speaking = served(folder / f"loud-{size}-{number}", some, size=size, speaks=True)
        loud.append(blocks / seconds)
        shares.append(100 * speaking / seconds)
    how = f"{size >> 10} KiB a block"
    return [
        rate(f"{how}, with events", "blocks/s", loud, against="in silence", base=quiet, reach="≥ 0.97×"),
        rate(f"{how}: of it, the engine's thread speaking", "% of the time", shares, reach="≤ 3"),
    ]


def served(folder: Path, some: Sequence[Prompt], *, size: int, speaks: bool) -> tuple[float, float]:
    """Seconds for all requests, and those that the engine's thread spoke."""
    with ExitStack() as opened:
        device = TorchDevice(GPU_BLOCKS, CPU_BLOCKS, block_bytes=size, device="cpu")
        opened.callback(device.close)
        primary = CPUPrimaryTierOffloadingManager(CPU_BLOCKS, device.cpu_rows, enable_events=speaks)
        disk = FilesystemTier(None, device.cpu_rows, path=folder, max_blocks=FS_BLOCKS, enable_events=speaks)
        opened.callback(disk.shutdown)
        manager = TieringOffloadingManager(primary, [disk])
        gpu = GPUBlockPool(GPU_BLOCKS, BLOCK_TOKENS, enable_events=speaks)
        announcer = None
        if speaks:
            where = {name: Address() for name in ("gpu", "cpu", "fs")}
            announcer = opened.enter_context(TimedAnnouncer(manager, where, gpu=gpu, when_full="wait"))
        engine = ServingEngine(gpu, manager, device=device, speaker=announcer)
        began = time.perf_counter()
        drive(engine, some)
        return time.perf_counter() - began, 0.0 if announcer is None else announcer.seconds
