"""One engine's tiers, each on its own socket, as the one stream their composing manager drained. Pure.

The contract is that of ``take_events()``: the primary tier's share of a drain, then each secondary's, in
configured order. Every tier publishes its share of a drain, empty or not, under one ``ts``; so this is a
merge on (ts, tier, seq), and a round is over when every tier has said something of its ``ts`` or later. A
tier that stays silent longer than ``lateness`` no longer holds the others back: what it says of a round that
is out is declared a ``Loss`` and set aside, never put in behind its back.

Different engines are never ordered against each other: one aggregator each.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from kvbus.events import Event, EventBatch
from kvbus.log import Entry, EpochBegan, Loss, Received, Stray


class Round(Struct, frozen=True):
    """One drain as far as it has come: the tiers' entries in configured order. ``ts`` in seconds.

    ``absent``: tiers that were no longer waited for.
    """

    ts: float
    entries: list[Entry]
    absent: tuple[str, ...] = ()


class _Tier:
    """One tier's queue. Marks (losses, epochs) wait with the batch they stand before."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.ready: deque[tuple[float, list[Entry]]] = deque()
        self.marks: list[Entry] = []
        self.said_ts = -math.inf
        self.new_life = False


class Aggregator:
    """Merges the entries of ``sources`` (feed names, primary tier first) into rounds.

    ``lateness_ns``: how long a round waits for a silent tier, on the clock of ``received_ns``. Entries of
    each source must come in their own order, as a ``Subscriber`` gives them. Raises ``KeyError`` for an entry
    of another source.
    """

    def __init__(self, sources: Sequence[str], *, lateness_ns: int = 1_000_000_000) -> None:
        if len(set(sources)) != len(sources):
            raise ValueError("a tier is named twice")
        self.counts: Counter[str] = Counter()
        self._tiers = {source: _Tier(source) for source in sources}
        self._lateness_ns = lateness_ns
        self._out_ts = -math.inf

    @property
    def waiting(self) -> int:
        """Batches that wait for other tiers."""
        return sum(len(tier.ready) for tier in self._tiers.values())

    def add(self, entry: Entry) -> list[Round]:
        """Take the next entry of a source; the rounds that it completes."""
        tier = self._tiers[entry.source.source]
        if not isinstance(entry, Received):
            tier.new_life = tier.new_life or isinstance(entry, EpochBegan)
            tier.marks.append(entry)
            return []
        ts = entry.batch.ts if isinstance(entry.batch, EventBatch) else tier.said_ts
        if tier.new_life and ts <= self._out_ts:
            # A process that has just begun, under a clock that was set back: nothing of it can be late.
            self._out_ts = tier.said_ts = math.nextafter(ts, -math.inf)
        tier.new_life = False
        if ts <= self._out_ts:
            return [self._late(tier, entry)]
        tier.said_ts = max(tier.said_ts, ts)
        tier.ready.append((ts, [*tier.marks, entry]))
        tier.marks = []
        return self._complete()

    def tick(self, now_ns: int) -> list[Round]:
        """Let time pass: rounds that have waited too long come out without the silent tiers."""
        rounds: list[Round] = []
        while self.waiting:
            ts = self._next_ts()
            oldest = min(tier.ready[0][1][-1].received_ns for tier in self._heads(ts))  # type: ignore[union-attr]
            if now_ns - oldest < self._lateness_ns:
                break
            rounds.append(self._release(ts))
            rounds += self._complete()
        return rounds

    def finish(self) -> list[Round]:
        """Nothing more will come: what waits comes out, marks that no batch followed last."""
        rounds = []
        while self.waiting:
            rounds.append(self._release(self._next_ts()))
        marks = [mark for tier in self._tiers.values() for mark in tier.marks]
        for tier in self._tiers.values():
            tier.marks = []
        return rounds + ([Round(self._out_ts, marks)] if marks else [])

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for tier in self._tiers.values():
            stamps = [ts for ts, _ in tier.ready]
            assert stamps == sorted(stamps)
            assert all(ts > self._out_ts for ts in stamps)

    # -- rounds --------------------------------------------------------------------------------------

    def _next_ts(self) -> float:
        return min(tier.ready[0][0] for tier in self._tiers.values() if tier.ready)

    def _heads(self, ts: float) -> list[_Tier]:
        return [tier for tier in self._tiers.values() if tier.ready and tier.ready[0][0] == ts]

    def _complete(self) -> list[Round]:
        rounds = []
        while self.waiting:
            ts = self._next_ts()
            if any(tier.said_ts < ts for tier in self._tiers.values()):
                break
            rounds.append(self._release(ts))
        return rounds

    def _release(self, ts: float) -> Round:
        entries: list[Entry] = []
        absent = []
        for tier in self._tiers.values():
            if tier.said_ts < ts:
                absent.append(tier.source)
                self.counts["not_waited_for"] += 1
            while tier.ready and tier.ready[0][0] == ts:
                entries += tier.ready.popleft()[1]
        self._out_ts = ts
        return Round(ts, entries, tuple(absent))

    def _late(self, tier: _Tier, entry: Received) -> Round:
        """A share of a round that is out: declared, and kept aside."""
        self.counts["late"] += 1
        marks, tier.marks = tier.marks, []
        loss = Loss(entry.source, entry.epoch, entry.seq, entry.seq, "late", entry.received_ns)
        stray = Stray(entry.source, entry.epoch, entry.seq, entry.payload, entry.received_ns, "late")
        return Round(self._out_ts, [*marks, loss, stray])


def emitted(entries: Sequence[Entry]) -> Iterator[tuple[Received, int, Event]]:
    """The events of a round in the order in which they were made (``emit_seq``), each with its batch and
    index.

    The contract order is by tier; one counter for all tiers of a composing manager gives the order in time
    back. Events without a number stay behind the one before them in their batch.
    """
    keyed: list[tuple[int, int, Received, int, Event]] = []
    for entry in entries:
        if not isinstance(entry, Received) or not isinstance(entry.batch, EventBatch):
            continue
        last = -1
        for index, event in enumerate(entry.batch.events):
            number = getattr(event, "emit_seq", None)
            last = last if number is None else number
            keyed.append((last, len(keyed), entry, index, event))
    for _, _, received, index, event in sorted(keyed, key=lambda item: item[:2]):
        yield received, index, event
