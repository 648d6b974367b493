"""What one request to an engine came to. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from tiers.keys import OffloadKey


@dataclass(frozen=True, slots=True)
class Served:
    """What one request came to. ``hits[t]``: blocks that tier t supplied: 0 the GPU, 1 the CPU, then the
    tiers behind it in order; every other block is a miss. ``mismatches``: blocks that were not, when they
    came up, what had been stored.
    """

    blocks: int
    hits: tuple[int, ...]
    mismatches: tuple[OffloadKey, ...] = ()

    @property
    def misses(self) -> int:
        return self.blocks - sum(self.hits)
