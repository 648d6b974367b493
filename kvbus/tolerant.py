"""Reading a batch event by event, for what no compiled dialect takes whole. Slow, and never gives up early.

A batch is cut into its events without looking into them; then each is read alone, so that a broken one
becomes an ``Undecodable`` in its place and an unknown one an ``Unrecognized``, both with their bytes, and
its siblings are read as ever. Unknown keys and elements go to ``extra``. Nothing is skipped and nothing is
made up. Memory and time are linear in the payload, whatever lengths it declares and however deep it nests.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

import msgspec
from msgspec import DecodeError, Raw, Struct
from msgspec.msgpack import Decoder
from msgspec.structs import replace

from kvbus.compiled import ARRAY_MIXED, ARRAY_WIDTH, MAP_MIXED, PUBLIC, Dialect, Rank, parent_of
from kvbus.events import NIL, BlockStored, Event, Undecodable, Unrecognized
from kvbus.unread import LIST, elements_of, is_map

RANK_NAMES: Final = ("data_parallel_rank", "attn_dp_rank", "dp_rank")
EVENT_TYPES: Final = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}
"""Mooncake's ``event_type``, for events without vLLM's ``type``."""

_ENCODE = msgspec.msgpack.Encoder().encode
_ANY: Final = Decoder()
_MAP: Final = Decoder(dict[str, Raw])
_TEXT: Final = Decoder(str)
_TS: Final = Decoder(float)
_RANK: Final = Decoder(Rank | None)


class Parts(Struct, frozen=True):
    """A batch, its events cut apart but unread. ``unknown``: what the batch has beyond its own fields."""

    ts: float
    events: list[Raw]
    rank: int | None
    unknown: int


def why(error: DecodeError | RecursionError) -> str:
    """What a decoding error says, for a person."""
    return "nested too deep to be read" if isinstance(error, RecursionError) else str(error)


def read_parts(payload: bytes) -> Parts:
    """The parts of a batch, be it an array or a map. Raises ``DecodeError`` or ``RecursionError``."""
    if not payload:
        raise DecodeError("an empty payload")
    if is_map(payload):
        found = _MAP.decode(payload)
        names: tuple[str, ...] = ("ts", "events", *RANK_NAMES)
        taken = {name: found.pop(name) for name in names if name in found}
        unknown = len(found)
        rank = next((taken[name] for name in RANK_NAMES if name in taken), Raw(NIL))
    else:
        elements = elements_of(payload)
        taken = dict(zip(("ts", "events", "rank"), elements, strict=False))
        unknown = len(elements[3:])
        rank = taken.get("rank", Raw(NIL))
    for name in ("ts", "events"):
        if name not in taken:
            raise DecodeError(f"a batch without `{name}`")
    try:
        place = "ts"
        ts = _TS.decode(taken["ts"])
        place = "data_parallel_rank"
        number = _RANK.decode(rank)
        place = "events"
        events = elements_of(taken["events"])
    except DecodeError as error:
        raise DecodeError(f"{place}: {error}") from error
    return Parts(ts, events, number, unknown)


def read_event(raw: Raw, maps: Dialect = MAP_MIXED) -> Event:
    """One event, by a compiled dialect if one takes it (``maps`` for maps), else piece by piece."""
    dialect = maps if is_map(raw) else ARRAY_MIXED
    try:
        return dialect.facts([dialect.event.decode(raw)])[0][0]
    except (DecodeError, RecursionError):
        pass
    tag = ""
    try:
        tag, wire, extra = _map_pieces(raw) if is_map(raw) else _array_pieces(raw)
        if tag not in PUBLIC:
            return Unrecognized(tag, raw)
        dialect = MAP_MIXED if is_map(raw) else ARRAY_MIXED
        event = dialect.facts([dialect.event.decode(_ENCODE(wire))])[0][0]
        if not extra:
            return event
        values = {key: _extra_value(key, value) for key, value in extra.items()}
    except (DecodeError, RecursionError) as error:
        return Undecodable(f"{tag}: {why(error)}" if tag else why(error), raw)
    if isinstance(event, BlockStored):
        event = replace(event, parent_block_hash=parent_of(event.parent_block_hash, values))
    return replace(event, extra=values)


# ---- one event, in pieces ----------------------------------------------------------------------------------


def _map_pieces(raw: Raw) -> tuple[str, dict[str, Any], dict[str, Raw]]:
    """Tag, the known keys ready to be encoded again, and the rest."""
    rest = _MAP.decode(raw)
    if "type" in rest:
        tag = _text("type", rest.pop("type"))
    elif "event_type" in rest:
        tag = _text("event_type", rest["event_type"])
        tag = EVENT_TYPES.get(tag, tag)
    else:
        raise DecodeError("an event without `type`")
    if tag not in PUBLIC:
        return tag, {}, rest
    known: dict[str, Any] = {"type": tag}
    names = PUBLIC[tag].__struct_encode_fields__[:-1]  # all but our own place for the rest
    known |= {name: rest.pop(name) for name in names if name in rest}
    if "block_hashes" in names and "block_hashes" not in known and "seq_hashes" in rest:
        known["block_hashes"] = rest["seq_hashes"]
    if "block_hashes" in known:
        known["block_hashes"] = _unstrung_list(known["block_hashes"])
    if "parent_block_hash" in known:
        known["parent_block_hash"] = _unstrung(known["parent_block_hash"])
    return tag, known, rest


def _array_pieces(raw: Raw) -> tuple[str, list[Any], dict[str, Raw]]:
    """Tag, the known elements, and the rest by position (the tag is at 0)."""
    elements = elements_of(raw)
    if not elements:
        raise DecodeError("an event without a tag")
    tag = _text("tag", elements[0])
    width = ARRAY_WIDTH.get(tag, 0)
    known: list[Any] = list(elements[:width])
    rest = {str(place): value for place, value in enumerate(elements) if place >= width}
    if len(known) > 1:
        known[1] = _unstrung_list(known[1])
    if tag == "BlockStored" and len(known) > 2:
        known[2] = _unstrung(known[2])
    if tag == "BlockStored" and len(known) > 7 and is_map(known[7]):
        metadata = _MAP.decode(known[7])
        known[7] = {name: metadata.pop(name) for name in ("cache_salt",) if name in metadata}
        rest |= metadata
    return tag, known, rest


def _text(name: str, raw: Raw) -> str:
    try:
        return _TEXT.decode(raw)
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from error


def _extra_value(key: str, raw: Raw) -> Any:
    try:
        return _ANY.decode(raw)
    except DecodeError as error:
        raise DecodeError(f"{error} - at `$.{key}`") from error


def _unstrung_list(raw: Raw) -> Any:
    try:
        return [_unstrung(one) for one in LIST.decode(raw)]
    except DecodeError:
        return raw  # not a list: the compiled decoder says it better


def _unstrung(raw: Raw) -> Any:
    """A hash that came as a string, as bytes:

    old msgpack packers know no other type, JSON bridges send hex.
    """
    data = bytes(raw)
    lead = data[0]
    head = 1 if 0xA0 <= lead <= 0xBF else {0xD9: 2, 0xDA: 3, 0xDB: 5}.get(lead)
    if head is None:
        return raw
    try:
        return binascii.unhexlify(data[head:]) if len(data) - head >= 16 else data[head:]
    except binascii.Error:
        return data[head:]
