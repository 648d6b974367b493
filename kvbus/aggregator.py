"""One engine's tiers, each on its own socket, as the one stream their composing manager drained. Pure.

The contract is that of ``take_events()``: the primary tier's share of a drain, then each secondary's, in
configured order. Every tier publishes its share of a drain, empty or not, under one ``ts``; so this is a
merge on (life of the engine's clock, ts, tier, seq), and a round is over when every tier has said something
of its time or later. A tier that stays silent longer than ``lateness`` no longer holds the others back: what
it says after its place has passed is declared a ``Loss`` and set aside, never put in behind its back.

A life of the clock ends where a new process speaks of an earlier time than the one before it. What is late
follows from the last batch that is out and from nothing else, so whoever goes on from a log goes on as if it
had never stopped, in the middle of a round too. Different engines are never ordered against each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kvbus.log import Entry, Loss, Received, SourceId, Standing, Stray
from kvbus.rounds import Round
from kvbus.shares import Moment, Shares, lead_s, noticed_ns, readable_ts

ENTRIES_MAX: Final = 65_536
"""Entries that wait for other tiers; beyond them the oldest round comes out as it is."""
BYTES_MAX: Final = 256 << 20
PATIENCE: Final = 10
"""A tier that speaks and is behind holds a round back so many times ``lateness``, not for ever. A time
that is so far ahead of all clocks is not believed.
"""


class Aggregator:
    """Merges the entries of ``sources`` (feed names, primary tier first) into rounds.

    ``lateness_ns``: how long a round waits for a silent tier, on the clock of ``received_ns``.
    ``standings``: where the sources stand in a log that is to be continued. ``entries_max`` and ``bytes_max``
    (payload bytes) bound what waits. Entries of each source must come in their own order, as a ``Subscriber``
    gives them, and leave in it. Raises ``KeyError`` for an entry of another source.

    ``ahead``: batches by source whose time was so far ahead that it was not believed.
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
        self.ahead: Counter[str] = Counter()
        self._tiers = {source: Shares(source, ordinal) for ordinal, source in enumerate(sources)}
        self._lateness_ns = lateness_ns
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._now_ns = 0
        self._life = 1
        self._out = (1, -math.inf, -1)
        self._life_out_ns = 0
        self._resume(standings or {})

    @property
    def waiting(self) -> int:
        """Batches that wait for other tiers."""
        return sum(tier.batches for tier in self._tiers.values())

    def waited_for(self, until_ns: int) -> list[str]:
        """The tiers that the next round waits for, as far as something waits that came until then."""
        moment = self._next()
        if moment is None or moment > self._newest(until_ns):
            return []
        return [tier.source for tier in self._missing(moment)]

    def add(self, entry: Entry) -> list[Round]:
        """Take the next entry of a source; the rounds that it completes."""
        tier = self._tiers[entry.source.source]
        self._now_ns = tier.heard_ns = max(self._now_ns, noticed_ns(entry))
        ts = self._time_of(tier, entry)
        if ts is None or not isinstance(entry, Received):
            tier.mark(entry, now_ns=self._now_ns)
            return self._make_room()
        tier.say(self._settled(tier, ts))
        if (*tier.said, tier.ordinal) < self._out:
            return [self._late(tier, entry)]
        tier.queue(entry, now_ns=self._now_ns)
        return [*self._complete(), *self._make_room()]

    def tick(self, now_ns: int, *, holding: Collection[str] = ()) -> list[Round]:
        """Let time pass: rounds that have waited too long come out without the silent tiers.

        ``holding``: sources that have spoken, and whose batches are held back for what is missing before
        them: they are not silent.
        """
        self._tell_time(now_ns)
        for tier in self._tiers.values():
            if tier.source in holding:
                tier.heard_ns = now_ns
        rounds: list[Round] = []
        while (moment := self._next()) is not None:
            taken_ns = min(tier.ready[0].taken_ns for tier in self._heads(moment))
            if any(self._holds_back(tier, taken_ns) for tier in self._missing(moment)):
                break
            rounds.append(self._release(moment))
        overdue = [one for one in self._tiers.values() if one.has_marks_since(now_ns - self._lateness_ns)]
        return rounds + self._release_marks(overdue)

    def finish(self, *, until_ns: int | None = None) -> list[Round]:
        """Nothing more will come: what waits comes out, marks that no batch followed last.

        ``until_ns``: for a reader that goes on another time. Rounds of which nothing had come until then stay
        behind: what is missing of them may only be on its way.
        """
        last = None if until_ns is None else self._newest(until_ns)
        rounds = []
        while (moment := self._next()) is not None and (last is None or moment <= last):
            rounds.append(self._release(moment))
        return rounds + self._release_marks(tier for tier in self._tiers.values() if not tier.ready)

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for tier in self._tiers.values():
            tier.check_integrity()
            assert not tier.ready or (*tier.ready[0].moment, tier.ordinal) >= self._out
            assert tier.life <= self._life
        assert not self._is_crowded()

    # -- clocks --------------------------------------------------------------------------------------

    def _resume(self, standings: Mapping[SourceId, Standing]) -> None:
        """Where the log's last batch stands, there stands the engine."""
        ours = [
            (self._tiers[name.source], one) for name, one in standings.items() if name.source in self._tiers
        ]
        lasts = [(one.last, one.epoch, tier) for tier, one in ours if one.last]
        lasts.sort(key=lambda one: one[0].position)
        for last, epoch, tier in lasts:
            tier.resume(last, epoch=epoch)
        for last, _, tier in lasts:
            if not self._is_ahead(tier, last.ts, last.received_ns):
                self._out, self._life_out_ns = (1, last.ts, tier.ordinal), last.received_ns
        for _, _, tier in lasts:
            if (*tier.said, tier.ordinal) > self._out:
                tier.life = 0  # it still is in the one before

    def _tell_time(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            for tier in self._tiers.values():
                tier.set_clock_back(now_ns)
            self._life_out_ns = min(self._life_out_ns, now_ns)
        self._now_ns = now_ns

    def _holds_back(self, tier: Shares, taken_ns: int) -> bool:
        waited_ns = self._now_ns - taken_ns
        silent_ns = self._now_ns - max(taken_ns, tier.heard_ns)
        return silent_ns < self._lateness_ns and waited_ns < PATIENCE * self._lateness_ns

    def _settled(self, tier: Shares, ts: float) -> float:
        """Find out in which life of the clock a tier speaks, and of what time: of ``ts``, if it can."""
        goes_back = ts < tier.said_ts
        if goes_back:
            self.counts["clock_back"] += 1
        if tier.is_another and goes_back and tier.life == self._life:
            self._life += 1
        is_late = (tier.life, ts, tier.ordinal) < self._out
        if tier.life < self._life and (goes_back or (tier.is_another and is_late)):
            tier.life = max(tier.life + 1, self._out[0])
        elif goes_back and tier.ready:
            return tier.said_ts
        elif goes_back:
            self._set_back(tier.life, ts)
        elif tier.life < self._out[0] and self._now_ns - self._life_out_ns >= PATIENCE * self._lateness_ns:
            tier.life = self._out[0]  # what its process said before would have come by now
        return ts

    def _set_back(self, life: int, ts: float) -> None:
        """A process whose clock was set back goes on: nothing of the engine can be late for that."""
        before = math.nextafter(ts, -math.inf)
        self._out = min(self._out, (life, before, -1))
        for one in self._tiers.values():
            if one.life == life and not one.ready:
                one.said_ts = min(one.said_ts, before)

    def _time_of(self, tier: Shares, entry: Entry) -> float | None:
        """What time an entry speaks of; None: of none, or of one that cannot be the engine's."""
        ts = readable_ts(entry)
        if ts is None or not isinstance(entry, Received):
            return None
        tier.hear_clock(ts, entry.received_ns, replayed=entry.replayed)
        if tier.life >= self._out[0] and self._is_ahead(tier, ts, entry.received_ns):
            self.counts["clock_ahead"] += 1
            self.ahead[tier.source] += 1
            return None
        return ts

    def _is_ahead(self, tier: Shares, ts: float, received_ns: int) -> bool:
        """Whether a time is in the future, of the other tiers' clocks and of ours: to believe it would make
        all late that they say until then. What is replayed fast has times of the past, and is believed.
        """
        others = max((one.lead_s for one in self._tiers.values() if one is not tier), default=-math.inf)
        ahead_s = lead_s(ts, received_ns) - max(others, 0.0)
        return math.isfinite(others) and ahead_s > PATIENCE * self._lateness_ns / 1e9

    # -- rounds --------------------------------------------------------------------------------------

    def _next(self) -> Moment | None:
        return min((tier.ready[0].moment for tier in self._tiers.values() if tier.ready), default=None)

    def _heads(self, moment: Moment) -> list[Shares]:
        return [tier for tier in self._tiers.values() if tier.ready and tier.ready[0].moment == moment]

    def _missing(self, moment: Moment) -> list[Shares]:
        return [tier for tier in self._tiers.values() if tier.said < moment]

    def _newest(self, until_ns: int) -> Moment:
        """The last drain of which something waits that came until then."""
        return max(tier.newest(until_ns) for tier in self._tiers.values())

    def _complete(self) -> list[Round]:
        rounds = []
        while (moment := self._next()) is not None and not self._missing(moment):
            rounds.append(self._release(moment))
        return rounds

    def _release(self, moment: Moment) -> Round:
        heads, (life, ts) = self._heads(moment), moment
        without = [
            one for one in self._tiers.values() if one not in heads and (*moment, one.ordinal) > self._out
        ]
        absent = tuple(tier.source for tier in without if tier.said < moment)
        skipped_by = tuple(tier.source for tier in without if tier.said >= moment)
        self.counts += Counter(not_waited_for=len(absent), skipped=len(skipped_by))
        if life > self._out[0]:
            self._life_out_ns = self._now_ns
        entries = [entry for tier in heads for entry in tier.take(moment)]
        spoken = readable_ts(entries[-1])  # a log holds what was said, and who goes on from it reads that
        self._out = (life, ts if spoken is None else spoken, heads[-1].ordinal)
        return Round(ts, entries, absent, skipped_by)

    def _release_marks(self, tiers: Iterable[Shares]) -> list[Round]:
        marks = [mark for tier in tiers for mark in tier.take_marks()]
        return [Round(self._out[1], marks)] if marks else []

    def _is_crowded(self) -> bool:
        tiers = self._tiers.values()
        too_many = sum(tier.entries for tier in tiers) > self._entries_max
        return too_many or sum(tier.bytes for tier in tiers) > self._bytes_max

    def _make_room(self) -> list[Round]:
        rounds: list[Round] = []
        while self._is_crowded():
            self.counts["no_room"] += 1
            moment = self._next()
            rounds += self._release_marks(self._tiers.values()) if moment is None else [self._release(moment)]
        return rounds

    def _late(self, tier: Shares, entry: Received) -> Round:
        """A share whose place has passed: declared, and kept aside."""
        self.counts["late"] += 1
        loss = Loss(entry.source, entry.epoch, entry.seq, entry.seq, "late", entry.received_ns)
        stray = Stray(entry.source, entry.epoch, entry.seq, entry.payload, entry.received_ns, "late")
        return Round(self._out[1], [*tier.take_marks(), loss, stray])
