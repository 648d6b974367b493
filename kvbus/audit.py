"""One pass over a log with every rule: entries or columns in, a verdict at any time.

Give it entries as they come, from a recorder or a test, or the columns of a log; both go one way and the
findings are the same. Memory is bounded by the blocks that are resident and by what each rule declares to
remember, not by the length of the log. It opens nothing and prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvbus.chunk import Chunk
from kvbus.chunks import Chunks, ColumnLog
from kvbus.clouds import Clouds
from kvbus.events import canonical_medium
from kvbus.findings import Findings, Group
from kvbus.holdings import Holdings
from kvbus.log import LogReader, PositionedEntry, Received, SourceId
from kvbus.names import distinct
from kvbus.profile import Profile, chosen, detected
from kvbus.rules import residency
from kvbus.rules.capacity import Capacity
from kvbus.rules.clears import Clears
from kvbus.rules.clock import Clock
from kvbus.rules.crossing import Crossing
from kvbus.rules.lifetimes import Lifetimes
from kvbus.rules.order import TierOrder
from kvbus.rules.payload import Decoding, Sizes, dense, fresh_contents
from kvbus.rules.rooms import Rooms
from kvbus.rules.table import RULES, About, UnknownRuleError
from kvbus.rules.transport import Transport
from kvbus.scene import Scene
from kvbus.verdict import EXAMPLES, Level, Report, RuleVerdict, Verdict, doubted, overall

GATHER_ENTRIES: Final = 512
GATHER_EVENTS: Final = 1 << 15
"""Entries, and events in them, that wait to be judged together; a verdict waits for none."""
NOTHING: Final = "no batch was seen: nothing was judged"


class Audit:
    """Runs all rules and answers for some of them (``rules``: names of ``RULES``; None: all).

    ``examples``: how many findings of a kind are kept with their evidence. ``profile``: what is legal (a name
    of ``PROFILES``; None: read off each stream). ``capacities``: blocks that fit into a medium, whatever a
    publisher says of itself. ``engines``: feed names of engines whose tiers each have a source, primary
    first. Raises ``UnknownRuleError``, ``UnknownProfileError``.
    """

    def __init__(
        self,
        rules: Sequence[str] | None = None,
        *,
        examples: int = EXAMPLES,
        profile: str | None = None,
        capacities: Mapping[str, int] | None = None,
        engines: Sequence[Sequence[str]] = (),
    ) -> None:
        names = list(RULES) if rules is None else list(rules)
        if unknown := [name for name in names if name not in RULES]:
            raise UnknownRuleError(
                f"there is no rule {', '.join(map(repr, unknown))}",
                next_step=f"The rules are: {', '.join(RULES)}.",
            )
        fits = {canonical_medium(medium): most for medium, most in (capacities or {}).items()}
        self._rules = [about for about in RULES.values() if about.name in names]
        self._examples = examples
        self._profile = None if profile is None else chosen(profile)
        self._findings = Findings(examples)
        self._names = Chunks()
        self._gathered: list[PositionedEntry] = []
        self._events = 0
        self._batches = 0
        self._speech: dict[int, _Speech] = {}
        self._clouds = Clouds()
        self._holdings = Holdings(self._names)
        self._transport = Transport(self._names, self._findings)
        self._decoding = Decoding(self._names, self._findings)
        self._clock = Clock(self._names, self._findings, declared=fits)
        self._sizes = Sizes()
        self._crossing = Crossing(self._names)
        self._tier_order = TierOrder(self._names, engines)
        self._rooms = Rooms(self._names, fits)
        self._capacity = Capacity(self._rooms)
        self._clears = Clears()
        self._lifetimes = Lifetimes(self._names, self._rooms)

    # -- taking a log in -------------------------------------------------------------------------------------

    def observe(self, at: PositionedEntry) -> None:
        """Take the next entry of the log."""
        self._gathered.append(at)
        if isinstance(at.entry, Received):
            self._events += len(getattr(at.entry.batch, "events", ()))
        if len(self._gathered) >= GATHER_ENTRIES or self._events >= GATHER_EVENTS:
            self._judge_gathered()

    def observe_log(self, log: LogReader) -> None:
        """Take a log from its beginning to its end, as columns where it has them."""
        if not isinstance(log, ColumnLog):
            for at in log.entries():
                self.observe(at)
            return
        self._judge_gathered()
        self._names.sources.update(log.sources())
        position = 0
        for tables in log.columns():
            chunk = self._names.of_tables(tables, first=position)
            position += len(chunk.seq)
            self._judge(chunk)
        self._names.go_on()

    def _judge_gathered(self) -> None:
        gathered, self._gathered, self._events = self._gathered, [], 0
        if gathered:
            self._judge(self._names.of_entries(gathered))

    def _judge(self, chunk: Chunk) -> None:
        self._batches += len(chunk.seq)
        self._listen(chunk)
        missed = [*self._transport.look(chunk), *self._decoding.look(chunk)]
        self._clock.look(chunk)
        sky = self._clouds.over(chunk, sorted(missed, key=lambda miss: miss[:2]))
        questions = self._crossing.asks(chunk)
        moves = self._holdings.step(chunk, fresh_contents(chunk, self._names.salts), questions.asks)
        scene = Scene(chunk, self._names, self._holdings, moves, sky, self._findings)
        residency.refcount(scene)
        self._rooms.look(chunk)
        residency.at_once(scene, self._rooms)
        self._capacity.look(scene)
        self._tier_order.look(scene)
        self._crossing.look(scene, questions)
        residency.chain(scene)
        residency.copies(scene)
        self._clears.look(scene)
        dense(scene)
        residency.content(scene)
        self._sizes.look(scene)
        self._lifetimes.look(scene)

    # -- answering -------------------------------------------------------------------------------------------

    def verdict(self, *, at_end: bool = True) -> Report:
        """What the rules answer to everything observed so far; before the first batch no rule holds. Not
        ``at_end``: without what is so only if nothing more comes.
        """
        self._judge_gathered()
        findings = self._findings.copy()
        if at_end:
            self._transport.conclude(findings)
            self._clock.conclude(findings)
            self._lifetimes.conclude(findings, self._holdings.resident())
        answers = [self._answer(about, findings) for about in self._rules]
        report = Report(overall(answer.verdict for answer in answers), answers)
        return report if self._batches else doubted(report, [NOTHING])

    def profiles(self) -> dict[SourceId, Profile]:
        """Under which profile each source is judged."""
        self._judge_gathered()
        return {source: self._profile_of(number) for number, source in self._names.sources.items()}

    def counts(self) -> dict[str, int]:
        """How many findings of each kind (of ``KINDS``) there are so far, whatever they count as."""
        self._judge_gathered()
        total: Counter[str] = Counter()
        for group, count in self._findings.totals():
            total[group.kind] += count
        return dict(total)

    def check_integrity(self) -> None:
        """Raise AssertionError where what is remembered contradicts itself."""
        self._holdings.check_integrity()

    def _answer(self, about: About, findings: Findings) -> RuleVerdict:
        listed = findings.listed(self._level, about.name)
        total = sum(
            count
            for group, count in findings.totals()
            if group.rule == about.name and self._level(group) == "violation"
        )
        verdict: Verdict = "VIOLATED" if total else "UNKNOWN" if listed["unknown"] else "HOLDS"
        told = [*listed["unknown"], *listed["warning"], *listed["information"]]
        return RuleVerdict(
            about.name,
            about.id,
            verdict,
            [finding for _, finding in listed["violation"][: self._examples]],
            [finding for _, finding in told],
            total,
        )

    def _level(self, group: Group) -> Level:
        return self._profile_of(group.source).level(group.kind)

    def _profile_of(self, source: int) -> Profile:
        if self._profile is not None:
            return self._profile
        speech = self._speech.get(source)
        return (
            detected(set(), emits=False, from_one=False, maps=False) if speech is None else speech.profile()
        )

    def _listen(self, chunk: Chunk) -> None:
        """How each source speaks: what its profile is read off."""
        sources = chunk.event_sources()
        for number in distinct(chunk.source).tolist():
            mine = sources == number
            speech = self._speech.setdefault(number, _Speech())
            media = distinct(chunk.medium[mine]).tolist()
            speech.media |= {self._names.media.names[medium] for medium in media if medium >= 0}
            places = distinct(chunk.place[mine]).tolist()
            speech.grouped |= any(
                self._names.places.names[place].group is not None for place in places if place >= 0
            )
            speech.emits |= bool((chunk.emit_seq[mine] >= 0).any())
            dialects = distinct(chunk.dialect[chunk.source == number]).tolist()
            speech.maps |= any(self._names.dialects.names[dialect].startswith("map") for dialect in dialects)
            speech.from_one |= any(int(chunk.source[row]) == number for row in chunk.from_one)


class _Speech:
    """What a source has said so far, as far as it tells whose stream it is."""

    def __init__(self) -> None:
        self.media: set[str] = set()
        self.grouped = self.emits = self.maps = self.from_one = False

    def profile(self) -> Profile:
        maps = self.maps and bool(self.media) and not self.grouped
        return detected(self.media, emits=self.emits, from_one=self.from_one, maps=maps)


def audit(
    entries: Iterable[PositionedEntry],
    rules: Sequence[str] | None = None,
    *,
    examples: int = EXAMPLES,
    profile: str | None = None,
    capacities: Mapping[str, int] | None = None,
    engines: Sequence[Sequence[str]] = (),
) -> Report:
    """The verdict on a finished list of entries. Raises as ``Audit`` does."""
    auditor = Audit(rules, examples=examples, profile=profile, capacities=capacities, engines=engines)
    for at in entries:
        auditor.observe(at)
    return auditor.verdict()
