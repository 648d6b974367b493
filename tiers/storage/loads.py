"""The loads of a storage tier, and what they bring to light.

A block is pinned from the job to its end, so that it is not evicted under its reader. A block that is
corrupt, or gone behind the tier's back, leaves the books at once and is announced as removed; any other
error may pass, and the block stays for others. In every case the request that met it is not offered the
block again. A load that failed in part names what did arrive.
"""

from __future__ import annotations

from tiers.jobs import TransferJob
from tiers.keys import OffloadKey
from tiers.storage.async_lookup import AsyncLookup
from tiers.storage.block_tasks import Read, reason_of
from tiers.storage.block_work import BlockWork, ReadsDone
from tiers.storage.books import StorageBooks
from tiers.storage.job_progress import JobProgress


class Loads:
    """``questions`` hears which blocks a request could not have."""

    def __init__(self, books: StorageBooks, work: BlockWork, *, questions: AsyncLookup) -> None:
        self._books = books
        self._work = work
        self._questions = questions
        self._under_way: set[JobProgress] = set()

    def __len__(self) -> int:
        """Jobs submitted and not over."""
        return len(self._under_way)

    def submit(self, job: TransferJob) -> None:
        pairs = list(zip(job.keys, job.block_ids.tolist(), strict=True))
        progress = JobProgress(job, len(pairs))
        self._under_way.add(progress)
        self._books.begin(progress)
        shelf, reads = self._books.shelf, list[Read]()
        for key, slot in pairs:
            if shelf.is_resident(key):
                progress.pins.append((key, shelf.pin(key)))
                reads.append(Read(key, slot))
            else:
                progress.resolve(key, "absent")
        self._work.read(progress, reads)
        self._end_if_over(progress)

    def book(self, done: ReadsDone) -> None:
        """Some blocks of a job were read, or not."""
        books, progress = self._books, done.job
        progress.moved(done.begun, done.ended)
        for outcome in done.blocks:
            progress.resolve(outcome.key, reason_of(outcome.error) if outcome.error else None)
            if outcome.error is None:
                books.counts["loads"] += 1
                progress.blocks += 1
        self._end_if_over(progress)

    def _end_if_over(self, progress: JobProgress) -> None:
        if progress.unresolved:
            return
        self._under_way.remove(progress)
        corrupt = self._take_out(progress, "corrupt")
        missing = self._take_out(progress, "missing")
        self._books.events.removed(corrupt, "corrupt")
        self._books.events.removed(missing, "deleted")
        for key in missing:
            self._books.shelf.left(key)
        self._work.delete(corrupt)
        self._questions.mark_miss(progress.failures, progress.job.req_context.req_id)
        self._books.end(progress, used=progress.succeeded)

    def _take_out(self, progress: JobProgress, failure: str) -> list[OffloadKey]:
        """Blocks that failed in this way leave, unless somebody else has taken them out already."""
        shelf, taken = self._books.shelf, list[OffloadKey]()
        for key, kept in progress.pins:
            if progress.failures.get(key) == failure and shelf.is_same(key, kept):
                shelf.expel(key)
                taken.append(key)
        return taken

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert all(progress.unresolved > 0 for progress in self._under_way), "a job that is over is known"
