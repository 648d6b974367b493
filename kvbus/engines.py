"""Which feeds are the tiers of one engine: their entries go through its aggregator, all others straight on.

The one place that maps a source to its engine. Pure: it is given what a ``Subscriber`` delivered and the
time, and gives it back in the order that a log or a reader is to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from kvbus.aggregator import Aggregator
from kvbus.feed import Notice
from kvbus.log import Entry, Received, SourceId, Standing
from kvbus.rounds import Round


class Engine(Struct, frozen=True):
    """Feeds that are one engine's tiers: their names, primary first. ``lateness_s``: how long a round waits
    for a tier that is silent.
    """

    tiers: tuple[str, ...]
    lateness_s: float = 1.0


Item = Entry | Round | Notice
"""What comes out: an entry of a feed that is no tier, an engine's round, or a notice."""


class Engines:
    """The aggregators of any number of engines. ``standings``: where their sources stand in a log that is to
    be continued. Raises ``ValueError`` where a feed is a tier twice.
    """

    def __init__(
        self, engines: Sequence[Engine] = (), *, standings: Mapping[SourceId, Standing] | None = None
    ) -> None:
        self._aggregators: list[Aggregator] = []
        self._of: dict[str, Aggregator] = {}
        self._heard: dict[str, set[SourceId]] = {}
        self._absent: set[str] = set()
        self._absences: Counter[str] = Counter()
        for engine in engines:
            lateness_ns = int(engine.lateness_s * 1e9)
            one = Aggregator(engine.tiers, lateness_ns=lateness_ns, standings=standings)
            if not self._of.keys().isdisjoint(engine.tiers):
                raise ValueError("a feed is a tier twice")
            self._of |= dict.fromkeys(engine.tiers, one)
            self._aggregators.append(one)

    @property
    def waiting(self) -> int:
        """Batches that wait for other tiers."""
        return sum(one.waiting for one in self._aggregators)

    def expects(self, until_ns: int) -> bool:
        """Whether something that came until then (ns since 1970) waits for a tier that is not given up."""
        return any(not self._absent.issuperset(one.waited_for(until_ns)) for one in self._aggregators)

    def counts(self) -> Counter[str]:
        """What did not go as the contract says, by reason: see ``Aggregator.counts``."""
        total: Counter[str] = Counter()
        for one in self._aggregators:
            total.update(one.counts)
        return total

    def take(
        self, items: Sequence[Entry | Notice], *, now_ns: int, holding: Collection[str] = ()
    ) -> Sequence[Item]:
        """What a subscriber delivered until ``now_ns`` (ns since 1970), and what has waited long enough.

        ``holding``: feeds of which it holds something back (``Subscriber.holding``): they are not silent.
        """
        if not self._aggregators:
            return items
        out: list[Item] = []
        for item in items:
            if isinstance(item, Notice) or (aggregator := self._of.get(item.source.source)) is None:
                out.append(item)
            else:
                out += self._note_presence(item)
                unbelieved = aggregator.ahead.total()
                self._put_out(aggregator.add(item), out)
                if aggregator.ahead.total() > unbelieved:
                    out += _disbelief(item.source.source, aggregator.ahead[item.source.source])
        for aggregator in self._aggregators:
            self._put_out(aggregator.tick(now_ns, holding=holding), out)
        return out

    def finish(self, *, until_ns: int | None = None) -> Sequence[Item]:
        """Nothing more will come: what waits. ``until_ns``: see ``Aggregator.finish``."""
        return [one for aggregator in self._aggregators for one in aggregator.finish(until_ns=until_ns)]

    def _note_presence(self, entry: Entry) -> list[Notice]:
        if not isinstance(entry, Received):
            return []
        name = entry.source.source
        self._absent.discard(name)
        streams = self._heard.setdefault(name, set())
        if entry.source in streams:
            return []
        streams.add(entry.source)
        text = "more than one topic or rank speaks here; a tier is one stream, choose it with its topic"
        return [Notice("streams", name, text)] if len(streams) == 2 else []

    def _put_out(self, rounds: Iterable[Round], out: list[Item]) -> None:
        for one in rounds:
            for source in one.absent:
                if source not in self._absent:
                    self._absent.add(source)
                    how = "too far behind" if source in self._heard else "nothing heard"
                    out += self._absence(source, f"{how}, its share of the rounds is missing")
            for source in one.skipped_by:
                out += self._absence(source, "gone for a while, its share of those rounds is missing")
            out.append(one)

    def _absence(self, source: str, text: str) -> list[Notice]:
        """A word on a tier that the others have gone on without; at its 1st, 2nd, 4th, 8th … absence."""
        self._absences[source] += 1
        return [Notice("absent", source, text)] if self._absences[source].bit_count() == 1 else []


def _disbelief(source: str, times: int) -> list[Notice]:
    """A word on a clock that cannot be right; at the 1st, 2nd, 4th, 8th … such batch."""
    text = "its clock is far ahead of the other tiers', the time of its batch was not believed"
    return [Notice("clock", source, text)] if times.bit_count() == 1 else []
