"""When two events count as the same, whatever their blocks are called: by what they say and by what was said
of the same blocks before.

A telling becomes a series of units, an event each, or a batch each where the order inside batches is not
looked at. Each has a key, made of this telling alone, so that two tellings are alike as far as their keys
are. In it a block is the number it got at first sight. Where several new blocks cannot be told apart (two
stores in a batch without order) they share a number until something is said of one of them: what comes later
decides which is which, so nothing is called a difference that is only a name. One thing that is given up for
that: relations between blocks that still share a number are not followed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct, structs

from kvbus.errors import ConfigError
from kvbus.telling import LOST, RESTART, Told, mentioned

TOLERANCES: Final = {
    "reorder-within-batch": "the order of the events inside a batch",
    "reorder-within-event": "the order of the blocks inside an event",
    "batching": "which events share a batch",
    "interleaving": "how the tiers of one engine lie between each other",
    "parents": "which parent a store names",
    "tokens": "how many tokens a store carries, and its block size",
    "groups": "the KV-cache group",
    "owners": "which tier an event says it is from (ownership)",
    "reasons": "why blocks were removed, or batches lost",
    "restarts": "that a publisher began anew",
    "losses": "holes in the log",
}
"""What ``--ignore`` takes, and what is then not looked at."""

NO_PARENT: Final = -(1 << 40)
NEW_PARENT: Final = NO_PARENT - 1
"""In keys: there is none; it is a block that nothing was said of before. (Blocks are 0 and up, new ones of
the same event -1 and down.)"""

Key = tuple[Any, ...]


class Unit(Struct, frozen=True):
    """What is compared at once: an event, or a batch without order."""

    key: Key
    events: Sequence[Told]


def tolerances(names: str | Iterable[str]) -> frozenset[str]:
    """Names as a set, from one text or several, with commas between. Raises ``ConfigError`` for one that is
    none, and for two that leave no order.
    """
    texts = [names] if isinstance(names, str) else names
    chosen = frozenset(name.strip() for text in texts for name in text.split(","))
    if unknown := sorted(chosen - TOLERANCES.keys()):
        raise ConfigError(
            f"nothing called {unknown[0]!r} can be ignored", next_step=f"Known are: {', '.join(TOLERANCES)}."
        )
    if {"batching", "reorder-within-batch"} <= chosen:
        raise ConfigError(
            "batching and reorder-within-batch cannot both be ignored: no order would be left",
            next_step="Choose one of them.",
        )
    return chosen


def levelled(events: Iterable[Told], ignore: Collection[str]) -> list[Told]:
    """The events with what is not looked at left out of them."""
    unsaid = {"restarts": RESTART, "losses": LOST}
    dropped = {what for name, what in unsaid.items() if name in ignore}
    blank: dict[str, object] = {}
    for name, fields in (
        ("parents", {"parent": None}),
        ("tokens", {"tokens": 0, "size": 0}),
        ("groups", {"group": -1}),
        ("owners", {"owner": ""}),
        ("reasons", {"reason": ""}),
    ):
        blank |= fields if name in ignore else {}
    kept = [event for event in events if event.what not in dropped]
    if not blank:
        return kept
    return [structs.replace(event, **_but_for_losses(event, blank)) for event in kept]


def _but_for_losses(event: Told, blank: Mapping[str, object]) -> Mapping[str, object]:
    """A loss has its number of batches where stores have their tokens."""
    return {name: value for name, value in blank.items() if name != "tokens" or event.what != LOST}


class Units:
    """Makes the units of one engine's telling; owns the numbers its blocks have."""

    def __init__(self, ignore: Collection[str], voices: Mapping[int, int]) -> None:
        """``voices``: by what number each voice is known in both tellings."""
        self._voices = voices
        self._batchwise = "reorder-within-batch" in ignore
        self._batches = "batching" not in ignore
        self._unordered = "reorder-within-event" in ignore
        self.numbers: dict[int, int] = {}
        self._sharing: dict[int, int] = {}
        self._next = 0

    def of(self, events: Iterable[Told]) -> Iterator[Unit]:
        """Their units in order; what is not looked at is left out already (``levelled``)."""
        for _, members in groupby(events, key=attrgetter("voice", "batch")):
            batch = list(members)
            if self._batchwise:
                yield Unit(self._name(batch, begins=True), batch)
                continue
            for n, event in enumerate(batch):
                yield Unit(self._name([event], begins=self._batches and n == 0), [event])

    def _name(self, events: Sequence[Told], *, begins: bool) -> Key:
        """The key of a unit; afterwards its blocks have numbers."""
        if len(events) == 1 and not self._unordered and not self._sharing:
            return self._name_one(events[0], begins=begins)
        keys = [self._key(event) for event in events]
        ranks = {key: n for n, key in enumerate(sorted(set(keys)))}
        mentions: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for key, event in zip(keys, events, strict=True):
            for at, block in enumerate(mentioned(event)):
                is_parent = event.parent is not None and at == 0
                mentions[block].append((ranks[key], -1 if is_parent else 0 if self._unordered else at))
        return begins, tuple(sorted(keys)), self._tell_apart(mentions)

    def _name_one(self, event: Told, *, begins: bool) -> Key:
        """The usual case, quickly: one event in order, no blocks that share a number."""
        key = self._key(event)
        for block in mentioned(event):
            if block not in self.numbers:
                self.numbers[block] = self._next
                self._next += 1
        return begins, key

    def _key(self, event: Told) -> Key:
        numbers, unseen = self.numbers, dict[int, int]()
        if self._unordered:
            times = Counter(event.blocks)
            unseen = {block: -1 - times[block] for block in times if block not in numbers}
            names = tuple(sorted(numbers.get(block, unseen.get(block, 0)) for block in event.blocks))
        else:
            for block in event.blocks:
                if block not in numbers:
                    unseen.setdefault(block, -1 - len(unseen))
            names = tuple(numbers[block] if block in numbers else unseen[block] for block in event.blocks)
        parent = event.parent
        above = NO_PARENT if parent is None else numbers.get(parent, unseen.get(parent, NEW_PARENT))
        return (
            self._voices[event.voice],
            event.what,
            event.medium,
            event.group,
            names,
            above,
            event.tokens,
            event.size,
            event.lora,
            event.owner,
            event.reason,
        )

    def _tell_apart(self, mentions: Mapping[int, list[tuple[int, int]]]) -> Key:
        """Number the blocks that are new, or no longer alike: those of which the same was said stay alike."""
        alike: dict[tuple[int, tuple[tuple[int, int], ...]], list[int]] = defaultdict(list)
        for block, places in mentions.items():
            alike[self.numbers.get(block, -1), tuple(sorted(places))].append(block)
        for (number, _), blocks in sorted(alike.items()):
            if number != -1 and number not in self._sharing:
                continue
            if number != -1:
                self._leave(number, len(blocks))
            for block in blocks:
                self.numbers[block] = self._next
            if len(blocks) > 1:
                self._sharing[self._next] = len(blocks)
            self._next += 1
        return tuple((key, len(blocks)) for key, blocks in sorted(alike.items()))

    def _leave(self, number: int, count: int) -> None:
        left = self._sharing.pop(number) - count
        if left > 1:
            self._sharing[number] = left
