"""A log told by its order alone: what was said of which blocks, one event after the other.

No times, no sequence numbers, no names of machines; media are canonical. What is left is what two runs of one
engine have in common, so two tellings can be compared, and one can be written down (``kvbus/baseline``).
Blocks keep the hashes of their log: ``kvbus/calls`` gives them names for people. Batches without events,
doubles and strays are not part of the order; a hole in the numbers is, also where the log does not declare
it. Nothing here compares or judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from kvbus.errors import LogError
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_medium,
    token_count,
)
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId

EVENTS_MAX: Final = 2_000_000
"""Events of a telling, which is held in memory: a few hundred bytes each."""

STORED: Final = "stored"
REMOVED: Final = "removed"
CLEARED: Final = "cleared"
RESTART: Final = "restart"
LOST: Final = "lost"
UNREADABLE: Final = "unreadable"
"""What happened; an event under a tag that kvbus does not know is the tag behind a ``?``."""
UNDECLARED: Final = "undeclared"
"""The reason of a hole inside an epoch that no ``Loss`` tells."""


class TooLongError(LogError):
    """A log has more events than a comparison takes."""


class Voice(Struct, frozen=True):
    """Who speaks. ``engine`` and ``tier`` are what ``record --engine`` calls a source (``ENGINE/TIER``); any
    other is an engine of its own, without a ``tier``. ``rank`` is -1 where payloads carry none; ``told_as``
    is what the log calls the source.
    """

    engine: str
    tier: str = ""
    rank: int = -1
    told_as: str = ""


class Where(NamedTuple):
    """Where an event stands: in a log, or (``line``, counted from 1) in a baseline."""

    epoch: int = 0
    seq: int = 0
    event: int = 0
    position: int = 0
    line: int = 0


class Told(Struct, frozen=True, gc=False):
    """One event. ``voice`` is an index; events of one ``batch`` came in one message.

    ``tokens`` and ``size`` (tokens a block) are 0, ``group`` is -1 and texts are empty where nothing was
    said; ``blocks`` are hashes (of a ``LOST``: the number of batches in ``tokens``, no blocks).
    """

    voice: int
    batch: int
    what: str
    where: Where
    medium: str = ""
    group: int = -1
    blocks: tuple[int, ...] = ()
    parent: int | None = None
    tokens: int = 0
    size: int = 0
    lora: str = ""
    owner: str = ""
    reason: str = ""


class Telling(Struct, frozen=True):
    """``name``: what the log is called in reports. ``is_log``: blocks are hashes, not a baseline's names."""

    name: str
    voices: Sequence[Voice]
    events: Sequence[Told]
    is_log: bool = True

    def engines(self) -> list[list[int]]:
        """The voices of each engine, by first sight: those whose order against each other means something."""
        found: dict[tuple[str, int], list[int]] = {}
        for number, voice in enumerate(self.voices):
            found.setdefault((voice.engine, voice.rank), []).append(number)
        return list(found.values())

    def media(self) -> list[set[str]]:
        """The media each voice has spoken of."""
        found: list[set[str]] = [set() for _ in self.voices]
        for event in self.events:
            if event.medium:
                found[event.voice].add(event.medium)
        return found


def mentioned(event: Told) -> tuple[int, ...]:
    """The blocks an event speaks of, the parent first."""
    return event.blocks if event.parent is None else (event.parent, *event.blocks)


def telling(entries: Iterable[PositionedEntry], *, name: str = "log") -> Telling:
    """The order that a log's entries tell. Raises ``TooLongError``."""
    teller = _Teller(name)
    for at in entries:
        teller.take(at)
    return Telling(name, teller.voices, teller.events)


