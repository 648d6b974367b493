"""What a storage tier knows and says, in one place: its shelf, its events, its counters, its results.

Both sides of the tier, storing and loading, move these books, always on the scheduler's thread. Nothing
here decides, except that nobody is evicted in vain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from tiers.jobs import JobResult
from tiers.keys import OffloadKey
from tiers.offloading_event import EventBuffer
from tiers.storage.block_tasks import Outcome, reason_of
from tiers.storage.job_progress import JobProgress
from tiers.storage.kept import Room
from tiers.storage.shelf import Shelf
from tiers.storage.undeleted import Undeleted
from tiers.transfer_times import TransferTimes


class StorageBooks:
    """``block_bytes`` is the payload of every block that this tier writes; ``clock`` gives seconds."""

    def __init__(
        self, shelf: Shelf, events: EventBuffer, *, block_bytes: int, clock: Callable[[], float]
    ) -> None:
        self.shelf = shelf
        self.events = events
        self.block_bytes = block_bytes
        self.undeleted = Undeleted()
        self.counts: Counter[str] = Counter()
        self.times = {"load": TransferTimes(), "store": TransferTimes()}
        self._clock = clock
        self._finished: list[JobResult] = []

    @property
    def is_finished(self) -> bool:
        """Whether there are results to take."""
        return bool(self._finished)

    def begin_landing(self, key: OffloadKey) -> Room | None:
        """As ``Shelf.begin_landing``, but nobody is evicted in vain while no delete succeeds."""
        room = self.shelf.begin_landing(key, self.block_bytes, evict=False)
        if room is None and self.undeleted.may_evict(self._clock()):
            room = self.shelf.begin_landing(key, self.block_bytes)
        return room

    def adopt(self, key: OffloadKey) -> Room | None:
        """As ``Shelf.adopt``, with the same reserve."""
        room = self.shelf.adopt(key, self.block_bytes, evict=False)
        if room is None and self.undeleted.may_evict(self._clock()):
            room = self.shelf.adopt(key, self.block_bytes)
        return room

    def evicted(self, rooms: Sequence[Room]) -> None:
        """Room was made: one event for all."""
        keys = [key for room in rooms for key in room.victims]
        self.events.removed(keys, "evicted")
        self.counts["evictions"] += len(keys)

    def deleted(self, outcome: Outcome) -> None:
        """A leaving block is gone from the medium, or is stuck there."""
        if outcome.error is None:
            self.shelf.left(outcome.key)
            self.undeleted.deleted(outcome.key)
        else:
            self.counts[f"delete_failures.{reason_of(outcome.error)}"] += 1
            self.shelf.stays(outcome.key)
            self.undeleted.failed(outcome.key, self._clock())

    def may_lie(self, key: OffloadKey) -> None:
        """A put failed, and its block may be there. It is deleted later: what was sent may yet arrive."""
        self.counts["stores_unsure"] += 1
        self.shelf.may_lie(key)
        self.undeleted.put_off(key, self._clock())

    def take_due(self) -> list[OffloadKey]:
        """Stranded blocks to delete now. They are leaving."""
        due = [key for key in self.undeleted.due(self._clock()) if not self.shelf.is_leaving(key)]
        for key in due:
            self.shelf.retry(key)
        return due

    def begin(self, progress: JobProgress) -> None:
        """A job was submitted."""
        self.times[progress.kind].begin(self._clock())

    def end(self, progress: JobProgress, *, used: Collection[OffloadKey]) -> None:
        """A job is over: its pins go, what it ``used`` counts as used, and its result can be taken."""
        for key, kept in progress.pins:
            self.shelf.unpin(key, kept)
        self.shelf.touch(used, progress.job.req_context)
        for failure in progress.failures.values():
            self.counts[f"{progress.kind}_failures.{failure}"] += 1
        self.times[progress.kind].end(self._clock(), progress.blocks * self.block_bytes, progress.seconds)
        self._finished.append(progress.result())

    def take_finished(self) -> list[JobResult]:
        finished, self._finished = self._finished, []
        return finished

    def get_stats(self) -> Mapping[str, float]:
        """Counters, and what is kept now. ``stranded``: blocks that could not be deleted, or may have been
        put. ``read_seconds``, ``write_seconds``: with at least one load (store) between its submission and
        its result, as far as results were taken.
        """
        shelf, load, store = self.shelf, self.times["load"], self.times["store"]
        return {
            **self.counts,
            **self.events.counts,
            "bytes_loaded": load.bytes,
            "bytes_stored": store.bytes,
            "read_seconds": load.seconds,
            "write_seconds": store.seconds,
            "resident": shelf.kept.blocks,
            "resident_bytes": shelf.kept.bytes,
            "stranded": shelf.stranded_count,
        }

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self.shelf.check_integrity()
        self.undeleted.check_integrity()
        assert len(self.undeleted) == self.shelf.stranded_count, "a stuck block is never tried again"
