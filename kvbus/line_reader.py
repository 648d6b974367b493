"""JSON lines back into entries: batches put together from their lines, or refused.

A stream that lacks some lines of a batch, has them twice or mixes two batches was filtered or torn; it is
never taken for whole. Every fault names its line. ``lines`` says what the lines are.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
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
I32_MAX: Final = 2**31 - 1
SEQ_MAX: Final = 2**64 - 3
"""The last number a batch can have: the wire gives the two above it a meaning of their own."""

BOUNDS: Final = (
    {"rank": (-1, I32_MAX)}
    | dict.fromkeys(("instance", "epoch", "events"), (0, I32_MAX))
    | dict.fromkeys(("seq", "first_seq", "last_seq"), (0, SEQ_MAX))
    | dict.fromkeys(("received_ns", "noticed_ns", "began_ns"), (0, 2**63 - 1))
)
"""What a log can hold of each number."""

_DECODE = msgspec.json.Decoder(Line).decode
_PACK = msgspec.msgpack.Encoder().encode
_EVENT = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared).decode


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

    def read(self, data: bytes, /) -> Entry | None:
        """Take the next line; the entry that it completes, if it does. Raises ``CaptureError``."""
        self._number += 1
        if not data.endswith(b"\n"):
            raise self._fault("the line is torn or too long" if data else "nothing")
        try:
            line = _DECODE(data)
            if not self._lines:
                _check_bounds(line)
            if "events" in line:
                return self._batch_line(line)
            if self._lines:
                raise ValueError(_incomplete(self._lines))
            return self._single(line)
        except KeyError as error:
            raise self._fault(f"the key {error} is missing") from error
        except EncodeError as error:
            raise self._fault(error.problem) from error
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
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
        if not self._lines:
            _source_of(line)  # a first line of something else is not a batch under way
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
        found = msgspec.convert(line | {"source": source}, _SINGLE[kind])
        if isinstance(found, Loss) and found.first_seq > found.last_seq:
            raise ValueError("the loss ends before it begins")
        return found

    def _read(self, source: SourceId, payload: bytes) -> tuple[EventBatch | Undecodable, str]:
        dialect = self._dialects.setdefault(source, DialectReader())
        batch = dialect.read(payload)
        return batch, dialect.dialect


_SINGLE: Final[dict[str, type[Loss] | type[Stray] | type[EpochBegan]]] = {
    "Loss": Loss,
    "Stray": Stray,
    "EpochBegan": EpochBegan,
}


def _check_bounds(line: Line) -> None:
    for name, (low, high) in BOUNDS.items():
        if name in line and not (type(line[name]) is int and low <= line[name] <= high):
            raise ValueError(f"{name} is {line[name]!r}, expected {low} … {high}")


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
        b64decode(line["topic_base64"], validate=True)
        if "topic_base64" in line
        else msgspec.convert(line["topic"], str).encode()
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
