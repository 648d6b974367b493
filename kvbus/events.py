"""What a KV-cache event means, whatever release of whatever engine said it.

One frozen struct a fact, in the past tense, under the field names of vLLM's ``kv_events.py``. Block hashes
are canonical: unsigned 64-bit (unsigned as is; signed by two's complement; bytes by their last 8,
big-endian). The raw form is not here: it stays in the payload. Lists nobody counts on every event (token
ids, extra keys) stay raw msgpack, so that reading an event never builds them; ``tokens`` and ``token_list``
go in and out.

The structs are at once today's wire form (a map tagged by ``type``), so the usual path from payload to
fact is one compiled msgspec decode. Fields that vLLM always sends, null or not, are always encoded; the
later ones only when set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

BlockHash = Annotated[int, Meta(ge=0)]
"""Canonical block hash: 0 ≤ h < 2**64 (msgpack carries no larger integer)."""

Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Other integers: what every consumer (Arrow, DuckDB, numpy) holds in a signed 64-bit column."""

Extra = Annotated[dict[str, Any], Meta(min_length=1, max_length=0)]
"""Unknown keys. No map can meet both bounds, which decoding checks: no payload fills this field itself."""

NIL: Final = b"\xc0"
MASK64: Final = (1 << 64) - 1

# A field with a default *factory* is encoded even when it holds that default: msgspec omits only plain
# defaults. vLLM declares these fields without a default, so consumers rely on the keys being there.


def _none() -> None:
    return None


def _nil() -> Raw:
    return Raw(NIL)


class BlockStored(Struct, tag=True, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Blocks became readable in a tier. Field names and order: vLLM ``kv_events.py``, 0.9 … 0.33.

    ``token_ids`` is raw msgpack: a list of ints, of ``[a, b]`` pairs (SGLang EAGLE) or of strings
    (TensorRT-LLM), empty, or nil. ``block_size`` is in tokens; 0 or None for placeholders. ``emit_seq``
    is kvbus's own: the order in which one composing manager made its events, across tiers.
    ``extra`` keeps keys this kvbus does not know.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = field(default_factory=_none)
    token_ids: Raw = field(default_factory=_nil)
    block_size: Int64 | None = field(default_factory=_none)
    lora_id: Int64 | None = field(default_factory=_none)
    medium: str | None = field(default_factory=_none)
    lora_name: str | None = field(default_factory=_none)
    extra_keys: Raw = Raw(NIL)
    group_idx: Int64 | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Int64 | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: Raw = Raw(NIL)
    cache_salt: str | None = None
    emit_seq: Int64 | None = None
    extra: Extra | None = field(default=None, name="kvbus:extra")


class BlockRemoved(Struct, tag=True, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Blocks left a tier. ``reason`` is kvbus's own: ``evicted``, ``reset``, ``corrupt`` or ``deleted``."""

    block_hashes: list[BlockHash]
    medium: str | None = field(default_factory=_none)
    group_idx: Int64 | None = None
    locality: str | None = None
    ownership: str | None = None
    emit_seq: Int64 | None = None
    reason: str | None = None
    extra: Extra | None = field(default=None, name="kvbus:extra")


class AllBlocksCleared(
    Struct, tag=True, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """The engine reset its prefix cache. Speaks for the GPU tier only (vLLM ``reset_prefix_cache``)."""

    emit_seq: Int64 | None = None
    extra: Extra | None = field(default=None, name="kvbus:extra")


class Unrecognized(Struct, frozen=True, gc=False):
    """An event under a tag this kvbus does not know (ATOM's ``BlockTransferred``, say), kept whole."""

    tag: str
    raw: Raw

    @property
    def content(self) -> dict[Any, Any]:
        """The event's map; of an array, its elements by number; empty where it cannot be read."""
        try:
            content = msgspec.msgpack.decode(self.raw, strict=False)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return {}
        if isinstance(content, list):
            return dict(enumerate(content))
        return content if isinstance(content, dict) else {}

    @property
    def medium(self) -> str | None:
        """The medium it names as known events do, as it came; None where it names none."""
        medium = self.content.get("medium")
        return medium if isinstance(medium, str) else None


class Undecodable(Struct, frozen=True, gc=False):
    """An event, or a whole payload, that cannot be read, and why. The bytes are kept."""

    why: str
    raw: Raw


Event = BlockStored | BlockRemoved | AllBlocksCleared | Unrecognized | Undecodable
KnownEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, frozen=True, gc=False):
    """What one message said.

    ``ts`` is the publisher's clock in seconds since 1970. ``data_parallel_rank`` is None where the engine
    does not say it. ``unknown_keys`` counts map keys and array elements that were kept but not understood.
    """

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None
    unknown_keys: int = 0


def counts_from_one(batch: EventBatch | Undecodable) -> bool:
    """Whether this is a Mooncake master's, whose first number is 1, not 0; its events say ``event_type``
    beside vLLM's keys (``kv_event_publisher.cpp``).
    """
    events = batch.events if isinstance(batch, EventBatch) else []
    return any(isinstance(e, BlockStored | BlockRemoved) and "event_type" in (e.extra or ()) for e in events)


def tokens(ids: Sequence[Any] | None) -> Raw:
    """Token ids (ints, pairs, strings; None for nil) as raw msgpack, for ``BlockStored.token_ids``."""
    return Raw(msgspec.msgpack.encode(None if ids is None else list(ids)))


def token_list(raw: Raw) -> list[Any]:
    """What ``BlockStored.token_ids`` holds; nil reads as an empty list. Raises ``msgspec.DecodeError``."""
    ids = msgspec.msgpack.decode(raw)
    return ids if isinstance(ids, list) else []


def token_count(raw: Raw) -> int:
    """How many token ids ``raw`` holds, read from the msgpack header alone (pairs count once)."""
    head = memoryview(raw)
    lead = head[0]
    if 0x90 <= lead <= 0x9F:
        return lead & 0x0F
    if lead == 0xDC:
        return int.from_bytes(head[1:3], "big")
    if lead == 0xDD:
        return int.from_bytes(head[1:5], "big")
    return 0


def canonical_hash(raw: int | bytes) -> int:
    """A block hash of any engine as unsigned 64-bit (vLLM ``maybe_convert_block_hash``; SGLang's are
    signed).

    Raises ``ValueError`` for an integer outside [-2**63, 2**64) and for empty bytes.
    """
    if isinstance(raw, bytes):
        if not raw:
            raise ValueError("a block hash of no bytes")
        return int.from_bytes(raw[-8:], "big")
    if not -(1 << 63) <= raw <= MASK64:
        raise ValueError(f"block hash {raw} does not fit 64 bits")
    return raw & MASK64


def canonical_medium(medium: str | None) -> str:
    """The medium as rules and reports name it: upper case, ``GPU`` where the event has none."""
    return "GPU" if medium is None else medium.upper()
