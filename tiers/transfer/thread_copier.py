"""Copies between two regions of the CPU's own memory, on threads of their own.

One thread a direction keeps the order. It cuts a large transfer into more parts than there are threads to
copy them: one core alone does not fill the memory's bandwidth, and a thread that loses its core to the engine
for a while must not hold up a whole half. All threads are there before the first copy, so that none fails, or
is left half done, for want of one.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from tiers.errors import TierError
from tiers.transfer.block_copies import BlockCopies
from tiers.transfer.copier import CopyOutcome

PART_BYTES: Final = 2 << 20
"""A part of fewer bytes is not worth handing to a thread."""

PARTS_A_THREAD: Final = 4

log = logging.getLogger(__name__)


class ThreadCopier:
    """``threads``: how many copy one transfer together. Raises ``TierError`` if there cannot be so many."""

    def __init__(self, name: str, threads: int) -> None:
        self.max_parts = PARTS_A_THREAD * threads
        self._order = started(1, f"kvbus-{name}")
        try:
            self._copying = started(threads, f"kvbus-{name}-copy")
        except BaseException:
            self._order.shutdown()
            raise

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
        copying: list[Future[None]] = []
        try:
            for part in parts:
                copying.append(self._copying.submit(part.run))
        finally:
            wait(copying)  # all of them, also behind a failure: its slots are given to others
        for one in copying:
            one.result()


def started(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads are there already: each begins with a task that waits for the others."""
    pool, meeting = ThreadPoolExecutor(threads, thread_name_prefix=name), threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(meeting.wait)
        meeting.wait()
    except BaseException as error:
        meeting.abort()
        pool.shutdown(cancel_futures=True)
        if not isinstance(error, RuntimeError):
            raise
        raise TierError(
            f"{threads} threads cannot be started: {error}",
            next_step="Allow this process more threads, or give fewer.",
        ) from error
    return pool


class FutureOutcome:
    """Copies on a thread."""

    def __init__(self, future: Future[CopyOutcome]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def outcome(self) -> CopyOutcome:
        return self._future.result()
