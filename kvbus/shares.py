"""What one tier of an engine has said and what of it still waits for the other tiers. Pure.

A share is one batch with the marks that stand before it: losses, epochs, strays, and batches that have no
readable ``ts`` and so no drain of their own. Decides nothing: when a share leaves is ``aggregator``'s matter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, LastBatch, Loss, Received, Stray

Moment = tuple[int, float]
"""When a drain was: the life of the engine's clock, which ends where the clock is set back, and ``ts``."""
NEVER: Final[Moment] = (-1, -math.inf)


class Share(Struct, frozen=True):
    """``moment``: of its drain. ``taken_ns``: when it came. ``entries``: marks, then the batch."""

    moment: Moment
    taken_ns: int
    entries: list[Entry]


class Shares:
    """The queue of the tier ``source``, the ``ordinal``-th of its engine.

    ``said_ts``: of the last batch it gave, in seconds; ``life``: in which life of the engine's clock it was.
    ``heard_ns``: when it last gave anything. ``is_another``: its publisher is another process than that of
    the last batch. ``lead_s``: how far its clock has been ahead of ours, by what came live; -inf: unknown.
    """

    def __init__(self, source: str, ordinal: int) -> None:
        self.source = source
        self.ordinal = ordinal
        self.ready: deque[Share] = deque()
        self.marks: list[Entry] = []
        self.marked_ns = 0
        self.life = 1
        self.said_ts = -math.inf
        self.heard_ns = 0
        self.is_another = False
        self.lead_s = -math.inf
        self.entries = self.batches = self.bytes = 0

    @property
    def said(self) -> Moment:
        """The drain that it last spoke of."""
        return self.life, self.said_ts

    def resume(self, last: LastBatch, *, epoch: int) -> None:
        """Go on from a log, where its last batch is ``last`` and its publisher's present epoch ``epoch``."""
        self.said_ts = last.ts
        self.is_another = epoch > last.epoch
        self.hear_clock(last.ts, last.received_ns, replayed=last.replayed)

    def hear_clock(self, ts: float, received_ns: int, *, replayed: bool) -> None:
        """Its publisher says ``ts``. What is replayed was said long ago."""
        if not replayed:
            self.lead_s = max(self.lead_s, lead_s(ts, received_ns))

    def mark(self, entry: Entry, *, now_ns: int) -> None:
        """Keep an entry without a drain of its own until the next batch."""
        if not self.marks:
            self.marked_ns = now_ns
        self.is_another = self.is_another or isinstance(entry, EpochBegan)
        self.marks.append(entry)
        self._account([entry], 1)

    def say(self, ts: float) -> None:
        """Its process has given a batch of this time."""
        self.said_ts = ts
        self.is_another = False

    def queue(self, batch: Received, *, now_ns: int) -> None:
        """Put its share of the drain that it last spoke of behind those that wait."""
        self.ready.append(Share(self.said, now_ns, [*self.marks, batch]))
        self.marks = []
        self._account([batch], 1)

    def newest(self, until_ns: int) -> Moment:
        """Of the last share that waits and was received until then."""
        return max(
            (one.moment for one in self.ready if noticed_ns(one.entries[-1]) <= until_ns), default=NEVER
        )

    def take(self, moment: Moment) -> list[Entry]:
        """What waits for this drain, which must be the next; the batch last."""
        taken: list[Entry] = []
        while self.ready and self.ready[0].moment == moment:
            taken += self.ready.popleft().entries
        self._account(taken, -1)
        return taken

    def take_marks(self) -> list[Entry]:
        """The marks that no batch has followed yet."""
        marks, self.marks = self.marks, []
        self._account(marks, -1)
        return marks

    def has_marks_since(self, until_ns: int) -> bool:
        """Whether marks that no batch has followed wait since then."""
        return bool(self.marks) and not self.ready and self.marked_ns <= until_ns

    def set_clock_back(self, now_ns: int) -> None:
        """Our clock was set back to ``now_ns``: nothing has waited since the future."""
        self.heard_ns = min(self.heard_ns, now_ns)
        self.marked_ns = min(self.marked_ns, now_ns)
        self.ready = deque(Share(one.moment, min(one.taken_ns, now_ns), one.entries) for one in self.ready)

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        moments = [share.moment for share in self.ready]
        assert moments == sorted(moments)
        assert not moments or moments[-1] == self.said
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


def lead_s(ts: float, received_ns: int) -> float:
    """How far a publisher's clock is ahead of ours, in seconds, less the time that the message took."""
    return ts - received_ns / 1e9


def noticed_ns(entry: Entry) -> int:
    """When it came to us, ns since 1970."""
    if isinstance(entry, Loss):
        return entry.noticed_ns
    return entry.began_ns if isinstance(entry, EpochBegan) else entry.received_ns


def _size(entry: Entry) -> int:
    return len(entry.payload) if isinstance(entry, Received | Stray) else 0
