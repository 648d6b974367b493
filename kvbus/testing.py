"""A pocket language for histories, so that a test of a tier, a sink or a rule reads as its story.

    history("g:+a | c:+a | g:-a")            # stored on GPU, stored on CPU, removed from GPU: three batches

``|`` ends a batch, spaces part its events, names stand for blocks. What comes out is what a log would hold,
real payload bytes included. Nothing here opens a socket, reads a clock or guesses: what it cannot read is
refused with the place.

An event is ``medium/group:sign blocks``, medium and group optional:

    g:+a,b        store a and b (g GPU, c CPU, s STORAGE, d DISK, e EXTERNAL; other words as they are)
    +a  -a        the event has no medium          g/1:+a   group 1          g:+     a store of no blocks
    g:+p>a,b      the parent of a is p             c:+a~    a placeholder: no tokens, block size 0
    g:-a          remove a                         g:-a!evicted   with kvbus's own reason
    clear         AllBlocksCleared                 ?        an event nobody can read
    ?Moved c:?Moved   an event under a tag nobody knows, without and with a medium

A batch of its own: ``.`` (no events), ``garbage`` (a payload nobody can read). Before the events of a batch:

    @p1  @p1#3    whose batches follow, until the next @: source p1, data-parallel rank 3
    restart  restart(content)   a new epoch, numbers from 0      seq(217)   the next number, forward or back
    lost(20)  lost(20,too_old)  numbers used up, a Loss says so  gap(20)    numbers used up, nothing says so
    conflict(4)  late(4)    a Stray under that number
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kvbus.errors import KvbusError
from kvbus.events import (
    NIL,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    tokens,
)
from kvbus.log import Entry, EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray

MEDIA: Final = {"g": "GPU", "c": "CPU", "s": "STORAGE", "d": "DISK", "e": "EXTERNAL"}
EPOCH_TS: Final = 1_700_000_000.0
"""The publisher's clock (seconds) at a history's first batch; each batch is a millisecond later."""

_CHANGE = re.compile(
    r"(?:(?P<medium>[A-Za-z_]\w*)?(?:/(?P<group>\d+))?:)?"
    r"(?P<sign>[+-])(?:(?P<parent>\w+)>)?(?P<blocks>\w+(?:,\w+)*)?(?P<bare>~)?(?:!(?P<reason>\w+))?"
)
_STRANGE = re.compile(r"(?:(?P<medium>[A-Za-z_]\w*):)?\?(?P<tag>\w*)")
_SOURCE = re.compile(r"@(?P<name>[^#\s]+)(?:#(?P<rank>\d+))?")
_CONTROL = re.compile(
    r"(?P<word>restart|lost|gap|seq|conflict|late)(?:\((?P<number>\d+)?,?(?P<word2>[a-z_]+)?\))?"
)


class HistoryError(KvbusError):
    """A history is not in the pocket language."""


def block(name: str) -> int:
    """The canonical hash a name stands for: up to 8 bytes as they are (0x61… for ``a``), else a digest."""
    letters = name.encode()
    if len(letters) > 8:
        letters = hashlib.sha256(letters).digest()
    return int.from_bytes(letters[:8].ljust(8, b"\0"), "big")


def events(text: str, *, block_size: int = 4) -> list[Event]:
    """The events of one batch, to publish or to compare: ``events("g:-a g:+b")``. Raises ``HistoryError``."""
    return [_event(word, block_size) for word in text.split()]


def history(
    text: str,
    *,
    source: str = "engine",
    topic: bytes = b"kv",
    dialect: str = "kvbus",
    block_size: int = 4,
) -> list[PositionedEntry]:
    """The log that ``text`` tells, as a ``LogReader`` would give it. The same text gives the same bytes.

    ``source`` names the publisher until the first ``@``; ``block_size`` is in tokens.
    Raises ``HistoryError``.
    """
    teller = _Teller(SourceId(source, topic), dialect, block_size)
    for chapter in text.split("|") if text.strip() else []:
        teller.tell(chapter)
    return teller.entries


class _Stream(Struct):
    epoch: int = 0
    next_seq: int = 0
    begun: bool = False
    because: str = "first_sight"


class _Teller:
    def __init__(self, source: SourceId, dialect: str, block_size: int) -> None:
        self.entries: list[PositionedEntry] = []
        self._source = source
        self._dialect = dialect
        self._block_size = block_size
        self._position = 0
        self._streams: dict[SourceId, _Stream] = {}

    def tell(self, chapter: str) -> None:
        """One batch with what comes before it; a chapter of controls alone has no batch."""
        words = chapter.split()
        if not words:
            raise HistoryError("a batch says nothing", next_step="Write . for a batch without events.")
        while words and self._obey(words[0]):
            words.pop(0)
        if not words:
            return
        payload: list[Event] | None = None
        if words != ["garbage"]:
            payload = [] if words == ["."] else [_event(word, self._block_size) for word in words]
        self._receive(payload)

    @property
    def _now_ns(self) -> int:
        return round(self._ts * 1e9) + 500_000

    @property
    def _ts(self) -> float:
        return EPOCH_TS + self._position / 1000

    def _stream(self) -> _Stream:
        """The current source's stream, begun."""
        stream = self._streams.setdefault(self._source, _Stream())
        if not stream.begun:
            stream.begun = True
            self._append(EpochBegan(self._source, stream.epoch, stream.because, "", self._now_ns))
        return stream

    def _append(self, entry: Entry) -> None:
        self.entries.append(PositionedEntry(self._position, entry))

    def _obey(self, word: str) -> bool:
        if who := _SOURCE.fullmatch(word):
            rank = int(who["rank"]) if who["rank"] else -1
            self._source = SourceId(who["name"], self._source.topic, rank)
            return True
        if control := _CONTROL.fullmatch(word):
            self._control(control["word"], control["number"], control["word2"])
            return True
        return False

    def _control(self, word: str, number: str | None, word2: str | None) -> None:
        if word == "restart":
            old = self._stream()
            self._streams[self._source] = _Stream(epoch=old.epoch + 1, because=word2 or "seq")
            self._stream()
            return
        if number is None:
            raise HistoryError(f"{word} says no number", next_step=f"Write {word}(3), for example.")
        n, stream = int(number), self._stream()
        if word == "seq":
            stream.next_seq = n
        elif word == "gap":
            stream.next_seq += n
        elif word == "lost":
            first, stream.next_seq = stream.next_seq, stream.next_seq + n
            reason = word2 or "no_replay"
            self._append(Loss(self._source, stream.epoch, first, first + n - 1, reason, self._now_ns))
        else:
            self._append(Stray(self._source, stream.epoch, n, b"\x90", self._now_ns, word))

    def _receive(self, heard: list[Event] | None) -> None:
        stream = self._stream()
        rank = self._source.rank if self._source.rank >= 0 else None
        batch: EventBatch | Undecodable
        if heard is None:
            payload = b"\xc1garbage"
            batch = Undecodable("not msgpack", Raw(payload))
        else:
            batch = EventBatch(self._ts, heard, rank)
            payload = msgspec.msgpack.encode([batch.ts, list(_on_the_wire(heard)), rank])
        seq, now_ns = stream.next_seq, self._now_ns
        self._append(Received(self._source, stream.epoch, seq, payload, now_ns, False, batch, self._dialect))
        stream.next_seq += 1
        self._position += 1


