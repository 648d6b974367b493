"""What a full block of tokens is called: a chained hash, so that equal names mean equal whole prefixes.

vLLM's scheme, bit for bit (``hash_block_tokens`` with its default ``sha256``): SHA-256 over the pickle,
protocol 5, of (hash of the block before, tuple of token ids, extra keys or None). Before the first block
stands ``NONE_HASH``, made from vLLM's own seed, so two runs agree, and agree with a vLLM ≥ 0.32 whose
``PYTHONHASHSEED`` is not set. A block that is not full has no name. Which extra keys a block has is the
caller's business.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from operator import index
from typing import Final

from tiers.errors import TierValueError

ExtraKeys = tuple[object, ...]
"""What else a block's content depends on: strings, bytes, numbers, None, and tuples of these. vLLM: a LoRA
adapter, ``(image, offset)`` pairs, ``("cache_salt", salt)`` on the first block, a digest of embeddings."""

NONE_HASH_SEED: Final = "vllm-none-hash"
PICKLE_PROTOCOL: Final = 5  # vLLM's HIGHEST_PROTOCOL, pinned: another Python must not rename every block


def none_hash(seed: str = NONE_HASH_SEED) -> bytes:
    """The 32 bytes that stand before a first block; ``seed`` is what vLLM takes from ``PYTHONHASHSEED``.

    To hash under another seed, give this as ``parent`` of the first block.
    """
    return hashlib.sha256(pickle.dumps(seed, protocol=PICKLE_PROTOCOL)).digest()


NONE_HASH: Final = none_hash()


def hash_block(
    parent: bytes | None, token_ids: Sequence[int], *, extra_keys: ExtraKeys | None = None
) -> bytes:
    """The 32 bytes that name a full block; ``parent`` is the hash of the block before, None for the first.

    Depends on values alone: not on the type of the integers, nor on which objects hold equal strings.
    Raises ``TypeError`` for token ids that are no integers.
    """
    keys = None if extra_keys is None else _plain(extra_keys, {})
    named = (parent or NONE_HASH, tuple(map(index, token_ids)), keys)
    return hashlib.sha256(pickle.dumps(named, protocol=PICKLE_PROTOCOL)).digest()


def _plain(keys: ExtraKeys, seen: dict[str | bytes, str | bytes]) -> ExtraKeys:
    """The same keys with each distinct string as one object and each tuple as its own.

    Pickle writes an object that it has met before as a reference, so without this the hash would tell one
    string used twice from two equal ones.
    """
    return tuple(
        _plain(key, seen)
        if isinstance(key, tuple)
        else seen.setdefault(key, key)
        if isinstance(key, str | bytes)
        else key
        for key in keys
    )


def hash_blocks(
    token_ids: Sequence[int],
    block_size: int,
    *,
    parent: bytes | None = None,
    extra_keys: Sequence[ExtraKeys | None] | None = None,
) -> list[bytes]:
    """The hashes of the full blocks of ``block_size`` tokens, in order; tokens left over have none.

    ``parent`` is the hash before the first of them; ``extra_keys`` has one entry a full block. Raises
    ``TierValueError`` for a block size below 1, and for extra keys that are not one a full block.
    """
    if block_size < 1:
        raise TierValueError(f"a block of {block_size} tokens", next_step="Give 1 or more tokens a block.")
    full = len(token_ids) // block_size
    if extra_keys is not None and len(extra_keys) != full:
        raise TierValueError(
            f"{len(extra_keys)} extra keys for {full} full blocks",
            next_step="Give one entry a full block, None where it has no extra keys.",
        )
    hashes: list[bytes] = []
    for n in range(full):
        block = token_ids[n * block_size : (n + 1) * block_size]
        parent = hash_block(parent, block, extra_keys=None if extra_keys is None else extra_keys[n])
        hashes.append(parent)
    return hashes
