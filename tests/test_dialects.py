"""Every generation of events, byte for byte as engines send it, and what must be understood by each."""

from __future__ import annotations

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from kvbus.capture import read_capture
from kvbus.dialects import PAYLOAD_BYTES_MAX, PLAIN_RUN, DialectReader, encode
from kvbus.errors import EncodeError
from kvbus.events import (
    NIL,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_hash,
    canonical_medium,
    token_list,
    tokens,
)

GENERATIONS = json.loads((Path(__file__).parent / "golden" / "generations.json").read_text("utf-8"))
pack = msgspec.msgpack.encode


def stored(**fields: Any) -> BlockStored:
    """The one stored block of the golden payloads: hash 7, tokens 1 and 2."""
    return BlockStored(**{"block_hashes": [7], "token_ids": tokens([1, 2]), "block_size": 2, **fields})


ONE_KEY = tokens([None])
MOONCAKE = {
    "event_id": 1,
    "timestamp": 1_700_000_000_000,
    "event_type": "stored",
    "model_name": None,
    "seq_hashes": [7],
}
UNDERSTOOD: dict[str, tuple[str, EventBatch]] = {
    "vllm_0_9_0": ("array", EventBatch(1.5, [stored(), BlockRemoved([7]), AllBlocksCleared()])),
    "vllm_0_9_2": ("array", EventBatch(1.5, [stored(), BlockRemoved([7])], 0)),
    "vllm_0_10_2": ("array", EventBatch(1.5, [stored(medium="GPU"), BlockRemoved([7], "GPU")], 0)),
    "vllm_0_14": ("array", EventBatch(1.5, [stored(medium="GPU")], 0)),
    "vllm_0_17": ("array", EventBatch(1.5, [stored(medium="GPU", extra_keys=ONE_KEY)], 0)),
    "vllm_0_20": (
        "array",
        EventBatch(
            1.5, [stored(medium="GPU", extra_keys=ONE_KEY, group_idx=0), BlockRemoved([7], "GPU", 0)], 0
        ),
    ),
    "vllm_0_22": (
        "array",
        EventBatch(
            1.5,
            [stored(medium="GPU", extra_keys=ONE_KEY, group_idx=0, kv_cache_spec_kind="full_attention")],
            0,
        ),
    ),
    "sglang_0_5_18_salted": ("array", EventBatch(1.5, [stored(medium="GPU", cache_salt="t")], 0)),
    "vllm_0_24_map": (
        "map",
        EventBatch(
            1.5,
            [
                stored(medium="GPU", extra_keys=ONE_KEY, group_idx=0, kv_cache_spec_kind="full_attention"),
                BlockRemoved([7], "GPU", 0),
                AllBlocksCleared(),
            ],
            0,
        ),
    ),
    "vllm_map_batch": ("tolerant", EventBatch(1.5, [AllBlocksCleared()], 0)),
    "sglang_0_5_20_map": (
        "map-mixed-hashes",
        EventBatch(
            1.5,
            [stored(block_hashes=[2**64 - 7], token_ids=tokens([[1, 2], [2, 3]]), medium="CPU_PINNED")],
            1,
        ),
    ),
    "vllm_bytes_hashes": (
        "array-mixed-hashes",
        EventBatch(
            1.5,
            [stored(block_hashes=[1736447835066146335], token_ids=tokens([]), block_size=0, medium="CPU")],
            0,
        ),
    ),
    "mooncake_master": (
        "tolerant",
        EventBatch(
            1_700_000_000.0,
            [BlockStored([7], medium="cpu", extra=MOONCAKE)],
            0,
            unknown_keys=5,
        ),
    ),
}


def read(payload: bytes) -> EventBatch:
    """The batch in ``payload``, which must be one."""
    batch = DialectReader().read(payload)
    assert isinstance(batch, EventBatch), batch
    return batch


def event(*fields: Any, **keys: Any) -> Event:
    """What a lone event is read as, be it given as array elements or as map keys."""
    (only,) = read(pack([1.5, [fields or keys], 0])).events
    return only


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda one: one["name"])
def test_every_generation_is_understood(generation: dict[str, str]) -> None:
    """Each payload that some release has sent means exactly these events, and names its dialect."""
    reader = DialectReader()
    dialect, batch = UNDERSTOOD[generation["name"]]
    assert reader.read(bytes.fromhex(generation["payload"])) == batch
    assert reader.dialect == dialect


