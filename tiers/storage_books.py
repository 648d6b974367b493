"""What a storage tier knows and says, in one place: its shelf, its events, its counters, its results.

Both sides of the tier, storing and loading, move these books, always on the scheduler's thread. Nothing
here decides.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tiers.block_tasks import Outcome, reason_of
from tiers.job_progress import JobProgress
from tiers.jobs import JobResult
from tiers.kept import Room
from tiers.keys import OffloadKey
from tiers.offloading_event import EventBuffer
from tiers.shelf import Shelf

RECENT_TIMES: Final = 4_096
"""Transfer times kept, of each kind."""


class StorageBooks:
    """``block_bytes`` is the payload of every block that this tier writes."""

    def __init__(self, shelf: Shelf, events: EventBuffer, *, block_bytes: int) -> None:
        self.shelf = shelf
        self.events = events
        self.block_bytes = block_bytes
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, float] = {"read_seconds": 0.0, "write_seconds": 0.0}
        self.times: dict[str, deque[float]] = {kind: deque(maxlen=RECENT_TIMES) for kind in ("load", "store")}
        self._finished: list[JobResult] = []

    @property
    def is_finished(self) -> bool:
        """Whether there are results to take."""
        return bool(self._finished)

    def evicted(self, rooms: Sequence[Room]) -> None:
        """Room was made: one event for all."""
        keys = [key for room in rooms for key in room.evicted]
        self.events.removed(keys, "evicted")
        self.counts["evictions"] += len(keys)

    def deleted(self, outcome: Outcome) -> None:
        """A leaving block is gone from the medium, or is stuck there."""
        if outcome.error is None:
            self.shelf.left(outcome.key)
        else:
            self.counts[f"delete_failures.{reason_of(outcome.error)}"] += 1
            self.shelf.stays(outcome.key)

    def end(self, progress: JobProgress, *, used: Collection[OffloadKey]) -> None:
        """A job is over: its pins go, what it ``used`` counts as used, and its result can be taken."""
        for key, kept in progress.pins:
            self.shelf.unpin(key, kept)
        self.shelf.touch(used, progress.job.req_context)
        kind = "load" if progress.job.is_promotion else "store"
        for failure in progress.failures.values():
            self.counts[f"{kind}_failures.{failure}"] += 1
        if progress.seconds is not None:
            self.times[kind].append(progress.seconds)
        self._finished.append(progress.result())

    def take_finished(self) -> list[JobResult]:
        finished, self._finished = self._finished, []
        return finished

    def get_stats(self) -> Mapping[str, float]:
        """Counters, seconds, and what is kept now; ``stranded`` blocks could not be deleted."""
        shelf = self.shelf
        gauges = {"resident": shelf.kept.blocks, "resident_bytes": shelf.kept.bytes}
        return {**self.counts, **self.seconds, **gauges, "stranded": shelf.stranded_count}
