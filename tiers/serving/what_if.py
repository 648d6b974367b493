"""What would have been hit with other sizes and policies: the same engine over the same requests, no bytes.

Every run is the real scheduler with the real books of each tier; only the memory is left out. Runs know
nothing of each other, so they go to as many processes as there are. Nobody waits for a process that has died,
and none outlives the one that asked.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection

from tiers.errors import TierError
from tiers.gpu.pool import GPUBlockPool
from tiers.memory import MemoryTier
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.serving.device import BooksOnly
from tiers.serving.engine import ServingEngine
from tiers.serving.prompt import Prompt
from tiers.serving.stack_spec import StackSpec
from tiers.serving.workload import RunCount, drive
from tiers.tiering.manager import TieringOffloadingManager

Outcomes = Generator[tuple[StackSpec, RunCount], None, None]


def what_if(spec: StackSpec, prompts: Iterable[Prompt]) -> RunCount:
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


def what_if_each(runs: Sequence[StackSpec], prompts: Sequence[Prompt], *, processes: int = 1) -> Outcomes:
    """Each run with what came of it, in the order of ``runs``, as it is done. Closing it early ends the rest.

    Raises ``TierError`` if a process dies, and what ``what_if`` raises.
    """
    if processes == 1:
        yield from ((spec, what_if(spec, prompts)) for spec in runs)
        return
    context = multiprocessing.get_context("spawn")
    leash, held = context.Pipe(duplex=False)
    with ExitStack() as opened:
        opened.callback(leash.close)
        pool = ProcessPoolExecutor(processes, context, _Worker.begin, (prompts, leash))
        opened.callback(pool.shutdown, cancel_futures=True)
        opened.callback(held.close)  # first of all: whoever is at work has an end, and is not waited for
        try:
            yield from zip(runs, pool.map(_Worker.run, runs), strict=True)
        except (BrokenProcessPool, BrokenPipeError) as error:
            raise TierError(
                "a process died before its what-if was done",
                next_step="Look for what ended it, want of memory perhaps; it may work with fewer requests.",
            ) from error


class _Worker:
    """What one process keeps between two runs: the requests."""

    prompts: Sequence[Prompt] = ()

    @classmethod
    def begin(cls, prompts: Sequence[Prompt], leash: Connection) -> None:
        """``leash``: nothing comes through it but its end, when the process that asked wants no more."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides when to end
        threading.Thread(target=cls._end_with, args=(leash,), daemon=True).start()
        cls.prompts = prompts

    @staticmethod
    def _end_with(leash: Connection) -> None:
        with suppress(EOFError, OSError):
            leash.recv_bytes()
        os._exit(0)

    @classmethod
    def run(cls, spec: StackSpec) -> RunCount:
        return what_if(spec, cls.prompts)
