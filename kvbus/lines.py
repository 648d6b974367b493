"""Entries as JSON lines: one line an event, one object a line, self-contained enough for ``jq``.

A batch is as many lines as it has events (``event`` of ``events``), in order; one without events is a line of
kind ``EmptyBatch``. Losses, strays and epoch marks are a line each, by kind. Keys that would be null or the
usual are left out; hashes are canonical integers; bytes are base64 under a name that says so.
``docs/json-lines.md`` lists the keys.

With ``payload=True`` a batch's first line carries its exact bytes, and reading gives them back. Without,
reading encodes the batch anew: the content is equal, the bytes need not be. ``line_reader`` reads them.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from kvbus.events import (
    NIL,
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
from kvbus.line_reader import (
    LINE_BYTES_MAX,
    PLAIN_FIELDS,
    RAW_FIELDS,
    UNDECODABLE,
    Line,
    LineReader,
    read_entries,
)
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

__all__ = ["LINE_BYTES_MAX", "Line", "LineReader", "encode_line", "lines_of", "read_entries"]

EMPTY: Final = "EmptyBatch"

_ENCODE = msgspec.json.Encoder().encode
_PACK = msgspec.msgpack.Encoder().encode


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
            if not rest.get("capacity", True):
                del rest["capacity"]
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
    for name in PLAIN_FIELDS:
        value = getattr(event, name, None)
        if value is not None:
            line[name] = value
    if isinstance(event, BlockStored):
        if lists:
            for name in RAW_FIELDS:
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
