"""A request as an engine sees it: the chain of its blocks, by hash and by key.

A trace names blocks by numbers and carries no tokens; so tokens are made up, from the number alone, and
hashed as an engine hashes them: a block's hash stands for everything before it too. Every block counts as
full, also the last of a prompt, which in a trace may be partial: hit shares published of traces count every
reference. An engine that caches full blocks alone would not look that one up. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tiers.gpu.block_hash import hash_block
from tiers.keys import OffloadKey, make_offload_key
from tiers.serving.trace import Request, tokens_of

HASHES_REMEMBERED: Final = 1 << 20
"""Blocks whose hash is not worked out again when a later request begins like an earlier one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """``hashes[i]`` and ``keys[i]`` name block i and all before it; ``block_ids[i]`` is its number in the
    trace. ``arrival_s``: seconds, on the trace's clock. ``block_size``: tokens a block.
    """

    req_id: str
    arrival_s: float
    block_size: int
    block_ids: tuple[int, ...]
    hashes: list[bytes]
    keys: list[OffloadKey]

    def __len__(self) -> int:
        """Blocks."""
        return len(self.keys)

    def tokens(self, blocks: range) -> list[list[int]]:
        """The token ids of these blocks, a list for each."""
        return [tokens_of(self.block_ids[position], self.block_size) for position in blocks]


def prompts(requests: Iterable[Request], block_size: int) -> Iterator[Prompt]:
    """Requests in their order, with blocks of ``block_size`` tokens in one KV-cache group."""

    @lru_cache(maxsize=HASHES_REMEMBERED)
    def named(parent: bytes | None, block_id: int) -> tuple[bytes, OffloadKey]:
        block_hash = hash_block(parent, tokens_of(block_id, block_size))
        return block_hash, make_offload_key(block_hash, 0)

    for number, request in enumerate(requests):
        hashes: list[bytes] = []
        keys: list[OffloadKey] = []
        parent = None
        for block_id in request.block_ids:
            parent, key = named(parent, block_id)
            hashes.append(parent)
            keys.append(key)
        yield Prompt(f"request-{number}", request.timestamp_s, block_size, request.block_ids, hashes, keys)
