"""Dialects under any events and any bytes: what goes in comes out, and no payload makes reading fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from kvbus.capture import read_capture
from kvbus.dialects import DialectReader, encode
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_hash,
    token_list,
    tokens,
)

COMMITTED = Path(__file__).parent.parent / "captures"
pack = msgspec.msgpack.encode

HASHES = st.integers(0, 2**64 - 1)
SENT_HASHES = st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=1, max_size=33)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=8)
RAW_LISTS = st.lists(
    st.integers(0, 2**40) | TEXT | st.none() | st.lists(st.integers(0, 9), max_size=2), max_size=9
)
VALUES = st.recursive(
    st.none() | st.booleans() | INT64 | TEXT | st.binary(max_size=9) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KNOWN = {"type", *BlockStored.__struct_encode_fields__, "reason", "parent_hash", "seq_hashes"}
EXTRA = st.none() | st.dictionaries(TEXT.filter(lambda key: key not in KNOWN), VALUES, min_size=1, max_size=3)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A nullable field."""
    return st.none() | values


ARRAY_STORED = st.builds(
    BlockStored,
    st.lists(HASHES, max_size=5),
    maybe(HASHES),
    RAW_LISTS.map(tokens),
    maybe(INT64),
    maybe(INT64),
    maybe(TEXT),
    maybe(TEXT),
    RAW_LISTS.map(tokens),
    maybe(INT64),
    maybe(TEXT),
    maybe(INT64),
)
STORED = st.builds(
    lambda base, later: replace(base, **later),
    ARRAY_STORED,
    st.fixed_dictionaries(
        {},
        optional={
            "locality": TEXT,
            "ownership": TEXT,
            "session_id": TEXT,
            "lookahead_token_ids": RAW_LISTS.map(tokens),
            "cache_salt": TEXT,
            "emit_seq": INT64,
            "extra": EXTRA,
        },
    ),
)
ARRAY_REMOVED = st.builds(BlockRemoved, st.lists(HASHES, max_size=5), maybe(TEXT), maybe(INT64))
REMOVED = st.builds(
    BlockRemoved,
    st.lists(HASHES, max_size=5),
    maybe(TEXT),
    maybe(INT64),
    maybe(TEXT),
    maybe(TEXT),
    maybe(INT64),
    maybe(TEXT),
    EXTRA,
)
CLEARED = st.builds(AllBlocksCleared, maybe(INT64), EXTRA)
TAGS = TEXT.filter(lambda tag: tag not in ("BlockStored", "BlockRemoved", "AllBlocksCleared"))
STRANGE = st.builds(
    lambda tag, rest: Unrecognized(tag, Raw(pack({**rest, "type": tag}))),
    TAGS,
    st.dictionaries(TEXT, VALUES, max_size=2),
)
EVENTS = st.lists(STORED | REMOVED | CLEARED | STRANGE, max_size=6)
TIMES = st.floats(-1e11, 1e11)
RANKS = maybe(st.integers(0, 2**31 - 1))


def _unknown(events: list[Event]) -> int:
    return sum(len(getattr(one, "extra", None) or ()) for one in events)


@settings(deadline=None)
@given(EVENTS, TIMES, RANKS)
def test_any_events_come_back_from_the_map_form(events: list[Event], ts: float, rank: int | None) -> None:
    """What is encoded as maps is read as the same events, and again when its new keys have been learned."""
    payload = encode(events, ts=ts, rank=rank)
    reader = DialectReader()
    meant = EventBatch(ts, events, rank, _unknown(events))
    assert reader.read(payload) == meant
    assert reader.read(payload) == meant


@settings(deadline=None)
@given(st.lists(ARRAY_STORED | ARRAY_REMOVED | st.just(AllBlocksCleared()), max_size=6), TIMES, RANKS)
def test_any_events_come_back_from_the_array_form(events: list[Event], ts: float, rank: int | None) -> None:
    """What the array form has places for is read from it as the same events."""
    assert DialectReader().read(encode(events, ts=ts, rank=rank, form="array")) == EventBatch(
        ts, events, rank
    )


@settings(deadline=None)
@given(st.lists(ARRAY_STORED | ARRAY_REMOVED, max_size=6), TIMES)
def test_both_forms_say_the_same(events: list[Event], ts: float) -> None:
    """A stream may change its form without changing what it says."""
    reader = DialectReader()
    as_map = reader.read(encode(events, ts=ts))
    assert reader.read(encode(events, ts=ts, form="array")) == as_map


@settings(deadline=None)
@given(st.lists(SENT_HASHES, max_size=6), maybe(SENT_HASHES), st.booleans())
def test_hashes_of_any_form_are_canonical(hashes: list[Any], parent: Any, as_map: bool) -> None:
    """However mixed a list is, each hash becomes its own 64 bits, in order."""
    event: Any = ["BlockStored", hashes, parent, [], 0]
    if as_map:
        event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent}
    batch = DialectReader().read(pack([1.5, [event]]))
    assert isinstance(batch, EventBatch)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [canonical_hash(one) for one in hashes]
    assert stored.parent_block_hash == (None if parent is None else canonical_hash(parent))