def test_no_generation_goes_untested() -> None:
    """The golden payloads and their meanings are the same set."""
    assert {one["name"] for one in GENERATIONS} == UNDERSTOOD.keys()


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda one: one["name"])
@pytest.mark.parametrize("before", GENERATIONS, ids=lambda one: one["name"])
def test_a_change_of_dialect_is_noticed_at_once(before: dict[str, str], generation: dict[str, str]) -> None:
    """After a stream of any one dialect, a payload of any other still means what it means alone."""
    reader = DialectReader()
    for _ in range(3):
        reader.read(bytes.fromhex(before["payload"]))
    assert reader.read(bytes.fromhex(generation["payload"])) == UNDERSTOOD[generation["name"]][1]


def test_a_stream_that_becomes_plain_again_is_read_the_plain_way_again() -> None:
    """One batch of signed hashes does not cost a stream the direct way for ever."""
    reader = DialectReader()
    reader.read(encode([BlockRemoved([-7])], ts=1))
    for _ in range(PLAIN_RUN):
        assert reader.read(encode([BlockRemoved([7])], ts=1)) == EventBatch(1.0, [BlockRemoved([7])])
        assert reader.dialect == "map-mixed-hashes"
    reader.read(encode([BlockRemoved([7])], ts=1))
    assert reader.dialect == "map"


def test_a_stream_is_not_plain_before_a_whole_run_of_plain_batches() -> None:
    """Plain batches count towards a return to the plain way only when nothing else comes between them."""
    reader = DialectReader()
    signed, plain = encode([BlockRemoved([-7])], ts=1), encode([BlockRemoved([7])], ts=1)
    array = encode([BlockRemoved([7])], ts=1, form="array")
    for between in (signed, array):
        for payload in [signed, *[plain] * (PLAIN_RUN - 1), between, signed, plain, plain]:
            reader.read(payload)
        assert reader.dialect == "map-mixed-hashes"


# ---- events, key by key and element by element -------------------------------------------------------------


@pytest.mark.parametrize("length", range(5, 13))
def test_a_stored_array_may_end_early(length: int) -> None:
    """Hand-written producers leave trailing elements out; what is there keeps its place."""
    whole = ["BlockStored", [7], 3, [1, 2], 2, 4, "CPU", "adapter", [None], 1, "mamba", 64]
    expected = [*whole[1:length], *[None] * (12 - length)]
    got = event(*whole[:length])
    assert isinstance(got, BlockStored)
    assert [
        got.block_hashes,
        got.parent_block_hash,
        token_list(got.token_ids),
        got.block_size,
        got.lora_id,
        got.medium,
        got.lora_name,
        token_list(got.extra_keys) or None,
        got.group_idx,
        got.kv_cache_spec_kind,
        got.kv_cache_spec_sliding_window,
    ] == expected


def test_elements_beyond_the_last_generation_are_kept_by_position() -> None:
    """A longer array is never read as something it does not say: what is new is kept raw, and counted."""
    whole = ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, None, 0, "mamba", None, "LOCAL", [1]]
    batch = read(pack([1.5, [whole, ["BlockRemoved", [7], "CPU", 1, "why"], ["AllBlocksCleared", "GPU"]], 0]))
    first, second, third = batch.events
    assert isinstance(first, BlockStored)
    assert (first.locality, first.extra) == (None, {"12": "LOCAL", "13": [1]})
    assert second == BlockRemoved([7], "CPU", 1, extra={"4": "why"})
    assert third == AllBlocksCleared(extra={"1": "GPU"})
    assert batch.unknown_keys == 4


def test_salt_metadata_with_more_in_it_is_kept() -> None:
    """What else SGLang puts into the map at index 7 lands in ``extra``, the salt in its field."""
    got = event("BlockStored", [7], None, [1, 2], 2, None, "GPU", {"cache_salt": "t", "tenant": 3})
    assert got == stored(medium="GPU", cache_salt="t", extra={"tenant": 3})