def _on_the_wire(heard: list[Event]) -> Iterator[Event | Raw]:
    for event in heard:
        yield event.raw if isinstance(event, Unrecognized | Undecodable) else event


def _event(word: str, block_size: int) -> Event:
    if word == "clear":
        return AllBlocksCleared()
    if strange := _STRANGE.fullmatch(word):
        return _strange(strange["tag"], _medium(strange["medium"]))
    if change := _CHANGE.fullmatch(word):
        return _change(change, block_size)
    raise HistoryError(f"{word!r} is no event", next_step="Write g:+a, c:-a,b or clear; see kvbus.testing.")


def _strange(tag: str, medium: str | None) -> Event:
    if not tag:
        return Undecodable("not an event", Raw(b"\x07"))
    raw = {"type": tag} if medium is None else {"type": tag, "medium": medium}
    return Unrecognized(tag, Raw(msgspec.msgpack.encode(raw)))


def _change(change: re.Match[str], block_size: int) -> BlockStored | BlockRemoved:
    hashes = [block(name) for name in change["blocks"].split(",")] if change["blocks"] else []
    medium, group = _medium(change["medium"]), int(change["group"]) if change["group"] else None
    if change["sign"] == "-":
        return BlockRemoved(hashes, medium, group, reason=change["reason"])
    if change["bare"]:
        return BlockStored(hashes, None, tokens([]), 0, medium=medium, group_idx=group, extra_keys=Raw(NIL))
    ids = [h >> 40 for h in hashes for _ in range(block_size)]
    parent = block(change["parent"]) if change["parent"] else None
    return BlockStored(hashes, parent, tokens(ids), block_size, medium=medium, group_idx=group)


def _medium(word: str | None) -> str | None:
    return None if word is None else MEDIA.get(word, word)
