"""What one tier of an engine has said and what of it still waits for the other tiers. Pure.

A share is one batch with the marks that stand before it: losses, epochs, strays, and batches that have no
readable ``ts`` and so no drain of their own. Decides nothing: when a share leaves is ``aggregator``'s matter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, Loss, Received, Stray


class Share(Struct, frozen=True):
    """``ts``: of its drain, seconds. ``taken_ns``: when it came. ``entries``: marks, then the batch."""

    ts: float
    taken_ns: int
    entries: list[Entry]


class Shares:
    """The queue of the tier ``source``, the ``ordinal``-th of its engine.

    ``said_ts``: of the last batch it gave, in seconds. ``heard_ns``: when it last gave anything.
    ``new_life``: its publisher is another process than that of the last batch.
    """

    def __init__(self, source: str, ordinal: int) -> None:
        self.source = source
        self.ordinal = ordinal
        self.ready: deque[Share] = deque()
        self.marks: list[Entry] = []
        self.marked_ns = 0
        self.said_ts = -math.inf
        self.heard_ns = 0
        self.new_life = False
        self.entries = self.batches = self.bytes = 0

    def mark(self, entry: Entry, *, now_ns: int) -> None:
        """Keep an entry without a drain of its own until the next batch."""
        if not self.marks:
            self.marked_ns = now_ns
        self.new_life = self.new_life or isinstance(entry, EpochBegan)
        self.marks.append(entry)
        self._account([entry], 1)

    def queue(self, batch: Received, ts: float, *, now_ns: int) -> None:
        """Put the tier's share of the drain at ``ts`` behind those that wait."""
        self.ready.append(Share(ts, now_ns, [*self.marks, batch]))
        self.marks = []
        self._account([batch], 1)

    def newest_ts(self, until_ns: int) -> float:
        """``ts`` of the last share that waits and was received until then; -inf: none."""
        return max(
            (one.ts for one in self.ready if noticed_ns(one.entries[-1]) <= until_ns), default=-math.inf
        )

    def take(self, ts: float) -> list[Entry]:
        """What waits for the drain at ``ts``, which must be the next."""
        taken: list[Entry] = []
        while self.ready and self.ready[0].ts == ts:
            taken += self.ready.popleft().entries
        self._account(taken, -1)
        return taken

    def take_marks(self) -> list[Entry]:
        """The marks that no batch has followed yet."""
        marks, self.marks = self.marks, []
        self._account(marks, -1)
        return marks

    def set_clock_back(self, now_ns: int) -> None:
        """Our clock was set back to ``now_ns``: nothing has waited since the future."""
        self.heard_ns = min(self.heard_ns, now_ns)
        self.marked_ns = min(self.marked_ns, now_ns)
        self.ready = deque(Share(one.ts, min(one.taken_ns, now_ns), one.entries) for one in self.ready)

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        stamps = [share.ts for share in self.ready]
        assert stamps == sorted(stamps)
        assert not stamps or stamps[-1] == self.said_ts
        held = [entry for share in self.ready for entry in share.entries] + self.marks
        assert self.entries == len(held)
        assert self.batches == sum(isinstance(entry, Received) for entry in held)
        assert self.bytes == sum(map(_size, held))

    def _account(self, entries: Iterable[Entry], sign: int) -> None:
        for entry in entries:
            self.entries += sign
            self.batches += sign * isinstance(entry, Received)
            self.bytes += sign * _size(entry)


def readable_ts(entry: Entry) -> float | None:
    """When it happened by the publisher's clock, in seconds; None where no clock can be read."""
    if isinstance(entry, Received) and isinstance(entry.batch, EventBatch) and math.isfinite(entry.batch.ts):
        return entry.batch.ts
    return None


def noticed_ns(entry: Entry) -> int:
    """When it came to us, ns since 1970."""
    if isinstance(entry, Loss):
        return entry.noticed_ns
    return entry.began_ns if isinstance(entry, EpochBegan) else entry.received_ns


def _size(entry: Entry) -> int:
    return len(entry.payload) if isinstance(entry, Received | Stray) else 0