# ---- hostile bytes -----------------------------------------------------------------------------------------


def real_payloads() -> list[bytes]:
    """A few real payloads of each committed stream, short enough to hit every part of them."""
    found: list[bytes] = []
    for capture in sorted(COMMITTED.glob("*.frames")):
        records = [record.frames[-1] for record in read_capture(capture)]
        found += sorted(records[:60], key=len)[:12]
    return found


REAL = real_payloads()


def check_read(reader: DialectReader, payload: bytes) -> None:
    """Whatever comes out is a value, complete and printable, and not out of proportion."""
    got = reader.read(payload)
    if isinstance(got, Undecodable):
        assert got.why
        assert bytes(got.raw) == payload
        return
    assert len(got.events) <= len(payload)
    for event in got.events:
        if isinstance(event, BlockStored | BlockRemoved):
            assert all(0 <= one < 2**64 for one in event.block_hashes)
        if isinstance(event, Undecodable):
            assert event.why
            assert bytes(event.raw) in payload
    if not any(isinstance(one, Undecodable) for one in got.events):
        again = DialectReader().read(encode(got.events, ts=got.ts, rank=got.data_parallel_rank))
        assert isinstance(again, EventBatch)
        assert msgspec.structs.astuple(again)[:3] == msgspec.structs.astuple(got)[:3]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_garbage_never_raises(payloads: list[bytes]) -> None:
    """Any bytes at all are read as a batch or as a value that says why not."""
    reader = DialectReader()
    for payload in payloads:
        check_read(reader, payload)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=4), st.sampled_from(["events", "array", "map"]))
def test_any_msgpack_never_raises(values: list[Any], place: str) -> None:
    """Well-formed msgpack of the wrong shape is no different from garbage."""
    shapes = {
        "events": [1.5, values, 0],
        "array": values,
        "map": {"ts": 1.5, "events": [{"type": "BlockStored", "block_hashes": values}, *values]},
    }
    check_read(DialectReader(), pack(shapes[place]))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_real_payloads_never_raise(data: st.DataObject) -> None:
    """Flipped, cut, stretched and spliced payloads give values, and the reader goes on unharmed."""
    reader = DialectReader()
    for _ in range(3):
        payload = bytearray(data.draw(st.sampled_from(REAL)))
        at = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "splice"])):
            case "flip":
                payload[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del payload[at:]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=6))
            case "splice":
                other = data.draw(st.sampled_from(REAL))
                payload[at:] = other[data.draw(st.integers(0, len(other) - 1)) :]
        check_read(reader, bytes(payload))
    sound = data.draw(st.sampled_from(REAL))
    assert reader.read(sound) == DialectReader().read(sound)


@settings(deadline=None)
@given(st.data())
def test_damage_to_one_event_leaves_its_siblings(data: st.DataObject) -> None:
    """When one event of a batch becomes anything else that is one value, all others mean what they meant."""
    payload = data.draw(st.sampled_from([one for one in REAL if len(msgspec.msgpack.decode(one)[1]) > 1]))
    ts, raws, rank = msgspec.msgpack.decode(payload, type=tuple[float, list[Raw], int | None])
    sound = DialectReader().read(payload)
    assert isinstance(sound, EventBatch)
    at = data.draw(st.integers(0, len(raws) - 1))
    raws[at] = Raw(pack(data.draw(VALUES)))
    damaged = DialectReader().read(pack((ts, raws, rank)))
    assert isinstance(damaged, EventBatch)
    assert len(damaged.events) == len(sound.events)
    assert damaged.events[:at] == sound.events[:at]
    assert damaged.events[at + 1 :] == sound.events[at + 1 :]


@settings(deadline=None)
@given(
    st.integers(1, 5), st.sampled_from([b"\x91", b"\x81\xa1a", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff\xa1a"])
)
def test_declared_sizes_and_depths_cost_nothing(repeat: int, unit: bytes) -> None:
    """Lists that claim four thousand million entries, nested ten thousand deep, are refused at once."""
    hostile = unit * (repeat * 2000)
    for payload in (hostile, b"\x92\xcb?\xf8\x00\x00\x00\x00\x00\x00\x92\x91\xb0AllBlocksCleared" + hostile):
        assert isinstance(DialectReader().read(payload), Undecodable)


@settings(deadline=None)
@given(RAW_LISTS)
def test_tokens_are_carried_and_not_changed(ids: list[Any]) -> None:
    """Token lists pass through reading and encoding as the bytes they were."""
    raw = tokens(ids)
    batch = DialectReader().read(encode([BlockStored([7], token_ids=raw)], ts=1))
    assert isinstance(batch, EventBatch)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert bytes(stored.token_ids) == bytes(raw)
    assert token_list(stored.token_ids) == ids
