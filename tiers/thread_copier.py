"""Copies between two regions of the CPU's own memory, on threads of their own.

One thread a direction keeps the order. It cuts a large transfer into more parts than there are threads to
copy them: one core alone does not fill the memory's bandwidth, and a thread that loses its core to the engine
for a while must not hold up a whole half.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from tiers.block_copies import BlockCopies
from tiers.copier import CopyOutcome

PART_BYTES: Final = 2 << 20
"""A part of fewer bytes is not worth handing to a thread."""

PARTS_A_THREAD: Final = 4

log = logging.getLogger(__name__)


class ThreadCopier:
    """``threads``: how many copy one transfer together."""

    def __init__(self, name: str, threads: int) -> None:
        self.max_parts = PARTS_A_THREAD * threads
        self._order = ThreadPoolExecutor(1, thread_name_prefix=f"kvbus-{name}")
        self._copying = ThreadPoolExecutor(threads, thread_name_prefix=f"kvbus-{name}-copy")

    def begin(self, copies: BlockCopies) -> FutureOutcome:
        return FutureOutcome(self._order.submit(self._copy, copies))

    def shutdown(self) -> None:
        self._order.shutdown()
        self._copying.shutdown()

    def _copy(self, copies: BlockCopies) -> CopyOutcome:
        began = time.perf_counter()
        failure = None
        try:
            self._copy_parts(copies.parts(max(1, min(self.max_parts, copies.nbytes // PART_BYTES))))
        except Exception as error:
            log.warning("a copy of %d bytes failed: %s", copies.nbytes, error, exc_info=True)
            failure = type(error).__name__
        return CopyOutcome(time.perf_counter() - began, failure)

    def _copy_parts(self, parts: list[BlockCopies]) -> None:
        if len(parts) == 1:
            parts[0].run()
            return
        copying = [self._copying.submit(part.run) for part in parts]
        wait(copying)  # all of them, also behind a failure: its slots are given to others
        for part in copying:
            part.result()


class FutureOutcome:
    """Copies on a thread."""

    def __init__(self, future: Future[CopyOutcome]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def outcome(self) -> CopyOutcome:
        return self._future.result()