def test_a_hash_list_may_mix_all_forms() -> None:
    """vLLM 0.11 … 0.21 sent bytes for CPU blocks beside integers for GPU blocks."""
    long = bytes(range(32))
    assert event("BlockRemoved", [1, -1, long, b"\x05"], None) == BlockRemoved(
        [1, 2**64 - 1, canonical_hash(long), 5]
    )
    assert event(type="BlockRemoved", block_hashes=[long, 2**64 - 1]) == BlockRemoved(
        [canonical_hash(long), 2**64 - 1]
    )


@pytest.mark.parametrize("parent", [0, -2, 2**64 - 1, b"\x01" * 32, None])
@pytest.mark.parametrize("as_map", [True, False])
def test_a_parent_is_a_hash_like_any_other(parent: int | bytes | None, as_map: bool) -> None:
    """Parents come in every hash form; LMCache's 0 is a hash, not the absence of one."""
    if as_map:
        got = event(
            type="BlockStored", block_hashes=[7], parent_block_hash=parent, token_ids=[], block_size=0
        )
    else:
        got = event("BlockStored", [7], parent, [], 0)
    assert isinstance(got, BlockStored)
    assert got.parent_block_hash == (None if parent is None else canonical_hash(parent))


@pytest.mark.parametrize("as_map", [True, False])
def test_hashes_that_came_as_strings_are_bytes(as_map: bool) -> None:
    """Old packers write bytes as strings (seldom UTF-8), JSON bridges write hex: both mean their bytes."""
    long = bytes(range(0xE0, 0x100))
    old = Raw(b"\xd9\x20" + long)
    hashes, parent = [old, long.hex(), "abcdef"], Raw(b"\xa2\x01\x00")
    if as_map:
        got = event(type="BlockStored", block_hashes=hashes, parent_block_hash=parent)
    else:
        got = event("BlockStored", hashes, parent, None, None)
    low = canonical_hash(long)
    assert got == BlockStored([low, low, canonical_hash(b"abcdef")], 256)


@pytest.mark.parametrize("ids", [[], None, [1, 2], [[1, 2], [2, 3]], ["a", "b"]])
@pytest.mark.parametrize("size", [None, 0, 2, 16])
def test_tokens_and_block_sizes_of_every_engine(ids: list[Any] | None, size: int | None) -> None:
    """Ints, EAGLE pairs, TensorRT-LLM's strings, none at all; sizes of placeholders, of parts, of chunks."""
    for got in (
        event(type="BlockStored", block_hashes=[7], parent_block_hash=None, token_ids=ids, block_size=size),
        event("BlockStored", [7], None, ids, size),
    ):
        assert got == BlockStored([7], token_ids=tokens(ids), block_size=size)


def test_a_map_event_may_leave_keys_out_and_in_any_order() -> None:
    """Dynamo's shims send no lora_id, medium or group, and nobody promises an order."""
    got = event(block_size=2, token_ids=[1, 2], block_hashes=[7], type="BlockStored", cache_salt="t")
    assert got == stored(cache_salt="t")


@pytest.mark.parametrize("name", ["data_parallel_rank", "attn_dp_rank", "dp_rank"])
def test_a_batch_that_is_a_map_names_its_rank_as_it_likes(name: str) -> None:
    """Map batches are read under each engine's name for the rank; keys beyond are counted."""
    batch = read(pack({"ts": 1.5, "events": [["BlockRemoved", [7]]], name: 3, "more": 1}))
    assert batch == EventBatch(1.5, [BlockRemoved([7])], 3, unknown_keys=1)


def test_a_longer_batch_is_read_and_what_is_new_is_counted() -> None:
    """A fourth element of a batch is no reason not to read the first three."""
    batch = read(pack([1.5, [{"type": "BlockRemoved", "block_hashes": [7]}], 3, "new", "newer"]))
    assert batch == EventBatch(1.5, [BlockRemoved([7])], 3, unknown_keys=2)


