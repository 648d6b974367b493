"""A telling as text that people can read, review and commit: one line an event, and back.

    kvbus baseline 1
    source 1 rank=0
    1 | stored GPU/0 b1..b2 tokens=32 size=16      a batch begins
    1 : removed GPU/0 b1 reason=evicted            the same batch goes on
    1 | restart

Engines follow one another, each with its events in order and names of its own, so that what two engines did
at the same time makes no difference. Lines that begin with ``#`` are for people. A reader refuses what it
does not know: a line that is passed over would be an event that is not compared. A new version may add words;
this one reads version 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from kvbus.calls import Calls, spelled
from kvbus.errors import LogError
from kvbus.telling import (
    CLEARED,
    EVENTS_MAX,
    LOST,
    REMOVED,
    RESTART,
    STORED,
    UNREADABLE,
    Telling,
    Told,
    TooLongError,
    Voice,
    Where,
)

VERSION: Final = 1
HEADER: Final = "kvbus baseline "
LINE_BLOCKS_MAX: Final = 1 << 20
"""Blocks that one line may name: more than any batch holds."""

_LINE: Final = re.compile(r"(\d{1,9}) ([|:]) (\S+)(?: (.*))?")
_NAMES: Final = re.compile(r"b(\d{1,18})(?:\.\.b(\d{1,18}))?")
_NUMBERS: Final = {"tokens": "tokens", "size": "size"}
_TEXTS: Final = {"lora": "lora", "owner": "owner", "reason": "reason"}


class BaselineError(LogError):
    """A baseline cannot be read."""


def is_baseline(head: bytes) -> bool:
    """Whether a file that begins so is a baseline, of whatever version."""
    return head.startswith(HEADER.encode())


# -- writing -----------------------------------------------------------------------------------------------


def written(telling: Telling) -> Iterator[str]:
    """The lines of a baseline, each with its newline. The same order gives the same text."""
    yield f"{HEADER}{VERSION}\n"
    engines = _arranged(telling)
    numbers: dict[int, int] = {}
    for engine, voices in enumerate(engines, start=1):
        for voice in voices:
            numbers[voice] = len(numbers) + 1
            yield f"source {numbers[voice]}{_described(telling.voices[voice], engine)}\n"
    for voices in engines:
        calls, batch = Calls(), -1
        for event in telling.events:
            if event.voice in voices:
                sign = ":" if event.batch == batch else "|"
                batch = event.batch
                yield f"{numbers[event.voice]} {sign} {said(event, calls)}\n"


def _arranged(telling: Telling) -> list[list[int]]:
    """Engines in an order that does not hang on who spoke first: by media, then rank."""
    media = telling.media()

    def key(voices: list[int]) -> tuple[list[str], int]:
        return sorted(set().union(*(media[voice] for voice in voices))), telling.voices[voices[0]].rank

    return sorted(telling.engines(), key=key)


def _described(voice: Voice, engine: int) -> str:
    words = f" engine={engine} tier={quote(voice.tier, safe='')}" if voice.tier else ""
    return words + (f" rank={voice.rank}" if voice.rank >= 0 else "")


def said(event: Told, calls: Calls) -> str:
    """An event in words, without its source."""
    calls.meet(event)
    if event.what == LOST:
        return f"{LOST} {event.tokens}" + _extra("reason", event.reason)
    if event.what not in (STORED, REMOVED):
        words = [event.what if event.what[0] != "?" else "?" + quote(event.what[1:], safe="")]
        return " ".join(words + ([quote(event.medium, safe="")] if event.medium else []))
    where = quote(event.medium, safe="") + (f"/{event.group}" if event.group != -1 else "")
    text = f"{event.what} {where} {spelled([calls.name(block) for block in event.blocks]) or '-'}"
    if event.parent is not None:
        text += f" parent={calls.name(event.parent)}"
    for name, field in _NUMBERS.items():
        text += _extra(name, getattr(event, field))
    for name, field in _TEXTS.items():
        text += _extra(name, getattr(event, field))
    return text


def _extra(name: str, value: object) -> str:
    return f" {name}={quote(str(value), safe='')}" if value else ""


# -- reading -----------------------------------------------------------------------------------------------


def read_baseline(lines: Iterable[str], *, name: str) -> Telling:
    """The telling that these lines are. Raises ``BaselineError`` with the line, ``TooLongError``."""
    reader = _Reader(name)
    for number, line in enumerate(lines, start=1):
        try:
            reader.take(number, line.rstrip("\r\n"))
        except ValueError as error:
            raise BaselineError(
                f"{name} line {number}: {error}",
                next_step="Put the line back as `kvbus baseline` wrote it, or write the baseline anew.",
            ) from error
    if not reader.begun:
        raise BaselineError(f"{name} is empty", next_step="Write it with `kvbus baseline LOG -o FILE`.")
    return Telling(name, list(reader.voices.values()), reader.events, is_log=False)


class _Reader:
    def __init__(self, name: str) -> None:
        self.begun = False
        self.voices: dict[str, Voice] = {}
        self.events: list[Told] = []
        self._name = name
        self._ordinals: dict[str, int] = {}
        self._batch = -1

    def take(self, number: int, line: str) -> None:
        if not self.begun:
            if line != f"{HEADER}{VERSION}":
                raise ValueError(f"it begins with {line[:60]!r}, not with {HEADER}{VERSION}")
            self.begun = True
        elif line.startswith("source "):
            self._voice(line.split(" ")[1:])
        elif line and not line.startswith("#"):
            self._event(number, line)

    def _voice(self, words: Sequence[str]) -> None:
        name, *rest = words
        if not name.isdecimal() or name in self.voices:
            raise ValueError(f"source {name!r} is there twice, or is no number")
        extras = _extras(rest, ("engine", "tier", "rank"))
        rank = int(extras.get("rank", "-1"))
        engine = extras.get("engine", f"source {name}")
        self._ordinals[name] = len(self.voices)
        self.voices[name] = Voice(engine, extras.get("tier", ""), rank, f"source {name}")

    def _event(self, number: int, line: str) -> None:
        found = _LINE.fullmatch(line)
        if found is None or found[1] not in self.voices:
            raise ValueError(f"{line[:60]!r} is no event of a source that was named before")
        voice = self._ordinals[found[1]]
        if found[2] == "|":
            self._batch += 1
        elif not self.events or self.events[-1].voice != voice:
            raise ValueError("it goes on with a batch (:) that its source has not begun in the line before")
        if len(self.events) >= EVENTS_MAX:
            raise TooLongError(
                f"{self._name} has more than {EVENTS_MAX:,} events",
                next_step="Write baselines of shorter logs.",
            )
        self.events.append(_parsed(found[3], found[4] or "", voice, self._batch, Where(line=number)))


def _parsed(what: str, rest: str, voice: int, batch: int, where: Where) -> Told:
    words = rest.split(" ") if rest else []
    if what in (STORED, REMOVED) and len(words) >= 2:
        tier, blocks, *more = words
        medium, slash, group = tier.partition("/")
        allowed = ("parent", *_NUMBERS, *_TEXTS) if what == STORED else tuple(_TEXTS)
        extras = _extras(more, allowed)
        parent = extras.pop("parent", None)
        return Told(
            voice,
            batch,
            what,
            where,
            unquote(medium),
            int(group) if slash else -1,
            named(blocks) if blocks != "-" else (),
            None if parent is None else named(parent)[0],
            int(extras.get("tokens", 0)),
            int(extras.get("size", 0)),
            *(extras.get(name, "") for name in ("lora", "owner", "reason")),
        )
    if what == LOST and words:
        extras = _extras(words[1:], ("reason",))
        return Told(voice, batch, LOST, where, tokens=int(words[0]), reason=extras.get("reason", ""))
    if what in (CLEARED, RESTART, UNREADABLE) and not words:
        return Told(voice, batch, what, where)
    if what.startswith("?") and len(words) <= 1:
        return Told(voice, batch, "?" + unquote(what[1:]), where, unquote(rest))
    raise ValueError(f"{what} {rest[:60]}: no event that this kvbus knows")


def _extras(words: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or name not in allowed or name in found:
            raise ValueError(f"{word[:60]!r} is not known here")
        found[name] = unquote(value)
    return found


def named(text: str) -> tuple[int, ...]:
    """The numbers of the blocks that ``spelled`` has written. Raises ``ValueError``."""
    blocks: list[int] = []
    for part in text.split(","):
        found = _NAMES.fullmatch(part)
        if found is None:
            raise ValueError(f"{part[:60]!r} is no block, such as b7 or b7..b9")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or len(blocks) + last - first >= LINE_BLOCKS_MAX:
            raise ValueError(f"{part[:60]!r} names no blocks, or more than {LINE_BLOCKS_MAX:,}")
        blocks += range(first, last + 1)
    return tuple(blocks)


def counted(telling: Telling) -> Mapping[str, int]:
    """What a baseline holds, for whoever has written it."""
    return {
        "sources": len(telling.voices),
        "batches": len({(event.voice, event.batch) for event in telling.events}),
        "events": len(telling.events),
        "losses": sum(event.what == LOST for event in telling.events),
    }
