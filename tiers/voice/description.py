"""What a key stands for: the block hashes, parent and tokens of a chunk, told once and said by every tier.

A tier knows keys and nothing more. Whoever asks for a store knows the rest and describes it here; each tier's
events are then made whole from it. A description is kept while any tier holds the block, and a while longer:
in one drain the primary's removal comes before a store of the same block that waits in a tier behind it
(vLLM #57453). A key names its content, so the first description of it stays. No events, no sockets, no clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kvbus.events import BlockStored, canonical_hash, tokens
from tiers.errors import TierValueError
from tiers.keys import OffloadKey, get_offload_block_hash, get_offload_group_idx, is_offload_key

UNHELD_MAX: Final = 16_384
"""Descriptions of blocks that no tier holds: not stored yet, or gone from everywhere."""
BYTES_MAX: Final = 1 << 30
"""All descriptions: their encoded token ids and extra keys, and 8 bytes a hash."""
NO_TOKENS: Final = tokens(())


class BlockDescription(Struct, frozen=True):
    """A chunk as its scheduler knows it: ``block_hashes`` of its GPU blocks, ``blocks_per_chunk`` of them.

    ``parent_block_hash``: the hash of the block before the chunk, None at the beginning of a request.
    ``token_ids`` of the whole chunk; ``block_size`` in tokens a GPU block. ``extra_keys``: one per hash, as
    they went into it. The KV-cache group is in the key. Fields as in vLLM's ``BlockStored``.
    """

    block_hashes: Sequence[bytes]
    parent_block_hash: bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    lora_name: str | None = None
    extra_keys: Sequence[object] | None = None


class _Kept(Struct, gc=False):  # there are many, and the garbage collector need not walk them
    """``stored``: what all tiers say alike. Bit *t* of ``said``: tier *t* has said it, and not taken it back;
    of ``held``: and will take it back.
    """

    stored: BlockStored
    said: int = 0
    held: int = 0

    @property
    def size(self) -> int:
        stored = self.stored
        return len(stored.token_ids) + len(stored.extra_keys) + 8 * len(stored.block_hashes)


class Descriptions:
    """One engine's descriptions by key, for the tiers that are numbered from 0, the primary.

    Beyond ``unheld_max`` the one longest without use is forgotten, beyond ``bytes_max`` those longest held;
    both are counted. A block without a description is said as a *placeholder* (as in vLLM): the one hash in
    its key, no parent, no tokens, ``block_size`` 0.
    """

    def __init__(self, *, unheld_max: int = UNHELD_MAX, bytes_max: int = BYTES_MAX) -> None:
        if unheld_max < 0 or bytes_max < 0:
            raise TierValueError(
                f"unheld_max {unheld_max}, bytes_max {bytes_max}", next_step="Give 0 or more of each."
            )
        self._unheld_max = unheld_max
        self._bytes_max = bytes_max
        self._unheld: OrderedDict[OffloadKey, _Kept] = OrderedDict()
        self._held: OrderedDict[OffloadKey, _Kept] = OrderedDict()
        self._bytes = 0
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._unheld) + len(self._held)

    def describe(self, key: OffloadKey, description: BlockDescription) -> None:
        """Say what a key stands for, before its store is drained. Raises ``TierValueError`` for no key,
        and for a description without a hash, or one that msgpack cannot carry.
        """
        if not is_offload_key(key):
            raise TierValueError(f"{key!r} is not a key", next_step="Make it with make_offload_key.")
        if key in self._held:
            return
        if key in self._unheld:
            self._unheld.move_to_end(key)
            return
        kept = _Kept(_said_alike(key, description))
        self._unheld[key] = kept
        self._bytes += kept.size
        self._trim()

    def stored(self, keys: Iterable[OffloadKey], *, tier: int, lasting: bool) -> list[BlockStored]:
        """The blocks as any tier says them, and note that this tier now holds them; ``lasting``: until it
        says that it does not. Medium and the like are for the caller to fill in.
        """
        held, bit, said = self._held, 1 << tier, []
        for key in keys:
            kept = held.get(key)
            if kept is None and (kept := self._unheld.get(key)) is not None and lasting:
                held[key] = self._unheld.pop(key)
            if kept is None:
                self._counts["placeholders"] += 1
                said.append(_placeholder(key))
                continue
            kept.said |= bit
            if lasting:
                kept.held |= bit
            said.append(kept.stored)
        return said

    def removed(self, key: OffloadKey, *, tier: int) -> list[int]:
        """The hashes that this tier named when it stored the block, and note that it has it no more."""
        kept = self._held.get(key) or self._unheld.get(key)
        bit = 1 << tier
        if kept is None or not kept.said & bit:
            return [canonical_hash(get_offload_block_hash(key))]
        kept.said &= ~bit
        if kept.held & bit:
            kept.held &= ~bit
            if not kept.held:
                self._unheld[key] = self._held.pop(key)
                self._trim()
        return kept.stored.block_hashes

    def _trim(self) -> None:
        while len(self._unheld) > self._unheld_max:
            self._forget(self._unheld, "unheld")
        while self._bytes > self._bytes_max:
            self._forget(self._held or self._unheld, "bytes")

    def _forget(self, among: OrderedDict[OffloadKey, _Kept], because: str) -> None:
        _, kept = among.popitem(last=False)
        self._bytes -= kept.size
        self._counts[f"forgotten.{because}"] += 1

    def get_stats(self) -> Mapping[str, float]:
        """``placeholders``: blocks stored without a description. ``forgotten``, by the limit that was met.
        Gauges: ``held`` and ``unheld`` descriptions, ``bytes``.
        """
        sizes = {"held": len(self._held), "unheld": len(self._unheld), "bytes": self._bytes}
        return {**self._counts, **sizes}

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert all(kept.held for kept in self._held.values()), "held by nobody"
        assert not any(kept.held for kept in self._unheld.values()), "held, and counted as not"
        assert not self._held.keys() & self._unheld.keys(), "described twice"
        assert len(self._unheld) <= self._unheld_max, "more kept of what nobody holds than allowed"
        kept = [*self._held.values(), *self._unheld.values()]
        assert all(one.held & ~one.said == 0 for one in kept), "held, and never said"
        assert sum(one.size for one in kept) == self._bytes <= self._bytes_max, "bytes miscounted"


def _said_alike(key: OffloadKey, description: BlockDescription) -> BlockStored:
    """The part of a BlockStored that is the same in every tier. Encodes the lists: once, not once a tier."""
    parent, extra = description.parent_block_hash, description.extra_keys
    try:
        hashes = [canonical_hash(block_hash) for block_hash in description.block_hashes]
        if not hashes:
            raise ValueError("it names no block")
        msgspec.msgpack.encode((description.block_size, description.lora_id, description.lora_name))
        stored = BlockStored(
            hashes,
            parent_block_hash=None if parent is None else canonical_hash(parent),
            token_ids=tokens(description.token_ids),
            block_size=description.block_size,
            lora_id=description.lora_id,
            lora_name=description.lora_name,
            extra_keys=Raw(msgspec.msgpack.encode(extra)),
            group_idx=get_offload_group_idx(key),
        )
    except Exception as error:  # what is given is the caller's, and reading it may raise anything
        raise TierValueError(
            f"block {key.hex()} cannot be described: {error}",
            next_step="Give hashes as bytes, and in the lists only what msgpack knows.",
        ) from error
    return stored


def _placeholder(key: OffloadKey) -> BlockStored:
    block_hash = canonical_hash(get_offload_block_hash(key))
    group_idx = get_offload_group_idx(key)
    return BlockStored([block_hash], token_ids=NO_TOKENS, block_size=0, group_idx=group_idx)
