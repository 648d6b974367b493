"""What is in a log, counted: the object that ``kvbus stat LOG --json`` prints.

A fold, like the residency it is built on: give it entries, ask for the summary. It counts and does not judge.
Media are canonical (upper case, ``GPU`` where an event has none); ``resident`` is ``Residency``'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from kvbus.events import AllBlocksCleared, EventBatch, Undecodable, Unrecognized, canonical_medium
from kvbus.log import Entry, EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from kvbus.residency import Residency

TAGS_MAX: Final = 64
"""Unknown (tag, medium) pairs counted by name; those beyond are counted under ``OTHER_TAGS``."""
OTHER_TAGS: Final = "(other tags)"

ByMedium = dict[str, int]


class EpochSummary(Struct):
    """One publisher process, with the numbers of its first and last batch in the log."""

    epoch: int
    first_seq: int
    last_seq: int
    batches: int
    because: str = ""
    incarnation: str = ""


class LossSummary(Struct, frozen=True):
    """Batches that cannot be had, both ends included."""

    epoch: int
    first_seq: int
    last_seq: int
    reason: str


class SourceSummary(Struct):
    """One publisher's stream. Epochs without a batch are left out; ``rank`` None: payloads say none."""

    source: str
    topic: str
    rank: int | None
    instance: int
    epochs: list[EpochSummary] = field(default_factory=list)
    losses: list[LossSummary] = field(default_factory=list)
    strays: dict[str, int] = field(default_factory=dict)
    resident: ByMedium = field(default_factory=dict)


class Summary(Struct):
    """The object of ``kvbus stat --json``. Times are the publishers' clocks, in seconds since 1970.

    ``undecoded`` counts payloads that cannot be read and events that cannot.
    ``events`` has ``BlockStored`` and ``BlockRemoved`` by medium, ``AllBlocksCleared`` as a number, and
    unknown tags by medium where they name one.
    """

    batches: int
    events: dict[str, int | ByMedium]
    blocks: dict[str, ByMedium]
    resident: ByMedium
    sources: list[SourceSummary]
    undecoded: int
    unknown_keys: int
    first_ts: float | None
    last_ts: float | None

    def as_object(self) -> dict[str, object]:
        """The same of dicts, lists, strings and numbers, ready for JSON."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain


class Summarizer:
    """Counts entries as they come; ``summary`` may be asked at any time."""

    def __init__(self) -> None:
        self.residency = Residency()
        self._batches = 0
        self._cleared = 0
        self._undecoded = 0
        self._unknown_keys = 0
        self._tags: Counter[tuple[str, str | None]] = Counter()
        self._first_ts: float | None = None
        self._last_ts: float | None = None
        self._sources: dict[SourceId, SourceSummary] = {}
        self._began: dict[SourceId, EpochBegan] = {}

    def fold(self, entry: Entry | PositionedEntry) -> None:
        """Take the next entry of the log."""
        if isinstance(entry, PositionedEntry):
            entry = entry.entry
        self.residency.fold(entry)
        source = self._source(entry.source)
        if isinstance(entry, Received):
            self._batches += 1
            self._number(source, entry)
            self._read(entry.batch)
        elif isinstance(entry, Loss):
            source.losses.append(LossSummary(entry.epoch, entry.first_seq, entry.last_seq, entry.reason))
        elif isinstance(entry, Stray):
            source.strays[entry.reason] = source.strays.get(entry.reason, 0) + 1
        else:
            self._began[entry.source] = entry

    def summary(self) -> Summary:
        tallies = self.residency.tallies
        stored = {medium: tally for medium, tally in tallies.items() if tally.stored_events}
        removed = {medium: tally for medium, tally in tallies.items() if tally.removed_events}
        events: dict[str, int | ByMedium] = {
            "BlockStored": {medium: tally.stored_events for medium, tally in stored.items()},
            "BlockRemoved": {medium: tally.removed_events for medium, tally in removed.items()},
            "AllBlocksCleared": self._cleared,
        }
        return Summary(
            batches=self._batches,
            events=events | self._unknown_tags(),
            blocks={
                "BlockStored": {medium: tally.stored_blocks for medium, tally in stored.items()},
                "BlockRemoved": {medium: tally.removed_blocks for medium, tally in removed.items()},
            },
            resident=self.residency.residents(),
            sources=[self._as_of_now(source) for source in sorted(self._sources)],
            undecoded=self._undecoded,
            unknown_keys=self._unknown_keys,
            first_ts=self._first_ts,
            last_ts=self._last_ts,
        )

    def _as_of_now(self, source: SourceId) -> SourceSummary:
        told = self._sources[source]
        return replace(
            told,
            epochs=[replace(epoch) for epoch in told.epochs],
            losses=list(told.losses),
            strays=dict(told.strays),
            resident=self.residency.residents(source=source),
        )

    def _source(self, source: SourceId) -> SourceSummary:
        told = self._sources.get(source)
        if told is None:
            told = self._sources[source] = SourceSummary(
                source.source, source.topic_text, source.said_rank, source.instance
            )
        return told

    def _number(self, source: SourceSummary, entry: Received) -> None:
        if source.epochs and source.epochs[-1].epoch == entry.epoch:
            epoch = source.epochs[-1]
            epoch.last_seq = entry.seq
            epoch.batches += 1
            return
        began = self._began.get(entry.source)
        epoch = EpochSummary(entry.epoch, entry.seq, entry.seq, 1)
        if began is not None and began.epoch == entry.epoch:
            epoch.because, epoch.incarnation = began.because, began.incarnation
        source.epochs.append(epoch)

    def _read(self, batch: EventBatch | Undecodable) -> None:
        if isinstance(batch, Undecodable):
            self._undecoded += 1
            return
        self._unknown_keys += batch.unknown_keys
        if self._first_ts is None:
            self._first_ts = batch.ts
        self._last_ts = batch.ts
        for event in batch.events:
            kind = type(event)
            if kind is AllBlocksCleared:
                self._cleared += 1
            elif kind is Undecodable:
                self._undecoded += 1
            elif isinstance(event, Unrecognized):
                self._count_tag(event)

    def _count_tag(self, event: Unrecognized) -> None:
        pair = (event.tag, event.medium)
        if pair not in self._tags and len(self._tags) >= TAGS_MAX:
            pair = (OTHER_TAGS, None)
        self._tags[pair] += 1

    def _unknown_tags(self) -> dict[str, int | ByMedium]:
        """By medium where a tag was ever seen with one, else a number."""
        with_medium = {tag for tag, medium in self._tags if medium is not None}
        told: dict[str, int | ByMedium] = {}
        for (tag, medium), seen in self._tags.items():
            if tag not in with_medium:
                told[tag] = seen
                continue
            media = told.setdefault(tag, {})
            assert isinstance(media, dict)
            name = canonical_medium(medium)
            media[name] = media.get(name, 0) + seen
        return told


def summarize(entries: Iterable[Entry | PositionedEntry]) -> Summary:
    """The summary of a finished log."""
    summarizer = Summarizer()
    for entry in entries:
        summarizer.fold(entry)
    return summarizer.summary()
