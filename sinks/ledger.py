"""What a sink already has of each stream, so that nothing gets in twice and everyone can go on where it
ended.

Fed with entries in their order, it refuses a batch that does not come after all its (source, epoch) has, and
says where each source stands. No files: a sink fills it from what is durable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kvbus.errors import LogError
from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, LastBatch, Loss, Received, SourceId, Standing, Stray
from kvbus.recent import Recent

RECENT_MAX: Final = 256
RECENT_BYTES_MAX: Final = 4 << 20
"""How many payloads, and bytes of them, a standing holds for comparing a replay's overlap; at least one."""


class Ledger:
    """Admits entries and keeps score. ``next_seqs``: what is already there, by (source, epoch)."""

    def __init__(self, next_seqs: Mapping[tuple[SourceId, int], int] | None = None) -> None:
        self._next = dict(next_seqs or {})

    def admit(self, entries: Sequence[Entry], /) -> None:
        """Take all of ``entries``, or none: raises ``LogError`` at the first that cannot be."""
        moved: dict[tuple[SourceId, int], int] = {}
        for entry in entries:
            if type(entry) is Received:
                key = (entry.source, entry.epoch)
                seq = moved.get(key, -1)
                if seq < 0:
                    seq = self._next.get(key, 0)
                if entry.seq < seq:
                    raise _twice(entry, seq)
                moved[key] = entry.seq + 1
            elif type(entry) is Loss:
                key = (entry.source, entry.epoch)
                seq = moved.get(key, self._next.get(key, 0))
                moved[key] = max(seq, entry.last_seq + 1)
        self._next.update(moved)


class Standings:
    """Folds the entries of a log into where each source stands at its end."""

    def __init__(self) -> None:
        self.next_seqs: dict[tuple[SourceId, int], int] = {}
        self._epochs: dict[SourceId, tuple[int, str]] = {}
        self._last_ts: dict[tuple[SourceId, int], float] = {}
        self._last: dict[SourceId, LastBatch] = {}
        self._position = 0
        self._recent: dict[tuple[SourceId, int], Recent] = {}

    def add(self, entry: Entry, /) -> None:
        """Take the next entry. It is not refused: it is already there."""
        key = (entry.source, entry.epoch)
        epoch, _ = self._epochs.get(entry.source, (-1, ""))
        if isinstance(entry, EpochBegan):
            if entry.epoch >= epoch:
                self._epochs[entry.source] = (entry.epoch, entry.incarnation)
        elif entry.epoch > epoch and not isinstance(entry, Stray):
            self._epochs[entry.source] = (entry.epoch, "")
        if isinstance(entry, Received):
            self.next_seqs[key] = max(self.next_seqs.get(key, 0), entry.seq + 1)
            if isinstance(entry.batch, EventBatch):
                self._last_ts[key] = entry.batch.ts
                self._note_last(entry, entry.batch.ts)
            self._position += 1
            self._recent_of(key).add(entry.seq, entry.payload)
        elif isinstance(entry, Loss):
            self.next_seqs[key] = max(self.next_seqs.get(key, 0), entry.last_seq + 1)

    def _note_last(self, entry: Received, ts: float) -> None:
        if math.isfinite(ts):
            last = LastBatch(self._position, entry.epoch, ts, entry.received_ns, entry.replayed)
            self._last[entry.source] = last

    def _recent_of(self, key: tuple[SourceId, int]) -> Recent:
        if key not in self._recent:
            self._recent[key] = Recent(batches_max=RECENT_MAX, bytes_max=RECENT_BYTES_MAX)
        return self._recent[key]

    def result(self) -> dict[SourceId, Standing]:
        """Where each source stands."""
        return {
            source: Standing(
                epoch=epoch,
                next_seq=self.next_seqs.get((source, epoch), 0),
                last_ts=self._last_ts.get((source, epoch), 0.0),
                incarnation=incarnation,
                recent=self._recent[source, epoch].payloads() if (source, epoch) in self._recent else {},
                last=self._last.get(source),
            )
            for source, (epoch, incarnation) in self._epochs.items()
        }


def _twice(entry: Received, next_seq: int) -> LogError:
    return LogError(
        f"batch {entry.seq} of {entry.source.source} (epoch {entry.epoch}) does not come after "
        f"what is there: the next would be {next_seq}",
        next_step="Write each batch once and in order; a number that comes again is a Stray.",
    )
