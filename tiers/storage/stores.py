"""The stores of a storage tier, from the job to the event.

A block that is here already is a use and nothing more. One that another job is writing shares that job's
fate. One that is leaving waits until it is gone, so that a delete never overtakes the store that follows
it; so does one whose room is still being deleted. Every other block gets its room by the books at once and
its bytes when the victims are deleted: one thread does both, in this order, so that nobody waits for a step
in between. Where a victim cannot be deleted the block gets another one. A job's new blocks become readable
together, and one event says so. A block that fails gives its room back at once, unless its put failed in a
way that leaves open whether it lies there: then it takes its room until it is deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tiers.jobs import TransferJob
from tiers.keys import OffloadKey
from tiers.storage.async_lookup import AsyncLookup
from tiers.storage.block_tasks import Outcome, Write, reason_of
from tiers.storage.block_work import BlockWork, WritesDone
from tiers.storage.books import StorageBooks
from tiers.storage.job_progress import JobProgress
from tiers.storage.kept import Room


class Wanted(Struct, frozen=True, eq=False):
    """A block that a job wants stored, from this slot of the primary."""

    job: JobProgress
    key: OffloadKey
    slot: int


class Stores:
    """``questions`` hears which blocks the tier begins to write itself."""

    def __init__(self, books: StorageBooks, work: BlockWork, *, questions: AsyncLookup) -> None:
        self._books = books
        self._work = work
        self._questions = questions
        self._under_way: set[JobProgress] = set()
        self._joined: dict[OffloadKey, list[Wanted]] = {}
        """Blocks that another job is writing."""
        self._deferred: dict[OffloadKey, list[Wanted]] = {}
        """Blocks that wait until another one, or an older self, is deleted."""
        self._waits_for: dict[OffloadKey, OffloadKey] = {}

    def __len__(self) -> int:
        """Jobs submitted and not over."""
        return len(self._under_way)

    def submit(self, job: TransferJob) -> None:
        """Begin a store; of a key named twice, the first slot counts."""
        slots: dict[OffloadKey, int] = {}
        for key, slot in zip(job.keys, job.block_ids.tolist(), strict=True):
            slots.setdefault(key, slot)
        progress = JobProgress(job, len(slots))
        self._under_way.add(progress)
        self._books.begin(progress)
        self._place([Wanted(progress, key, slot) for key, slot in slots.items()])
        if not slots:
            self._end([progress])

    def _place(self, blocks: Iterable[Wanted]) -> None:
        """Each goes where it belongs. Evictions are announced together, before anything is written."""
        rooms: list[Room] = []
        writes: dict[JobProgress, list[Write]] = {}
        over: list[JobProgress] = []
        shelf = self._books.shelf
        for block in blocks:
            job, key = block.job, block.key
            if shelf.is_resident(key):
                job.pins.append((key, shelf.pin(key)))
                over += [job] if job.resolve(key) else []
            elif shelf.is_landing(key):
                self._joined.setdefault(key, []).append(block)
            elif (first := self._must_go_first(key)) is not None:
                self._deferred.setdefault(first, []).append(block)
                self._waits_for[key] = first
            elif (room := self._books.begin_landing(key)) is None:
                over += [job] if job.resolve(key, "no_room") else []
            else:
                self._questions.withdraw(key)
                job.landing[key] = True
                rooms.append(room)
                writes.setdefault(job, []).append(Write(key, block.slot, room.victims))
        self._books.evicted(rooms)
        for job, blocks_of_job in writes.items():
            self._work.write(job, blocks_of_job)
        self._end(over)

    def _must_go_first(self, key: OffloadKey) -> OffloadKey | None:
        """The leaving block that this one waits for, if it has to.

        It never overtakes the same block of an earlier job, or two jobs could wait for each other.
        """
        shelf = self._books.shelf
        if key in self._waits_for:
            return self._waits_for[key]
        if shelf.is_stranded(key) and not shelf.is_leaving(key):
            shelf.retry(key)
            self._work.delete([key])
        return key if shelf.is_leaving(key) else shelf.blocking_delete(self._books.block_bytes)

    def book(self, done: WritesDone) -> None:
        """Some blocks of a job were written, or not."""
        done.job.moved(done.begun, done.ended)
        over: list[JobProgress] = []
        again: list[Wanted] = []
        for written in done.blocks:
            for outcome in written.deleted:
                self._books.deleted(outcome)
            if written.block is None:
                again += self._without_room(done.job, written.write)
            else:
                over += self._book_block(done.job, written.block)
        self._end(over)
        self._place(again)
        self.resume([outcome for written in done.blocks for outcome in written.deleted])

    def _without_room(self, job: JobProgress, write: Write) -> list[Wanted]:
        """A victim is stuck, and nothing was written: all who want the block look for room anew."""
        del job.landing[write.key]
        self._books.shelf.abort(write.key)
        return [Wanted(job, write.key, write.slot), *self._joined.pop(write.key, ())]

    def _book_block(self, job: JobProgress, outcome: Outcome) -> list[JobProgress]:
        """Its room is its own, or is given back, or kept for what may lie there. The jobs over by this."""
        shelf, key = self._books.shelf, outcome.key
        shelf.victims_gone(key)
        if outcome.error is None:
            job.landing[key] = outcome.is_new
            return [job] if job.resolve(key) else []
        del job.landing[key]
        if outcome.is_unsure:
            self._books.may_lie(key)
        else:
            shelf.abort(key)
        failure = reason_of(outcome.error)
        failed = [job, *(wanted.job for wanted in self._joined.pop(key, ()))]
        return [one for one in failed if one.resolve(key, failure)]

    def resume(self, deleted: Iterable[Outcome]) -> None:
        """Blocks are gone from the medium, or could not be deleted: those that waited for it go on.

        One whose older self is stuck there fails.
        """
        again: list[Wanted] = []
        over: list[JobProgress] = []
        for outcome in deleted:
            for block in self._deferred.pop(outcome.key, ()):
                self._waits_for.pop(block.key, None)
                if outcome.error is None or block.key != outcome.key:
                    again.append(block)
                elif block.job.resolve(block.key, reason_of(outcome.error)):
                    over.append(block.job)
        self._place(again)
        self._end(over)

    def _end(self, over: Iterable[JobProgress]) -> None:
        """These jobs are over, and so may be others that shared their fate."""
        ending = deque(over)
        while ending:
            progress = ending.popleft()
            self._under_way.remove(progress)
            landed = [key for key in progress.succeeded if key in progress.landing]
            progress.blocks = sum(progress.landing.values())
            self._admit(landed, new=progress.blocks)
            ending += self._tell_joined(landed)
            self._books.end(progress, used=progress.succeeded)

    def _admit(self, landed: Sequence[OffloadKey], *, new: int) -> None:
        """What a job wrote becomes readable, in the job's order; ``new`` of it was not there before."""
        books = self._books
        for key in landed:
            books.shelf.landed(key)
        books.events.stored(landed)
        books.counts["stores"] += new
        books.counts["stores_found"] += len(landed) - new

    def _tell_joined(self, landed: Sequence[OffloadKey]) -> list[JobProgress]:
        """Jobs that are over now because they waited for these blocks."""
        over = []
        for key in landed:
            for joined in (wanted.job for wanted in self._joined.pop(key, ())):
                joined.pins.append((key, self._books.shelf.pin(key)))
                over += [joined] if joined.resolve(key) else []
        return over

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        shelf = self._books.shelf
        assert all(progress.unresolved > 0 for progress in self._under_way), "a job that is over is known"
        assert all(shelf.is_landing(key) for key in self._joined), "a job joined nobody"
        assert all(shelf.is_leaving(key) for key in self._deferred), "a block waits for nothing"
        waits = {block.key: first for first, blocks in self._deferred.items() for block in blocks}
        assert waits == self._waits_for, "a block waits for two others"
        landing = [key for progress in self._under_way for key in progress.landing]
        assert len(landing) == len(set(landing)) == shelf.landing_count, "who writes this block?"
