"""A storage tier's work, cut into tasks for its threads, and what came of it.

The blocks of a job go to several threads, a task carrying about ``task_bytes`` of them: small blocks do not
pay for a hand-over each, large jobs use all threads, and a medium that is slow to answer rather than slow to
carry (an object store) gets a block a task. Which blocks, and when, is decided by those who keep the books.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tiers.argument import whole_number
from tiers.keys import OffloadKey
from tiers.storage.block_store import BlockStore
from tiers.storage.block_tasks import (
    Answers,
    Outcome,
    Read,
    Row,
    Write,
    Written,
    ask_for_blocks,
    delete_blocks,
    read_blocks,
    write_blocks,
)
from tiers.storage.job_progress import JobProgress
from tiers.storage.read_priority import Workers

T = TypeVar("T")
Clock = Callable[[], float]
"""Seconds, never decreasing. Called by the threads too."""


@dataclass(frozen=True, slots=True)
class WritesDone:
    """Some blocks of a store; ``begun`` and ``ended`` are the clock's seconds."""

    job: JobProgress
    blocks: Sequence[Written]
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class ReadsDone:
    """Some blocks of a load."""

    job: JobProgress
    blocks: Sequence[Outcome]
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class DeletesDone:
    """Blocks that were to be deleted, for no block's sake."""

    blocks: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class LookupDone:
    """What is known about the blocks of a batch."""

    batch: int
    answers: Answers


Done = WritesDone | ReadsDone | DeletesDone | LookupDone


class BlockWork:
    """Tasks of at most ``task_bytes``, but at least one block, of ``block_bytes`` each.

    Raises ``TierValueError`` for ``task_bytes`` that are no number from 0 up.
    """

    def __init__(
        self,
        store: BlockStore,
        workers: Workers[Done],
        *,
        row: Row,
        block_bytes: int,
        task_bytes: int,
        clock: Clock,
    ) -> None:
        whole_number("task_bytes", task_bytes, at_least=0)
        self._store = store
        self._workers = workers
        self._row = row
        self._blocks_a_task = max(1, task_bytes // max(1, block_bytes))
        self._clock = clock
        self._asking = 0
        self._is_over = threading.Event()

    @property
    def is_outstanding(self) -> bool:
        return self._workers.outstanding > 0

    @property
    def is_moving(self) -> bool:
        """Whether anything but questions is outstanding."""
        return self._workers.outstanding > self._asking

    def take(self) -> list[Done]:
        """What is done by now."""
        return self._counted(self._workers.take())

    def wait(self) -> list[Done]:
        """What is done, at least one thing if any is outstanding."""
        return self._counted(self._workers.wait())

    def _counted(self, results: list[Done]) -> list[Done]:
        self._asking -= sum(isinstance(done, LookupDone) for done in results)
        return results

    def write(self, job: JobProgress, writes: Sequence[Write]) -> None:
        self._workers.submit(
            [partial(self._write, job, piece) for piece in self._pieces(writes)], is_load=False
        )

    def read(self, job: JobProgress, reads: Sequence[Read]) -> None:
        self._workers.submit([partial(self._read, job, piece) for piece in self._pieces(reads)], is_load=True)

    def delete(self, keys: Sequence[OffloadKey]) -> None:
        self._workers.submit([partial(self._delete, piece) for piece in self._pieces(keys)], is_load=False)

    def ask(self, batch: int, keys: Sequence[OffloadKey]) -> None:
        self._workers.submit([partial(self._ask, batch, keys)], is_load=True)
        self._asking += 1

    def shutdown(self) -> None:
        """What has not begun never will, and nothing more is asked; then the store is closed."""
        self._is_over.set()
        self._workers.shutdown()
        self._asking = 0
        self._store.close()

    def _pieces(self, blocks: Sequence[T]) -> Iterator[Sequence[T]]:
        for start in range(0, len(blocks), self._blocks_a_task):
            yield blocks[start : start + self._blocks_a_task]

    # On the threads

    def _write(self, job: JobProgress, writes: Sequence[Write]) -> Done:
        begun = self._clock()
        return WritesDone(job, write_blocks(self._store, writes, row=self._row), begun, self._clock())

    def _read(self, job: JobProgress, reads: Sequence[Read]) -> Done:
        begun = self._clock()
        return ReadsDone(job, read_blocks(self._store, reads, row=self._row), begun, self._clock())

    def _delete(self, keys: Sequence[OffloadKey]) -> Done:
        return DeletesDone(delete_blocks(self._store, keys))

    def _ask(self, batch: int, keys: Sequence[OffloadKey]) -> Done:
        return LookupDone(batch, ask_for_blocks(self._store, keys, is_stopped=self._is_over.is_set))
