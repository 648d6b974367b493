"""Entries as JSON lines and back: one line an event, one object a line, self-contained enough for ``jq``.

A batch is as many lines as it has events (``event`` of ``events``), in order; one without events is a line of kind
``EmptyBatch``. Losses, strays and epoch marks are a line each, by kind. Keys that would be null or the usual are left out;
hashes are canonical integers; bytes are base64 under a name that says so. ``docs/json-lines.md`` lists the keys.

With ``payload=True`` a batch's first line carries its exact bytes, and reading gives them back. Without, reading
encodes the batch anew: the content is equal, the bytes need not be. A stream that lacks some lines of a batch is refused,
never taken for whole.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from kvbus.dialects import DialectReader, encode
from kvbus.errors import CaptureError, EncodeError
from kvbus.events import (
    NIL,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    KnownEvent,
    Undecodable,
    Unrecognized,
    canonical_medium,
    token_count,
)
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

LINE_BYTES_MAX: Final = 256 << 20
"""Longer lines are refused: an entry is never that large."""

EMPTY: Final = "EmptyBatch"
UNDECODABLE: Final = "Undecodable"

Line = dict[str, Any]

_RAW_FIELDS: Final = ("token_ids", "extra_keys", "lookahead_token_ids")
_PLAIN_FIELDS: Final = (
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
_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Line).decode
_PACK = msgspec.msgpack.Encoder().encode
_EVENT = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared).decode


# -- out -------------------------------------------------------------------------------------------------


def encode_line(entry: Entry, *, payload: bool = False) -> bytes:
    """The lines of an entry, each with its newline."""
    return b"".join(_ENCODE(line) + b"\n" for line in lines_of(entry, payload=payload))


def lines_of(entry: Entry, *, payload: bool = False) -> Iterator[Line]:
    """The objects that ``encode_line`` writes."""
    head = _source(entry.source) | {"epoch": entry.epoch}
    match entry:
        case Received(batch=EventBatch() as batch):
            yield from _batch_lines(entry, batch, head, payload=payload)
        case Received(batch=Undecodable(why=why)):
            yield head | _reception(entry) | {"kind": UNDECODABLE, "why": why, "payload": _b64(entry.payload)}
        case Stray():
            yield head | {
                "seq": entry.seq,
                "kind": "Stray",
                "reason": entry.reason,
                "received_ns": entry.received_ns,
                "payload": _b64(entry.payload),
            }
        case Loss() | EpochBegan():
            rest = msgspec.structs.asdict(entry)
            del rest["source"], rest["epoch"]
            yield head | {"kind": type(entry).__name__} | rest


def _batch_lines(entry: Received, batch: EventBatch, head: Line, *, payload: bool) -> Iterator[Line]:
    head |= _reception(entry) | ({"ts": batch.ts} if math.isfinite(batch.ts) else {})
    first: Line = {"payload": _b64(entry.payload)} if payload else {}
    if batch.unknown_keys:
        first["unknown_keys"] = batch.unknown_keys
    if (batch.data_parallel_rank if batch.data_parallel_rank is not None else -1) != entry.source.rank:
        first["batch_rank"] = batch.data_parallel_rank
    count = len(batch.events)
    if not count:
        yield head | {"events": 0, "kind": EMPTY} | first
    for index, event in enumerate(batch.events):
        yield head | {"event": index, "events": count} | _event(event, lists=not payload) | first
        first = {}


def _source(source: SourceId) -> Line:
    line: Line = {"source": source.source}
    try:
        line["topic"] = source.topic.decode()
    except UnicodeDecodeError:
        line["topic_base64"] = _b64(source.topic)
    if source.rank != -1:
        line["rank"] = source.rank
    if source.instance:
        line["instance"] = source.instance
    return line


def _reception(entry: Received) -> Line:
    line: Line = {"seq": entry.seq, "received_ns": entry.received_ns, "dialect": entry.dialect}
    return line | {"replayed": True} if entry.replayed else line


def _event(event: Event, *, lists: bool) -> Line:
    match event:
        case Unrecognized(tag=tag, raw=raw):
            return {"kind": tag, "raw_base64": _b64(raw)}
        case Undecodable(why=why, raw=raw):
            return {"kind": UNDECODABLE, "why": why, "raw_base64": _b64(raw)}
        case AllBlocksCleared():
            line: Line = {"kind": "AllBlocksCleared"}
        case _:
            line = _blocks(event)
    for name in _PLAIN_FIELDS:
        value = getattr(event, name, None)
        if value is not None:
            line[name] = value
    if isinstance(event, BlockStored):
        if lists:
            for name in _RAW_FIELDS:
                _put_raw(line, name, getattr(event, name))
        else:
            line["token_count"] = token_count(event.token_ids)
    if event.extra:
        _put_raw(line, "extra", _PACK(event.extra))
    return line


def _blocks(event: BlockStored | BlockRemoved) -> Line:
    medium = canonical_medium(event.medium)
    line: Line = {"kind": type(event).__name__, "medium": medium}
    if event.medium != medium:
        line["medium_raw"] = event.medium
    line["hashes"] = event.block_hashes
    if isinstance(event, BlockStored) and event.parent_block_hash is not None:
        line["parent_hash"] = event.parent_block_hash
    return line


def _put_raw(line: Line, name: str, raw: Raw | bytes) -> None:
    """A msgpack value as JSON where JSON can say it exactly, else base64 of it under ``name_base64``."""
    data = bytes(raw)
    if data == NIL:
        return
    try:
        text = _ENCODE(msgspec.msgpack.decode(data))
        if _PACK(msgspec.json.decode(text)) == data:
            line[name] = Raw(text)
            return
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        pass  # bytes, maps by number, half floats … : what JSON has no form for
    line[name + "_base64"] = _b64(data)


def _b64(data: bytes | Raw) -> str:
    return b64encode(data).decode("ascii")


# -- in --------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[Entry]:
    """The entries of the file at ``path``, in order, a batch at a time.

    Raises ``CaptureError``, with the line's number, when the file cannot be opened or at the first line that is not
    one of ours, is torn, or belongs to a batch that is not whole.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise CaptureError(f"cannot open {path}: {error.strerror}", next_step="Check its name and rights.") from error
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
            next_step="Give whole, unfiltered lines as `kvbus tail --json` or `kvbus export --format jsonl` write.",
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
        f"batch {first.get('seq')} of {first.get('source')} is not whole: it has {first.get('events')} events, "
        f"not all of them are here in order"
    )


def _source_of(line: Line) -> SourceId:
    topic = b64decode(line["topic_base64"], validate=True) if "topic_base64" in line else line["topic"].encode()
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
    packed |= {name: line[name] for name in _PLAIN_FIELDS if name in line}
    packed |= _raw_values(line, _RAW_FIELDS, str)
    packed |= _raw_values(line, ("extra",), lambda name: "kvbus:extra")
    event = _EVENT(_PACK(packed))
    assert isinstance(event, KnownEvent)
    return event


def _raw_values(line: Line, names: Iterable[str], rename: Callable[[str], str]) -> Line:
    found: Line = {}
    for name in names:
        if name in line:
            found[rename(name)] = line[name]
        elif name + "_base64" in line:
            found[rename(name)] = Raw(b64decode(line[name + "_base64"], validate=True))
    return found
