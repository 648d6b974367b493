"""What would have been hit with other sizes and policies: the same engine over the same requests, no bytes.

Every run is the real scheduler with the real books of each tier; only the memory is left out. Runs know
nothing of each other, so they go to as many processes as there are.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tiers.device import BooksOnly
from tiers.engine import Engine
from tiers.gpu import GPUBlockPool
from tiers.memory import MemoryTier
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.prompt import Prompt
from tiers.tiering import TieringOffloadingManager
from tiers.workload import Count, drive

Source = Callable[[], Sequence[Prompt]]
"""Gives the requests; has to be picklable where there is more than one process."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """One run: blocks in the GPU and the CPU tier, its cache policy, and the tiers behind by name, in order,
    with their most blocks (None: no bound).
    """

    gpu_blocks: int
    cpu_blocks: int
    policy: str = "lru"
    behind: tuple[tuple[str, int | None], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers in the order of ``Count.hits``."""
        return ("gpu", "cpu", *(name for name, _ in self.behind))


def what_if(sizes: Sizes, prompts: Sequence[Prompt]) -> Count:
    """Serve all ``prompts`` on books of these sizes."""
    behind = [MemoryTier(tier_type=name, max_blocks=blocks) for name, blocks in sizes.behind]
    primary = CPUPrimaryTierOffloadingManager(sizes.cpu_blocks, cache_policy=sizes.policy)
    gpu = GPUBlockPool(sizes.gpu_blocks, block_size=1)
    engine = Engine(gpu, TieringOffloadingManager(primary, behind), device=BooksOnly())
    return drive(engine, prompts)


def what_if_each(
    runs: Sequence[Sizes], source: Source, *, processes: int = 1
) -> Iterator[tuple[Sizes, Count]]:
    """Each run with what came of it, in the order of ``runs``, as it is done. Leaving early ends the rest."""
    if processes == 1:
        prompts = source()
        yield from ((sizes, what_if(sizes, prompts)) for sizes in runs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _Worker.begin, (source,)) as pool:
        yield from zip(runs, pool.imap(_Worker.run, runs), strict=True)


class _Worker:
    """What one process keeps between two runs: the requests, read once."""

    prompts: Sequence[Prompt] = ()

    @classmethod
    def begin(cls, source: Source) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides when to end
        cls.prompts = source()

    @classmethod
    def run(cls, sizes: Sizes) -> Count:
        return what_if(sizes, cls.prompts)