class _Teller:
    def __init__(self, name: str) -> None:
        self.voices: list[Voice] = []
        self.events: list[Told] = []
        self._name = name
        self._numbers: dict[SourceId, int] = {}
        self._epochs: dict[int, int] = {}
        self._next_seqs: dict[int, tuple[int, int]] = {}
        self._batches = 0

    def take(self, at: PositionedEntry) -> None:
        entry = at.entry
        if isinstance(entry, Received):
            self._batch(entry, at.position)
        elif isinstance(entry, EpochBegan):
            voice = self._voice(entry.source)
            if self._epochs.setdefault(voice, entry.epoch) < entry.epoch:
                self._epochs[voice] = entry.epoch
                self._alone(voice, RESTART, Where(entry.epoch, 0, 0, at.position))
        elif isinstance(entry, Loss):
            voice = self._voice(entry.source)
            self._go_on(voice, entry.epoch, entry.first_seq, entry.last_seq, at.position)
            where = Where(entry.epoch, entry.first_seq, 0, at.position)
            count = entry.last_seq - entry.first_seq + 1
            self._alone(voice, LOST, where, count=count, reason=entry.reason)
        if len(self.events) > EVENTS_MAX:
            raise TooLongError(
                f"{self._name} has more than {EVENTS_MAX:,} events",
                next_step="Take a part of it: kvbus replay --from … --until … --json, then import that.",
            )

    def _batch(self, entry: Received, position: int) -> None:
        batch = entry.batch
        events = batch.events if isinstance(batch, EventBatch) else [batch]
        voice = self._voice(entry.source)
        self._epochs.setdefault(voice, entry.epoch)
        self._go_on(voice, entry.epoch, entry.seq, entry.seq, position)
        for index, event in enumerate(events):
            where = Where(entry.epoch, entry.seq, index, position)
            self.events.append(_told(event, voice, self._batches, where))
        self._batches += bool(events)

    def _go_on(self, voice: int, epoch: int, first_seq: int, last_seq: int, position: int) -> None:
        """Numbers of an epoch that are accounted for; those that were passed over before them are a hole."""
        before, next_seq = self._next_seqs.get(voice, (epoch, first_seq))
        if before != epoch:
            next_seq = first_seq
        if first_seq > next_seq:
            where = Where(epoch, next_seq, 0, position)
            self._alone(voice, LOST, where, count=first_seq - next_seq, reason=UNDECLARED)
        self._next_seqs[voice] = epoch, max(next_seq, last_seq + 1)

    def _alone(self, voice: int, what: str, where: Where, *, count: int = 0, reason: str = "") -> None:
        self.events.append(Told(voice, self._batches, what, where, tokens=count, reason=reason))
        self._batches += 1

    def _voice(self, source: SourceId) -> int:
        number = self._numbers.get(source)
        if number is None:
            number = self._numbers[source] = len(self.voices)
            self.voices.append(_voice(source))
        return number


def _voice(source: SourceId) -> Voice:
    engine, tier = source.engine_and_tier or (repr(source), "")
    return Voice(engine, tier, source.rank, source.source)


def _told(event: Event, voice: int, batch: int, where: Where) -> Told:
    if isinstance(event, BlockStored):
        return Told(
            voice,
            batch,
            STORED,
            where,
            medium=canonical_medium(event.medium),
            group=-1 if event.group_idx is None else event.group_idx,
            blocks=tuple(event.block_hashes),
            parent=event.parent_block_hash,
            tokens=token_count(event.token_ids),
            size=event.block_size or 0,
            lora=event.lora_name or ("" if event.lora_id is None else str(event.lora_id)),
            owner=event.ownership or "",
        )
    if isinstance(event, BlockRemoved):
        return Told(
            voice,
            batch,
            REMOVED,
            where,
            medium=canonical_medium(event.medium),
            group=-1 if event.group_idx is None else event.group_idx,
            blocks=tuple(event.block_hashes),
            owner=event.ownership or "",
            reason=event.reason or "",
        )
    if isinstance(event, AllBlocksCleared):
        return Told(voice, batch, CLEARED, where)
    if isinstance(event, Unrecognized):
        medium = canonical_medium(event.medium) if event.medium else ""
        return Told(voice, batch, "?" + event.tag, where, medium=medium)
    assert isinstance(event, Undecodable)
    return Told(voice, batch, UNREADABLE, where)
