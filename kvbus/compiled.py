"""The dialects that msgspec reads in one compiled decode: their wire structs, and the way to facts.

Only ``map`` decodes straight into the public structs. The others decode into private twins that take hashes
as they come; turning those into facts is a constructor call an event. Every struct here is strict: what is
not exactly its dialect is refused, so that a positional element is never taken for another. Knows nothing
of streams; see ``dialects``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.msgpack import Decoder
from msgspec.structs import astuple, replace

from kvbus.events import (
    MASK64,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    Int64,
    KnownEvent,
    canonical_hash,
)

Rank = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""A data-parallel rank; consumers hold it in 32 bits."""
AnyHash = int | Annotated[bytes, Meta(min_length=1)]
PUBLIC: Final[dict[str, type[KnownEvent]]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
_from_bytes = int.from_bytes
TWO_64: Final = MASK64 + 1
T = TypeVar("T")
Facts = tuple[list[Event], int, bool]
"""Events, how many unknown keys they hold, and whether they needed more than a plain dialect."""


class Batch(Struct, Generic[T], array_like=True, forbid_unknown_fields=True, gc=False):
    """The array of two or three elements that every release wraps its events in."""

    ts: float
    events: list[T]
    data_parallel_rank: Rank | None = None


class Dialect(Struct, frozen=True):
    """How to decode a batch, or one event of it, and how to turn what came out into facts."""

    name: str
    batch: Decoder[Any]
    event: Decoder[Any]
    facts: Callable[[list[Any]], Facts]


def _hashes(raw: list[Any]) -> list[int]:
    """``canonical_hash`` of each, without its checks: the decoder has made them."""
    if not raw or type(raw[0]) is int:
        try:
            return [h if h >= 0 else h + TWO_64 for h in raw]
        except TypeError:
            pass  # bytes further on
    return [h & MASK64 if type(h) is int else _from_bytes(h[-8:], "big") for h in raw]


def parent_of(raw: int | bytes | None, extra: dict[str, Any] | None) -> int | None:
    """The parent's canonical hash. Mooncake says ``parent_hash`` and may leave vLLM's name out."""
    if raw is None and extra:
        other = extra.get("parent_hash")
        raw = other if type(other) in (int, bytes) and other != b"" else None
    return None if raw is None else canonical_hash(raw)


# ---- map events --------------------------------------------------------------------------------------------


def _twin(public: type[KnownEvent], new_keys: Sequence[str]) -> type[Struct]:
    """The public event with hashes as they come, and ``new_keys`` behind its known fields.

    The defaults are the public struct's own objects: a field that was absent is absent again when encoded.
    """
    as_sent: dict[str, Any] = {"block_hashes": list[AnyHash], "parent_block_hash": AnyHash | None}
    fields: list[Any] = []
    for known in msgspec.structs.fields(public):
        kind = as_sent.get(known.name, known.type)
        if known.required:
            fields.append((known.name, kind))
        elif known.name != "extra":
            factory = known.default_factory
            fields.append((known.name, kind, known.default if factory is NODEFAULT else factory()))
    for number, key in enumerate(new_keys):
        fields.append((f"new_{number}", Any | UnsetType, field(default=UNSET, name=key)))
    return msgspec.defstruct(public.__name__, fields, tag=True, forbid_unknown_fields=True, gc=False)


def _extra(sent: Any, known: int, new_keys: Sequence[str]) -> dict[str, Any] | None:
    """The values of the new keys that this event has."""
    values = astuple(sent)[known:]
    if UNSET not in values:
        return dict(zip(new_keys, values, strict=True)) or None
    return {key: new for key, new in zip(new_keys, values, strict=True) if new is not UNSET} or None


def _map_facts(
    removed: type, cleared: type, extras: dict[type, tuple[int, list[str]]], found: list[Any]
) -> Facts:
    events: list[Event] = []
    unknown, special, extra = 0, False, None
    for sent in found:
        kind = type(sent)
        if extras and (extra := _extra(sent, *extras[kind])):
            unknown += len(extra)
            special = True
        if kind is cleared:
            events.append(AllBlocksCleared(sent.emit_seq, extra))
            continue
        hashes = _hashes(sent.block_hashes)
        special = special or hashes != sent.block_hashes
        if kind is removed:
            events.append(_removed(sent, hashes, extra))
        else:
            events.append(_stored(sent, hashes, extra))
    return events, unknown, special


def _removed(sent: Any, hashes: list[int], extra: dict[str, Any] | None) -> BlockRemoved:
    return BlockRemoved(
        hashes,
        sent.medium,
        sent.group_idx,
        sent.locality,
        sent.ownership,
        sent.emit_seq,
        sent.reason,
        extra,
    )


def _stored(sent: Any, hashes: list[int], extra: dict[str, Any] | None) -> BlockStored:
    parent = sent.parent_block_hash
    return BlockStored(
        hashes,
        parent if type(parent) is int and parent >= 0 else parent_of(parent, extra),
        sent.token_ids,
        sent.block_size,
        sent.lora_id,
        sent.medium,
        sent.lora_name,
        sent.extra_keys,
        sent.group_idx,
        sent.kv_cache_spec_kind,
        sent.kv_cache_spec_sliding_window,
        sent.locality,
        sent.ownership,
        sent.session_id,
        sent.lookahead_token_ids,
        sent.cache_salt,
        sent.emit_seq,
        extra,
    )


@lru_cache(maxsize=64)
def map_dialect(name: str, new_keys: frozenset[tuple[str, str]] = frozenset()) -> Dialect:
    """Map events with hashes of any kind. ``new_keys``: (tag, key) pairs taken besides the known ones."""
    keys = {tag: sorted(key for of, key in new_keys if of == tag) for tag in PUBLIC}
    twins = {tag: _twin(public, keys[tag]) for tag, public in PUBLIC.items()}
    known = {tag: len(twins[tag].__struct_fields__) - len(keys[tag]) for tag in PUBLIC}
    extras = {twins[tag]: (known[tag], keys[tag]) for tag in PUBLIC} if new_keys else {}
    facts = partial(_map_facts, twins["BlockRemoved"], twins["AllBlocksCleared"], extras)
    stored, removed, cleared = twins.values()
    union: Any = stored | removed | cleared
    return Dialect(name, Decoder(Batch[union]), Decoder(union), facts)


# ---- array events ------------------------------------------------------------------------------------------


class _Metadata(Struct, forbid_unknown_fields=True, gc=False):
    """What SGLang 0.5.18 … 0.5.19 append to a salted BlockStored, where vLLM has ``lora_name``."""

    cache_salt: str | None = None


class _StoredArray(
    Struct, Generic[T], tag="BlockStored", array_like=True, forbid_unknown_fields=True, gc=False
):
    block_hashes: list[T]
    parent_block_hash: T | None
    token_ids: Raw
    block_size: Int64 | None
    lora_id: Int64 | None = None
    medium: str | None = None
    lora_name: str | _Metadata | None = None
    extra_keys: Raw = BlockStored([]).extra_keys
    group_idx: Int64 | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Int64 | None = None


class _RemovedArray(
    Struct, Generic[T], tag="BlockRemoved", array_like=True, forbid_unknown_fields=True, gc=False
):
    block_hashes: list[T]
    medium: str | None = None
    group_idx: Int64 | None = None


class _ClearedArray(Struct, tag="AllBlocksCleared", array_like=True, forbid_unknown_fields=True, gc=False):
    pass


ARRAY_WIDTH: Final = {"BlockStored": 12, "BlockRemoved": 4, "AllBlocksCleared": 1}
"""How many elements the last array generation (vLLM 0.22 … 0.23) has, its tag included."""


def _array_facts(mixed: bool, found: list[Any]) -> Facts:
    events: list[Event] = []
    special = False
    for sent in found:
        if type(sent) is _ClearedArray:
            events.append(AllBlocksCleared())
            continue
        hashes = _hashes(sent.block_hashes) if mixed else sent.block_hashes
        special = special or hashes != sent.block_hashes
        if type(sent) is _RemovedArray:
            events.append(BlockRemoved(hashes, sent.medium, sent.group_idx))
        else:
            events.append(_stored_array(sent, hashes))
    return events, 0, special or not mixed


def _stored_array(sent: Any, hashes: list[int]) -> BlockStored:
    parent, name = sent.parent_block_hash, sent.lora_name
    event = BlockStored(
        hashes,
        parent if type(parent) is int and parent >= 0 else parent_of(parent, None),
        sent.token_ids,
        sent.block_size,
        sent.lora_id,
        sent.medium,
        None if type(name) is _Metadata else name,
        sent.extra_keys,
        sent.group_idx,
        sent.kv_cache_spec_kind,
        sent.kv_cache_spec_sliding_window,
    )
    return replace(event, cache_salt=name.cache_salt) if type(name) is _Metadata else event


def _array_dialect(name: str, kind: Any, *, mixed: bool) -> Dialect:
    union: Any = _StoredArray[kind] | _RemovedArray[kind] | _ClearedArray
    return Dialect(name, Decoder(Batch[union]), Decoder(union), partial(_array_facts, mixed))


def _as_decoded(found: list[Any]) -> Facts:
    return found, 0, True


MAP: Final = Dialect("map", Decoder(Batch[KnownEvent]), Decoder(KnownEvent), _as_decoded)
MAP_MIXED: Final = map_dialect("map-mixed-hashes")
ARRAY: Final = _array_dialect("array", BlockHash, mixed=False)
ARRAY_MIXED: Final = _array_dialect("array-mixed-hashes", AnyHash, mixed=True)
