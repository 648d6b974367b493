"""A storage tier behind a primary's memory of eight rows, with jobs by hand."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

import numpy as np

from tests.tiers.words import REQUEST, k, keys, say
from tiers import JobResult, LookupResult, ScheduleEndContext, TransferJob
from tiers.storage.tier import StorageTier

ROWS = 8
ROW_BYTES = 8192
PATIENCE_S = 60.0
STEP = ScheduleEndContext((), ())


class Rows:
    """``store`` puts each block's own bytes into rows first; ``load`` says which rows have them again."""

    def __init__(self, make: Callable[[memoryview], StorageTier]) -> None:
        self.memory = memoryview(mmap.mmap(-1, ROWS * ROW_BYTES))
        self.tier = make(self.memory.cast("B", (ROWS, ROW_BYTES)))
        self.tier.on_new_request(REQUEST)
        self._jobs = 0

    def row(self, slot: int) -> memoryview:
        return self.memory[slot * ROW_BYTES : (slot + 1) * ROW_BYTES]

    def store(self, names: str) -> JobResult:
        for slot, key in enumerate(keys(names)):
            self.row(slot)[:] = content(key)
        return self.finish(self.begin(names))

    def load(self, names: str) -> tuple[JobResult, list[bool]]:
        self.memory[:] = bytes(len(self.memory))
        result = self.finish(self.begin(names, load=True))
        return result, [self.row(slot) == content(key) for slot, key in enumerate(keys(names))]

    def begin(self, names: str, *, load: bool = False) -> int:
        slots = np.arange(len(keys(names)), dtype=np.int64)
        self._jobs += 1
        job = TransferJob(self._jobs, keys(names), slots, load, REQUEST)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return self._jobs

    def finish(self, job_id: int) -> JobResult:
        """The result of the only job under way."""
        deadline = time.monotonic() + PATIENCE_S
        while not (results := [*self.tier.get_finished_jobs()]):
            assert time.monotonic() < deadline, "no result"
            time.sleep(0.001)
        self.tier.drain_jobs()  # deletes that follow from it
        self.tier.check_integrity()
        (result,) = results
        assert result.job_id == job_id
        return result

    def find(self, name: str) -> LookupResult:
        """The tier's answer, once it has one."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.tier.lookup(k(name), REQUEST)) is LookupResult.RETRY:
            assert time.monotonic() < deadline, "no answer"
            self.tier.on_schedule_end(STEP)
            time.sleep(0.001)
        return found

    def said(self) -> str:
        return say(self.tier.take_events())


def content(key: bytes) -> bytes:
    """A row's worth of bytes that only this key has."""
    return (key * (ROW_BYTES // len(key) + 1))[:ROW_BYTES]