@pytest.mark.parametrize(
    ("said", "meant"),
    [(1_700_000_000_000, 1.7e9), (1.7e12, 1.7e9), (1_700_000_000, 1.7e9), (0, 0.0), (1e11, 1e11)],
)
def test_ts_is_seconds_or_else_milliseconds(said: float, meant: float) -> None:
    """A ``ts`` past 1e11 can only be Mooncake's milliseconds."""
    assert read(pack([said, [], 0])).ts == meant


@pytest.mark.parametrize(
    ("kind", "fact"),
    [("stored", BlockStored), ("removed", BlockRemoved), ("cleared", AllBlocksCleared)],
)
def test_mooncake_events_without_the_vllm_names(kind: str, fact: type) -> None:
    """``event_type``, ``seq_hashes``, ``parent_hash`` stand in for vLLM's names and are kept as they came."""
    keys: dict[str, Any] = {"event_type": kind, "group_id": "g", "seq_hashes": [-7], "parent_hash": -3}
    got = event(**keys)
    assert isinstance(got, fact)
    assert getattr(got, "extra", None) == keys
    assert getattr(got, "block_hashes", [2**64 - 7]) == [2**64 - 7]
    assert getattr(got, "parent_block_hash", 2**64 - 3) == 2**64 - 3


@pytest.mark.parametrize("parent", [b"", "abc", True, None, 1.5, [7]])
def test_a_parent_hash_that_is_no_hash_is_kept_as_an_unknown_key(parent: Any) -> None:
    """Under a name that is not vLLM's, only what can be a hash is taken for one."""
    got = event(type="BlockStored", block_hashes=[7], parent_hash=parent)
    assert got == BlockStored([7], extra={"parent_hash": parent})


# ---- what kvbus does not know ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strange", [{"type": "Ignored"}, {"type": "BlockTransferred", "to": [1]}, ["BlockTransferred", 1]]
)
def test_an_unknown_tag_is_kept_whole(strange: Any) -> None:
    """An event nobody has told us about keeps its tag, its bytes and its place."""
    batch = read(pack([1.5, [["BlockRemoved", [7]], strange, {"type": "AllBlocksCleared"}], 0]))
    tag = strange["type"] if isinstance(strange, dict) else strange[0]
    assert batch.events == [BlockRemoved([7]), Unrecognized(tag, Raw(pack(strange))), AllBlocksCleared()]


