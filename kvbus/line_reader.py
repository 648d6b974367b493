"""JSON lines back into entries: batches put together from their lines, or refused.

A stream that lacks some lines of a batch, has them twice or mixes two batches was filtered or torn; it is
never taken for whole. Every fault names its line. ``lines`` says what the lines are.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from kvbus.dialects import DialectReader, encode
from kvbus.errors import CaptureError, EncodeError
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
)
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

LINE_BYTES_MAX: Final = 256 << 20
"""Longer lines are refused: an entry is never that large."""

UNDECODABLE: Final = "Undecodable"

Line = dict[str, Any]

RAW_FIELDS: Final = ("token_ids", "extra_keys", "lookahead_token_ids")
PLAIN_FIELDS: Final = (
    "block_size",
    "lora_id",
    "lora_name",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "cache_salt",
    "emit_seq",
    "reason",
)
_DECODE = msgspec.json.Decoder(Line).decode
_PACK = msgspec.msgpack.Encoder().encode
_EVENT = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared).decode


def read_lines(path: Path) -> Iterator[Entry]:
    """The entries of the file at ``path``, in order, a batch at a time.

    Raises ``CaptureError``, with the line's number, when the file cannot be opened or at the first line that
    is not one of ours, is torn, or belongs to a batch that is not whole.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise CaptureError(
            f"cannot open {path}: {error.strerror}", next_step="Check its name and rights."
        ) from error
    with file:
        yield from read_entries(iter(lambda: file.readline(LINE_BYTES_MAX), b""), name=str(path))


def read_entries(lines: Iterable[bytes], *, name: str) -> Iterator[Entry]:
    """The entries of ``lines``, each with its newline; ``name`` is what an error calls their origin."""
    reader = LineReader(name)
    for line in lines:
        entry = reader.read(line)
        if entry is not None:
            yield entry
    reader.end()


class LineReader:
    """Puts batches together from their lines. Owns what has come of the batch under way."""

    def __init__(self, name: str, /) -> None:
        self._name = name
        self._number = 0
        self._lines: list[Line] = []
        self._dialects: dict[SourceId, DialectReader] = {}

    @property
    def is_between(self) -> bool:
        """Whether the last line ended an entry."""
        return not self._lines

    def read(self, data: bytes, /) -> Entry | None:
        """Take the next line; the entry that it completes, if it does. Raises ``CaptureError``."""
        self._number += 1
        if not data.endswith(b"\n"):
            raise self._fault("the line is torn or too long" if data else "nothing")
        try:
            line = _DECODE(data)
            if "events" in line:
                return self._batch_line(line)
            if self._lines:
                raise ValueError(_incomplete(self._lines))
            return self._single(line)
        except KeyError as error:
            raise self._fault(f"the key {error} is missing") from error
        except (msgspec.MsgspecError, EncodeError, TypeError, ValueError) as error:
            raise self._fault(str(error)) from error

    def end(self) -> None:
        """No more lines. Raises ``CaptureError`` when a batch is under way."""
        if self._lines:
            raise self._fault(_incomplete(self._lines))

    def _fault(self, why: str) -> CaptureError:
        return CaptureError(
            f"{self._name}, line {self._number}: {why}",
            next_step="Give whole, unfiltered lines, as `kvbus tail --json` and `kvbus export` write.",
        )

    def _batch_line(self, line: Line) -> Received | None:
        index, count = line.get("event", 0), line["events"]
        if index != len(self._lines) or (self._lines and _identity(line) != _identity(self._lines[0])):
            raise ValueError(_incomplete([*self._lines, line]))
        self._lines.append(line)
        if len(self._lines) < count:
            return None
        lines, self._lines = self._lines, []
        return self._received(lines)

    def _received(self, lines: list[Line]) -> Received:
        first = lines[0]
        source = _source_of(first)
        if "payload" in first:
            payload = b64decode(first["payload"], validate=True)
        else:
            events = [] if not first["events"] else [_event_of(line) for line in lines]
            rank = first.get("batch_rank", source.rank if source.rank >= 0 else None)
            payload = encode(events, ts=_number(first["ts"]), rank=rank)
        batch, dialect = self._read(source, payload)
        return _reception_of(first, source, payload, batch, first.get("dialect", dialect))

    def _single(self, line: Line) -> Entry:
        source = _source_of(line)
        kind = line["kind"]
        if kind == UNDECODABLE:
            payload = b64decode(line["payload"], validate=True)
            batch, dialect = self._read(source, payload)
            return _reception_of(line, source, payload, batch, line.get("dialect", dialect))
        if kind == "Stray":
            line = line | {"payload": b64decode(line["payload"], validate=True)}
        if kind not in _SINGLE:
            raise ValueError(f"no entry is of kind {kind!r}")
        make = _SINGLE[kind]
        found = {name: line[name] for name in make.__struct_fields__ if name != "source"}
        return msgspec.convert(found | {"source": source}, make)

    def _read(self, source: SourceId, payload: bytes) -> tuple[EventBatch | Undecodable, str]:
        dialect = self._dialects.setdefault(source, DialectReader())
        batch = dialect.read(payload)
        return batch, dialect.dialect


