"""What names a block outside the GPU: its hash and its KV-cache group, as one string of bytes.

``block_hash || group_idx``, the group as 4 bytes, big-endian, unsigned (vLLM ``v1/kv_offload``). Bytes
rather than pairs: a million pairs are a million objects for the garbage collector to walk.
"""

from __future__ import annotations

from typing import Final, NewType, TypeGuard

OffloadKey = NewType("OffloadKey", bytes)

GROUP_BYTES: Final = 4


def is_offload_key(key: object) -> TypeGuard[OffloadKey]:
    """Whether this is a block hash, of at least a byte, and a group."""
    return isinstance(key, bytes) and len(key) > GROUP_BYTES


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """The key of a block. Raises ``OverflowError`` unless 0 ≤ ``group_idx`` < 2**32."""
    return OffloadKey(block_hash + group_idx.to_bytes(GROUP_BYTES, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """The block hash in a key, whatever its length."""
    return key[:-GROUP_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    """The KV-cache group in a key."""
    return int.from_bytes(key[-GROUP_BYTES:], "big")