def test_new_keys_are_kept_counted_and_learned() -> None:
    """A newer engine's keys land in ``extra``; after the first batch they are read by a compiled dialect."""
    reader = DialectReader()
    new = {"type": "BlockStored", "block_hashes": [-7], "origin": "NEW", "offsets": [[1], None]}
    old = {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"}
    cleared = {"type": "AllBlocksCleared", "medium": None}
    payload = pack([1.5, [new, old, cleared, new], 0])
    extra = {"origin": "NEW", "offsets": [[1], None]}
    meant = EventBatch(
        1.5,
        [
            BlockStored([2**64 - 7], extra=extra),
            BlockRemoved([7], "CPU"),
            AllBlocksCleared(extra={"medium": None}),
            BlockStored([2**64 - 7], extra=extra),
        ],
        0,
        unknown_keys=5,
    )
    assert (reader.read(payload), reader.dialect) == (meant, "tolerant")
    assert (reader.read(payload), reader.dialect) == (meant, "map-new-keys")


def test_a_stream_of_ever_new_keys_is_read_but_not_learned_for_ever() -> None:
    """What a reader learns is bounded, what it reads is not."""
    reader = DialectReader()
    for number in range(100):
        keys = {"type": "BlockRemoved", "block_hashes": [7], f"key_{number}": number}
        assert reader.read(pack([1.5, [keys]])) == EventBatch(
            1.5, [BlockRemoved([7], extra={f"key_{number}": number})], unknown_keys=1
        )
    assert len(reader._new_keys) == 32


def test_our_own_field_cannot_be_filled_from_outside() -> None:
    """A payload that names kvbus's place for unknown keys gets there as an unknown key."""
    got = event(type="BlockRemoved", block_hashes=[7], **{"kvbus:extra": {"reason": "evicted"}})
    assert got == BlockRemoved([7], extra={"kvbus:extra": {"reason": "evicted"}})


# ---- what cannot be read -----------------------------------------------------------------------------------

DEEP = b"\x91" * 100_000 + b"\xc0"
BAD_EVENTS: list[tuple[Any, str]] = [
    (None, "array"),
    (7, "array"),
    ([], "without a tag"),
    ({}, "without `type`"),
    ([7, [7]], "tag: Expected `str`, got `int`"),
    ({"type": 7}, "type: Expected `str`, got `int`"),
    ({7: 7}, "Expected `str`, got `int`"),
    (["BlockRemoved"], "BlockRemoved: Expected `array` of at least length 2, got 1"),
    (["BlockStored", [7], None, []], "BlockStored: Expected `array` of at least length 5, got 4"),
    ({"type": "BlockStored"}, "BlockStored: Object missing required field `block_hashes`"),
    ({"type": "BlockRemoved", "block_hashes": 7}, "Expected `array`, got `int` - at `$.block_hashes`"),
    ({"type": "BlockRemoved", "block_hashes": [True]}, "at `$.block_hashes[0]`"),
    ({"type": "BlockRemoved", "block_hashes": [b""]}, "length >= 1"),
    ({"type": "BlockRemoved", "block_hashes": [7], "medium": 7}, "got `int` - at `$.medium`"),
    ({"type": "BlockRemoved", "block_hashes": [7], "group_idx": 2**63}, "at `$.group_idx`"),
    ({"type": "BlockRemoved", "block_hashes": [7], "medium": Raw(b"\xa1\xff")}, "UTF-8"),
    ({"type": Raw(b"\xa1\xff")}, "type: Invalid UTF-8"),
    (["BlockStored", [7], None, [], "16"], "got `str` - at `$[4]`"),
    (
        {"type": "BlockRemoved", "block_hashes": [7], "new": Raw(b"\x81\x80\x01")},
        "hashable (byte 3) - at `$.new`",
    ),
    (Raw(DEEP), "tag: Expected `str`, got `array`"),
    (["BlockStored", [7], None, Raw(DEEP), 16], "nested too deep"),
    ({"type": "BlockStored", "block_hashes": [7], "new": Raw(DEEP)}, "nested too deep"),
]


@pytest.mark.parametrize(("bad", "why"), BAD_EVENTS, ids=[why for _, why in BAD_EVENTS])
def test_a_bad_event_stays_alone(bad: Any, why: str) -> None:
    """An event that cannot be read says why, keeps its bytes and its place; its siblings are read as ever."""
    one, other = {"type": "BlockRemoved", "block_hashes": [1]}, ["BlockRemoved", [2]]
    batch = read(pack([1.5, [one, bad, other], 0]))
    first, between, last = batch.events
    assert (first, last) == (BlockRemoved([1]), BlockRemoved([2]))
    assert isinstance(between, Undecodable)
    assert bytes(between.raw) == pack(bad)
    assert why in between.why


GOOD = pack([1.5, [{"type": "BlockRemoved", "block_hashes": [7]}], 0])
BAD_PAYLOADS: list[tuple[bytes, str]] = [
    (b"", "empty payload"),
    (GOOD[:-4], "truncated"),
    (GOOD + b"\x00", "trailing characters"),
    (pack([1.5, [Raw(DEEP)]]) + b"\x00", "trailing bytes from byte 100012"),
    (b"\xc1", "opcode"),
    (b"{}", "array"),
    (pack([]), "without `ts`"),
    (pack([1.5]), "without `events`"),
    (pack({"ts": 1.5}), "without `events`"),
    (pack(["1.5", []]), "ts: Expected `float`, got `str`"),
    (pack([None, []]), "ts: Expected `float`, got `None`"),
    (pack([math.nan, []]), "ts: nan is not a time"),
    (pack([math.inf, []]), "ts: inf is not a time"),
    (pack([-math.inf, [1]]), "ts: -inf is not a time"),
    (pack([2**64 - 1, []]), "is not a time"),
    (pack([1.5, 7]), "events: Expected `array`, got `int`"),
    (pack([1.5, {}]), "events: Expected `array`, got `object`"),
    (pack([1.5, [], "0"]), "data_parallel_rank: Expected `int | null`, got `str`"),
    (pack([1.5, [], -1]), "data_parallel_rank: Expected `int` >= 0"),
    (pack([1.5, [], 2**31]), "data_parallel_rank: Expected `int` <= 2147483647"),
    (b"\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xdd\xff\xff\xff\xff", "truncated"),
    (b"\xdd\xff\xff\xff\xff" + b"\xc0" * 9, "an array of 4294967295 elements"),
    (b"\xdf\xff\xff\xff\xff\xa1a\xc0", "truncated"),
    (b"\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xc6\xff\xff\xff\xff", "truncated"),
    (pack([1.5, [None] * (2**17 + 1)]), "an array of 131073 elements"),
    (b"\x91" * 10_000_000, "nested too deep"),
    (b"\x81" * 10_000, "Expected `str`"),
    (b"\x00" * (PAYLOAD_BYTES_MAX + 1), "67108865 bytes"),
]


@pytest.mark.parametrize(("payload", "why"), BAD_PAYLOADS, ids=[why for _, why in BAD_PAYLOADS])
def test_a_payload_that_is_no_batch_says_why(payload: bytes, why: str) -> None:
    """What is no batch is a value with a reason and its bytes; the reader goes on with the next as before."""
    reader = DialectReader()
    assert reader.read(GOOD) == EventBatch(1.5, [BlockRemoved([7])], 0)
    got = reader.read(payload)
    assert isinstance(got, Undecodable)
    assert bytes(got.raw) == payload
    assert reader.dialect == "unreadable"
    assert why in got.why
    assert reader.read(GOOD) == EventBatch(1.5, [BlockRemoved([7])], 0)
    assert reader.dialect == "map"


# ---- real streams ------------------------------------------------------------------------------------------


def payloads(capture: Path) -> list[bytes]:
    """The payloads of a capture, in order."""
    return [record.frames[-1] for record in read_capture(capture)]


def each_capture(folder: Path, check: Callable[[Path], None]) -> None:
    found = sorted(path for path in folder.glob("*.frames") if ".replay_" not in path.name)
    assert len(found) >= 4
    for capture in found:
        check(capture)


def test_every_capture_reads_without_a_loss_and_counts_as_its_oracle(captures: Path) -> None:
    """Events and hashes by type and medium equal what was counted independently of kvbus."""

    def check(capture: Path) -> None:
        meta = json.loads(capture.with_suffix(".meta.json").read_text("utf-8"))
        reader, events, hashes = DialectReader(), Counter[str](), Counter[str]()
        for payload in payloads(capture):
            batch = reader.read(payload)
            assert isinstance(batch, EventBatch)
            assert reader.dialect not in ("tolerant", "unreadable")
            for one in batch.events:
                if isinstance(one, BlockStored | BlockRemoved):
                    place = f"{type(one).__name__}/{canonical_medium(one.medium)}"
                    hashes[place] += len(one.block_hashes)
                    events[place] += 1
                else:
                    assert isinstance(one, AllBlocksCleared)
                    events["AllBlocksCleared"] += 1
        assert canonical_keys(meta["events_by_type_medium"]) == events
        assert canonical_keys(meta["block_hashes_by_type_medium"]) == hashes

    each_capture(captures, check)


def canonical_keys(counts: dict[str, int]) -> Counter[str]:
    """Oracle counts under canonical media; no medium counts as GPU."""
    merged = Counter[str]()
    for name, count in counts.items():
        kind, _, medium = name.partition("/")
        if kind != "AllBlocksCleared":
            kind += "/" + canonical_medium(None if medium in ("", "None") else medium)
        merged[kind] += count
    return merged


def test_reading_equals_a_generic_decode_field_by_field(captures: Path) -> None:
    """The compiled ways say of real streams what a plain msgpack decode says, hashes made canonical."""

    def check(capture: Path) -> None:
        reader = DialectReader()
        for payload in payloads(capture)[:150]:
            ts, said, *_ = msgspec.msgpack.decode(payload)
            batch = reader.read(payload)
            assert isinstance(batch, EventBatch)
            assert (batch.ts, len(batch.events)) == (ts, len(said))
            for plain, one in zip(said, batch.events, strict=True):
                assert _as_said(plain) == _as_said(msgspec.msgpack.decode(encode([one], ts=1))[1][0])

    each_capture(captures, check)


ARRAY_NAMES = {
    "BlockStored": (*BlockStored.__struct_fields__[:11],),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


def _as_said(plain: Any) -> dict[str, Any]:
    """One event of a generic decode as its non-null keys, hashes canonical."""
    if isinstance(plain, list):
        plain = {"type": plain[0]} | dict(zip(ARRAY_NAMES[plain[0]], plain[1:], strict=False))
    keys = {key: value for key, value in plain.items() if value is not None}
    if "block_hashes" in keys:
        keys["block_hashes"] = [canonical_hash(one) for one in keys["block_hashes"]]
    if "parent_block_hash" in keys:
        keys["parent_block_hash"] = canonical_hash(keys["parent_block_hash"])
    return keys


def as_vllm_033(payload: bytes) -> bytes:
    """A vLLM 0.24 … 0.32 payload with the BlockStored header of 0.33.

    msgspec writes the header for as many keys as the class has, not as the event has: up to 15 take one byte,
    and 0.33 (like kvbus) has more.
    """
    fixmap = re.compile(rb"[\x80-\x8f](?=\xa4type\xabBlockStored)")
    return fixmap.sub(lambda found: bytes([0xDE, 0x00, found[0][0] & 0x0F]), payload)


def test_integer_hash_streams_of_vllm_map_releases_encode_to_the_same_bytes(captures: Path) -> None:
    """A vLLM 0.32 stream goes out as it came in, each key and value in its place, as 0.33 would send it."""
    same = 0

    def check(capture: Path) -> None:
        nonlocal same
        if not capture.name.startswith("vllm032") or "bytes" in capture.name:
            return
        reader = DialectReader()
        for payload in payloads(capture):
            batch = reader.read(payload)
            assert isinstance(batch, EventBatch)
            again = encode(batch.events, ts=batch.ts, rank=batch.data_parallel_rank)
            assert again == as_vllm_033(payload)
            same += 1

    each_capture(captures, check)
    assert same > 600


# ---- encoding ----------------------------------------------------------------------------------------------


def test_the_array_form_is_the_last_array_generation() -> None:
    """In the array form a batch is what vLLM 0.22 … 0.23 sends, element by element."""
    golden = next(one for one in GENERATIONS if one["name"] == "vllm_0_22")
    _, batch = UNDERSTOOD["vllm_0_22"]
    assert encode(batch.events, ts=1.5, rank=0, form="array").hex() == golden["payload"]
    removed: list[Event] = [BlockRemoved([7], "CPU", 1, reason="evicted"), AllBlocksCleared(emit_seq=3)]
    assert encode(removed, ts=1.5, form="array") == pack(
        [1.5, [["BlockRemoved", [7], "CPU", 1], ["AllBlocksCleared"]], None]
    )


def test_the_map_form_is_the_map_generation() -> None:
    """In the map form a batch is what vLLM ≥ 0.24 sends, key by key."""
    golden = next(one for one in GENERATIONS if one["name"] == "vllm_0_24_map")
    encoded = encode(UNDERSTOOD["vllm_0_24_map"][1].events, ts=1.5, rank=0)
    assert encoded == as_vllm_033(bytes.fromhex(golden["payload"]))
    assert msgspec.msgpack.decode(encoded) == msgspec.msgpack.decode(bytes.fromhex(golden["payload"]))


def test_the_map_form_is_byte_for_byte_what_a_class_like_vllm_033s_encodes() -> None:
    """A msgspec class with the fields of vLLM 0.33's BlockStored writes the bytes that we write."""
    names = BlockStored.__struct_fields__[:15]
    assert names[-1] == "lookahead_token_ids"
    fields = [name if place < 7 else (name, Any, None) for place, name in enumerate(names)]
    theirs = msgspec.defstruct("BlockStored", fields, tag=True, omit_defaults=True)
    for later in ({}, {"group_idx": 0, "kv_cache_spec_kind": "mamba"}, {"session_id": "s"}):
        values = {"medium": "GPU", "lora_id": None, "lora_name": None, "parent_block_hash": 3, **later}
        said = theirs(block_hashes=[7], token_ids=[1, 2], block_size=2, **values)
        assert encode([stored(**values)], ts=1.5, rank=0) == pack((1.5, [said], 0))


def test_our_own_keys_are_plain_keys_of_the_map_form() -> None:
    """``emit_seq`` and ``reason`` are ordinary keys that other consumers skip."""
    events: list[Event] = [
        BlockRemoved([7], "CPU", emit_seq=4, reason="evicted"),
        AllBlocksCleared(emit_seq=5),
    ]
    assert msgspec.msgpack.decode(encode(events, ts=1, rank=2)) == [
        1.0,
        [
            {
                "type": "BlockRemoved",
                "block_hashes": [7],
                "medium": "CPU",
                "emit_seq": 4,
                "reason": "evicted",
            },
            {"type": "AllBlocksCleared", "emit_seq": 5},
        ],
        2,
    ]


@pytest.mark.parametrize("form", ["map", "array"])
def test_what_was_not_understood_goes_out_as_it_came(form: Any) -> None:
    """Unknown and unreadable events leave with the very bytes they arrived in, however deep."""
    came = [{"type": "BlockTransferred", "n": 1}, ["BlockRemoved", "x"], Raw(DEEP), None]
    events = read(pack([1.5, came, 0])).events
    assert [type(one) for one in events] == [Unrecognized, Undecodable, Undecodable, Undecodable]
    assert encode(events, ts=1.5, rank=0, form=form) == pack([1.5, came, 0])


def test_unknown_keys_go_out_as_keys() -> None:
    """A relayed event keeps the keys that this kvbus does not know."""
    keys = {
        "type": "BlockRemoved",
        "block_hashes": [7],
        "medium": None,
        "origin": "NEW",
        "n": [1, {"a": b"b"}],
    }
    assert msgspec.msgpack.decode(encode([event(**keys)], ts=1.5))[1] == [keys]


class _NotAnEvent(msgspec.Struct):
    extra: None = None


CANNOT: list[tuple[list[Any], dict[str, Any], str]] = [
    ([BlockRemoved([2**64])], {}, "ints"),
    ([BlockRemoved([7], "\ud800")], {}, "surrogates"),
    ([BlockRemoved([object()])], {}, "object"),  # type: ignore[list-item]
    ([BlockRemoved([7], extra={"medium": "CPU"})], {}, r"extra holds \['medium'\]"),
    ([BlockRemoved([7], extra={"type": "x"})], {}, r"extra holds \['type'\]"),
    ([Undecodable("truncated", Raw(b"\x92\x01"))], {}, "not one msgpack value"),
    ([Undecodable("empty", Raw(b""))], {}, "not one msgpack value"),
    ([Unrecognized("two", Raw(NIL * 2))], {}, "not one msgpack value"),
    ([{"type": "BlockRemoved"}], {}, "dict is not an event"),
    ([_NotAnEvent()], {}, "_NotAnEvent is not an event"),
    ([], {"ts": math.nan}, "nan is not a time"),
    ([], {"ts": 1.7e12}, "not a time in seconds"),
    ([], {"rank": -1}, "rank -1"),
    ([], {"rank": 2**31}, "rank 2147483648"),
    ([], {"form": "json"}, "no form 'json'"),
]


@pytest.mark.parametrize(("events", "how", "why"), CANNOT, ids=[why for *_, why in CANNOT])
def test_a_batch_that_cannot_be_encoded_is_refused(events: list[Any], how: dict[str, Any], why: str) -> None:
    """Nothing goes on the wire that no reader could take: the error says what is wrong and what to do."""
    with pytest.raises(EncodeError, match=why) as caught:
        encode(events, **{"ts": 1.5, **how})
    assert caught.value.next_step


def test_a_hostile_payload_cannot_make_the_reader_big() -> None:
    """A reader keeps nothing of what it reads but names: a thousand hostile payloads later it is as small."""
    reader = DialectReader()
    for number in range(1000):
        reader.read(pack([1.5, [{"type": "BlockRemoved", "block_hashes": [7], f"k{number}" * 50: 1}]]))
        reader.read(pack([1.5, [{"type": f"T{number}"}]]))
    gc.collect()
    assert len(reader._new_keys) <= 32
    assert len(reader._dialects) <= 5