_SINGLE: Final[dict[str, type[Loss] | type[Stray] | type[EpochBegan]]] = {
    "Loss": Loss,
    "Stray": Stray,
    "EpochBegan": EpochBegan,
}
_IDENTITY: Final = ("source", "topic", "topic_base64", "rank", "instance", "epoch", "seq", "events")


def _identity(line: Line) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in _IDENTITY)


def _incomplete(lines: list[Line]) -> str:
    first = lines[0]
    return (
        f"batch {first.get('seq')} of {first.get('source')} is not whole: "
        f"of its {first.get('events')} events not all of them are here in order"
    )


def _source_of(line: Line) -> SourceId:
    topic = (
        b64decode(line["topic_base64"], validate=True) if "topic_base64" in line else line["topic"].encode()
    )
    found = {"source": line["source"], "topic": topic}
    found |= {name: line[name] for name in ("rank", "instance") if name in line}
    return msgspec.convert(found, SourceId)


def _reception_of(
    line: Line, source: SourceId, payload: bytes, batch: EventBatch | Undecodable, dialect: str
) -> Received:
    return Received(
        source=source,
        epoch=msgspec.convert(line["epoch"], int),
        seq=msgspec.convert(line["seq"], int),
        payload=payload,
        received_ns=msgspec.convert(line["received_ns"], int),
        replayed=msgspec.convert(line.get("replayed", False), bool),
        batch=batch,
        dialect=msgspec.convert(dialect, str),
    )


def _number(value: object) -> float:
    return msgspec.convert(value, float)


def _event_of(line: Line) -> Event:
    if "raw_base64" in line:
        raw = Raw(b64decode(line["raw_base64"], validate=True))
        return Undecodable(line["why"], raw) if "why" in line else Unrecognized(line["kind"], raw)
    if "token_count" in line:
        raise ValueError("the line counts its tokens instead of listing them, and its batch has no payload")
    packed: Line = {"type": line["kind"]}
    if "hashes" in line:
        packed["block_hashes"] = line["hashes"]
        packed["medium"] = line.get("medium_raw", line["medium"])
    if "parent_hash" in line:
        packed["parent_block_hash"] = line["parent_hash"]
    packed |= {name: line[name] for name in PLAIN_FIELDS if name in line}
    packed |= _raw_values(line, RAW_FIELDS, str)
    packed |= _raw_values(line, ("extra",), lambda _: "kvbus:extra")
    event: Event = _EVENT(_PACK(packed))
    return event


def _raw_values(line: Line, names: Iterable[str], rename: Callable[[str], str]) -> Line:
    found: Line = {}
    for name in names:
        if name in line:
            found[rename(name)] = line[name]
        elif name + "_base64" in line:
            found[rename(name)] = Raw(b64decode(line[name + "_base64"], validate=True))
    return found
