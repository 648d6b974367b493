"""What would have been hit with other sizes and policies: the same engine over the same requests, no bytes.

Every run is the real scheduler with the real books of each tier; only the memory is left out. Runs know
nothing of each other, so they go to as many processes as there are.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence

from tiers.gpu.pool import GPUBlockPool
from tiers.memory import MemoryTier
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.serving.device import BooksOnly
from tiers.serving.engine import ServingEngine
from tiers.serving.prompt import Prompt
from tiers.serving.stack_spec import StackSpec
from tiers.serving.workload import RunCount, drive
from tiers.tiering.manager import TieringOffloadingManager

Source = Callable[[], Sequence[Prompt]]
"""Gives the requests; has to be picklable where there is more than one process."""


def what_if(spec: StackSpec, prompts: Sequence[Prompt]) -> RunCount:
    """Serve all ``prompts`` on books of the sizes of ``spec``. A tier behind the CPU is its bound in blocks,
    whatever its type.
    """
    behind = [
        MemoryTier(tier_type=tier.name, max_blocks=tier.most_blocks(spec.block_bytes)) for tier in spec.behind
    ]
    primary = CPUPrimaryTierOffloadingManager(spec.cpu_blocks, cache_policy=spec.policy)
    gpu = GPUBlockPool(spec.gpu_blocks, block_size=1)
    engine = ServingEngine(gpu, TieringOffloadingManager(primary, behind), device=BooksOnly())
    return drive(engine, prompts)


def what_if_each(
    runs: Sequence[StackSpec], source: Source, *, processes: int = 1
) -> Iterator[tuple[StackSpec, RunCount]]:
    """Each run with what came of it, in the order of ``runs``, as it is done. Leaving early ends the rest."""
    if processes == 1:
        prompts = source()
        yield from ((spec, what_if(spec, prompts)) for spec in runs)
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
    def run(cls, spec: StackSpec) -> RunCount:
        return what_if(spec, cls.prompts)
