"""One engine's tiers, each on its own socket, as the one stream their composing manager drained. Pure.

The contract is that of ``take_events()``: the primary tier's share of a drain, then each secondary's, in
configured order. Every tier publishes its share of a drain, empty or not, under one ``ts``; so this is a
merge on (ts, tier, seq), and a round is over when every tier has said something of its ``ts`` or later. A
tier that stays silent longer than ``lateness`` no longer holds the others back: what it says after its place
has passed is declared a ``Loss`` and set aside, never put in behind its back.

What is late follows from what is out and from nothing else, so whoever goes on from a log goes on as if it
had never stopped, in the middle of a round too. Different engines are never ordered against each other: one
aggregator each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from kvbus.events import Event, EventBatch
from kvbus.log import Entry, Loss, Received, SourceId, Standing, Stray
from kvbus.shares import Shares, noticed_ns, readable_ts

ENTRIES_MAX: Final = 65_536
"""Entries that wait for other tiers; beyond them the oldest round comes out as it is."""
BYTES_MAX: Final = 256 << 20
PATIENCE: Final = 10
"""A tier that speaks and is behind holds a round back so many times ``lateness``, not for ever."""


class Round(Struct, frozen=True):
    """One drain as far as it has come: the tiers' entries in configured order. ``ts`` in seconds.

    ``absent``: tiers that were no longer waited for. ``skipped_by``: tiers that have gone on and left no
    share of it, as one does whose publisher died and came back.
    """

    ts: float
    entries: list[Entry]
    absent: tuple[str, ...] = ()
    skipped_by: tuple[str, ...] = ()


class Aggregator:
    """Merges the entries of ``sources`` (feed names, primary tier first) into rounds.

    ``lateness_ns``: how long a round waits for a silent tier, on the clock of ``received_ns``.
    ``standings``: where the sources stand in a log that is to be continued. ``entries_max`` and ``bytes_max``
    (payload bytes) bound what waits. Entries of each source must come in their own order, as a ``Subscriber``
    gives them, and leave in it. Raises ``KeyError`` for an entry of another source.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        lateness_ns: int = 1_000_000_000,
        standings: Mapping[SourceId, Standing] | None = None,
        entries_max: int = ENTRIES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        if len(set(sources)) != len(sources):
            raise ValueError("a tier is named twice")
        self.counts: Counter[str] = Counter()
        self._tiers = {source: Shares(source, ordinal) for ordinal, source in enumerate(sources)}
        self._lateness_ns = lateness_ns
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._now_ns = 0
        self._out = (-math.inf, -1)
        for source, standing in (standings or {}).items():
            if source.source in self._tiers:
                self._stood_at(self._tiers[source.source], standing.last_ts)

    def _stood_at(self, tier: Shares, last_ts: float) -> None:
        if last_ts and math.isfinite(last_ts):  # 0 is nobody's clock
            tier.said_ts = max(tier.said_ts, last_ts)
            self._out = max(self._out, (last_ts, tier.ordinal))

    @property
    def waiting(self) -> int:
        """Batches that wait for other tiers."""
        return sum(tier.batches for tier in self._tiers.values())

    def waited_for(self, until_ns: int) -> list[str]:
        """The tiers that the next round waits for, as far as something waits that came until then."""
        ts = self._next_ts()
        if ts is None or ts > self._newest(until_ns):
            return []
        return [tier.source for tier in self._missing(ts)]

    def add(self, entry: Entry) -> list[Round]:
        """Take the next entry of a source; the rounds that it completes."""
        tier = self._tiers[entry.source.source]
        self._now_ns = tier.heard_ns = max(self._now_ns, noticed_ns(entry))
        ts = readable_ts(entry)
        if ts is None or not isinstance(entry, Received):
            tier.mark(entry, now_ns=self._now_ns)
            return self._make_room()
        rounds = []
        if ts < tier.said_ts:
            self.counts["clock_back"] += 1
            if tier.ready and not tier.new_life:
                ts = tier.said_ts
            else:
                rounds = self._begin_anew(tier, ts)
        tier.new_life = False
        tier.said_ts = ts
        if (ts, tier.ordinal) < self._out:
            return [*rounds, self._late(tier, entry)]
        tier.queue(entry, ts, now_ns=self._now_ns)
        return [*rounds, *self._complete(), *self._make_room()]

    def tick(self, now_ns: int) -> list[Round]:
        """Let time pass: rounds that have waited too long come out without the silent tiers."""
        self._tell_time(now_ns)
        rounds: list[Round] = []
        while (ts := self._next_ts()) is not None:
            taken_ns = min(tier.ready[0].taken_ns for tier in self._heads(ts))
            if any(self._holds_back(tier, taken_ns) for tier in self._missing(ts)):
                break
            rounds.append(self._release(ts))
        overdue = [tier for tier in self._tiers.values() if self._is_overdue(tier)]
        return rounds + self._release_marks(overdue)

    def finish(self, *, until_ns: int | None = None) -> list[Round]:
        """Nothing more will come: what waits comes out, marks that no batch followed last.

        ``until_ns``: for a reader that goes on another time. Rounds of which nothing had come until then stay
        behind: what is missing of them may only be on its way.
        """
        rounds = self._release_all(until_ts=math.inf if until_ns is None else self._newest(until_ns))
        return rounds + self._release_marks(tier for tier in self._tiers.values() if not tier.ready)

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for tier in self._tiers.values():
            tier.check_integrity()
            assert not tier.ready or (tier.ready[0].ts, tier.ordinal) >= self._out
        assert not self._is_crowded()

    # -- clocks --------------------------------------------------------------------------------------

    def _tell_time(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            for tier in self._tiers.values():
                tier.set_clock_back(now_ns)
        self._now_ns = now_ns

    def _holds_back(self, tier: Shares, taken_ns: int) -> bool:
        waited_ns = self._now_ns - taken_ns
        silent_ns = self._now_ns - max(taken_ns, tier.heard_ns)
        return silent_ns < self._lateness_ns and waited_ns < PATIENCE * self._lateness_ns

    def _is_overdue(self, tier: Shares) -> bool:
        if not tier.marks or tier.ready:
            return False
        return self._now_ns - tier.marked_ns >= self._lateness_ns

    def _begin_anew(self, tier: Shares, ts: float) -> list[Round]:
        """The publishers' clock was set back, with a new process or without: nothing of it can be late."""
        rounds = self._release_all() if tier.new_life else []
        before = math.nextafter(ts, -math.inf)
        self._out = min(self._out, (before, -1))
        for one in self._tiers.values():
            if not one.ready:
                one.said_ts = min(one.said_ts, before)
        return rounds

    # -- rounds --------------------------------------------------------------------------------------

    def _next_ts(self) -> float | None:
        return min((tier.ready[0].ts for tier in self._tiers.values() if tier.ready), default=None)

    def _heads(self, ts: float) -> list[Shares]:
        return [tier for tier in self._tiers.values() if tier.ready and tier.ready[0].ts == ts]

    def _missing(self, ts: float) -> list[Shares]:
        return [tier for tier in self._tiers.values() if tier.said_ts < ts]

    def _complete(self) -> list[Round]:
        rounds = []
        while (ts := self._next_ts()) is not None and not self._missing(ts):
            rounds.append(self._release(ts))
        return rounds

    def _release(self, ts: float) -> Round:
        heads, before = self._heads(ts), self._out
        without = [one for one in self._tiers.values() if one not in heads and (ts, one.ordinal) > before]
        absent = tuple(tier.source for tier in without if tier.said_ts < ts)
        skipped_by = tuple(tier.source for tier in without if tier.said_ts >= ts)
        self.counts += Counter(not_waited_for=len(absent), skipped=len(skipped_by))
        entries: list[Entry] = []
        for tier in heads:
            entries += tier.take(ts)
            self._out = (ts, tier.ordinal)
        return Round(ts, entries, absent, skipped_by)

    def _newest(self, until_ns: int) -> float:
        """The last drain of which something waits that came until then."""
        return max(tier.newest_ts(until_ns) for tier in self._tiers.values())

    def _release_all(self, *, until_ts: float = math.inf) -> list[Round]:
        rounds = []
        while (ts := self._next_ts()) is not None and ts <= until_ts:
            rounds.append(self._release(ts))
        return rounds

    def _release_marks(self, tiers: Iterable[Shares]) -> list[Round]:
        marks = [mark for tier in tiers for mark in tier.take_marks()]
        return [Round(self._out[0], marks)] if marks else []

    def _is_crowded(self) -> bool:
        tiers = self._tiers.values()
        too_many = sum(tier.entries for tier in tiers) > self._entries_max
        return too_many or sum(tier.bytes for tier in tiers) > self._bytes_max

    def _make_room(self) -> list[Round]:
        rounds: list[Round] = []
        while self._is_crowded():
            self.counts["no_room"] += 1
            ts = self._next_ts()
            rounds += self._release_marks(self._tiers.values()) if ts is None else [self._release(ts)]
        return rounds

    def _late(self, tier: Shares, entry: Received) -> Round:
        """A share whose place has passed: declared, and kept aside."""
        self.counts["late"] += 1
        loss = Loss(entry.source, entry.epoch, entry.seq, entry.seq, "late", entry.received_ns)
        stray = Stray(entry.source, entry.epoch, entry.seq, entry.payload, entry.received_ns, "late")
        return Round(self._out[0], [*tier.take_marks(), loss, stray])


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
