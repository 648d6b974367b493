"""Recordings of NVIDIA Dynamo's ``KvRecorder``: JSON lines of router events, as entries of a log.

    {"timestamp": 12, "event": {"worker_id": 7, "event": {"event_id": 0, "data": {…}, "dp_rank": 0}}}

(``lib/llm/src/recorder.rs``, ``lib/kv-router/src/protocols.rs``; ``timestamp`` is milliseconds since the
recorder began.) A recording has neither the engine's payloads nor its sequence numbers, so it can never
prove that it is complete. It therefore begins with a ``Loss`` under the reason ``unsequenced``: nobody
can tell what is missing, and no rule may say HOLDS. The seqs are ours, counted from 1; the payloads are
the same facts in kvbus's own encoding, with what has no field of its own (event ids, token hashes, the
storage tier) kept as extra keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

from kvbus.capture import NS_MAX, unreadable
from kvbus.dialects import DialectReader, encode
from kvbus.errors import CaptureError, EncodeError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, KnownEvent, Unrecognized
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId

UNSEQUENCED: Final = "unsequenced"
"""The ``Loss.reason`` of a source without transport sequence numbers: completeness unknown."""
LINE_BYTES_MAX: Final = 64 << 20
FIRST_SEQ: Final = 1

MEDIA: Final = {"device": "GPU", "host_pinned": "CPU_PINNED", "disk": "DISK", "external": "EXTERNAL"}
"""Dynamo's storage tiers under the media that its own intake maps to them."""

U64 = Annotated[int, Meta(ge=0)]
Rank = Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Block(Struct):
    block_hash: U64
    tokens_hash: U64 | None = None
    mm_extra_info: Any = None


class _Stored(Struct):
    blocks: list[_Block]
    parent_hash: U64 | None = None
    start_position: U64 | None = None


class _Removed(Struct):
    block_hashes: list[U64]


class _Event(Struct):
    event_id: U64
    data: Raw
    dp_rank: Rank = 0


class _RouterEvent(Struct):
    worker_id: U64
    event: _Event
    storage_tier: str = "device"
    residency_domain: str | None = None


class _Line(Struct):
    timestamp: Annotated[int, Meta(ge=0, le=NS_MAX // 1_000_000)]
    event: _RouterEvent


class _Data(Struct):
    stored: _Stored | None = field(default=None)
    removed: _Removed | None = field(default=None)


_line = msgspec.json.Decoder(_Line)
_data = msgspec.json.Decoder(_Data)


def is_recording_line(line: bytes) -> bool:
    """Whether a line of a file is one of a recording."""
    try:
        keys = msgspec.json.decode(line, type=dict[str, Raw]).keys()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return {"timestamp", "event"} <= keys


def read_recording(path: Path, *, source: str) -> Iterator[Entry]:
    """The recording at ``path`` as entries: a source ``{source}/worker-{id}`` with a rank for each worker
    and rank.

    Raises ``CaptureError`` naming the line where the file cannot be read, is torn or is no recording.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    reader = DialectReader()
    next_seq: dict[SourceId, int] = {}
    with file:
        at = 0
        while line := file.readline(LINE_BYTES_MAX):
            if line.strip():
                try:
                    said = _line.decode(line)
                    yield from _entries(said, source, reader, next_seq)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EncodeError) as error:
                    raise CaptureError(
                        f"{path}: the line at byte {at} is torn or not a router event: {error}",
                        next_step=f"Cut the file to its first {at} bytes to keep what came before.",
                    ) from error
            at += len(line)


def _entries(
    said: _Line, source: str, reader: DialectReader, next_seq: dict[SourceId, int]
) -> Iterator[Entry]:
    routed = said.event
    stream = SourceId(f"{source}/worker-{routed.worker_id}", b"", routed.event.dp_rank)
    heard_ns = said.timestamp * 1_000_000
    if stream not in next_seq:
        next_seq[stream] = FIRST_SEQ
        yield EpochBegan(stream, 0, "first_sight", "", heard_ns)
        yield Loss(stream, 0, 0, FIRST_SEQ - 1, UNSEQUENCED, heard_ns)
    payload = encode([event_of(routed)], ts=said.timestamp / 1000, rank=routed.event.dp_rank)
    batch = reader.read(payload)
    yield Received(stream, 0, next_seq[stream], payload, heard_ns, False, batch, reader.dialect)
    next_seq[stream] += 1


def event_of(routed: _RouterEvent) -> KnownEvent | Unrecognized:
    """A router event as a fact. One of a kind we do not know is kept whole under its tag."""
    said = routed.event
    extra: dict[str, Any] = {"event_id": said.event_id, "storage_tier": routed.storage_tier}
    if routed.residency_domain is not None:
        extra["residency_domain"] = routed.residency_domain
    medium = MEDIA.get(routed.storage_tier, routed.storage_tier)
    data = said.data
    if bytes(data).lstrip()[:1] == b'"':
        tag = msgspec.json.decode(data, type=str)
        return AllBlocksCleared(extra=extra) if tag == "cleared" else _unknown(tag, None)
    told = _data.decode(data)
    if told.stored is not None:
        return _stored(told.stored, medium, extra)
    if told.removed is not None:
        return BlockRemoved(list(told.removed.block_hashes), medium, extra=extra)
    tag, content = next(iter(msgspec.json.decode(data, type=dict[str, Any]).items()), ("", None))
    return _unknown(tag, content)


def _stored(said: _Stored, medium: str, extra: dict[str, Any]) -> BlockStored:
    if said.start_position is not None:
        extra["start_position"] = said.start_position
    extra["tokens_hashes"] = [block.tokens_hash for block in said.blocks]
    if any(block.mm_extra_info is not None for block in said.blocks):
        extra["block_mm_infos"] = [block.mm_extra_info for block in said.blocks]
    hashes = [block.block_hash for block in said.blocks]
    return BlockStored(hashes, said.parent_hash, medium=medium, extra=extra)


def _unknown(tag: str, content: Any) -> Unrecognized:
    return Unrecognized(tag, Raw(msgspec.msgpack.encode({"type": tag, "data": content})))
