"""What a run of an engine came to, tier by tier: counts that add up. Values only.

A block reference is a hit in the tier that supplied it, the GPU first, or a miss: hits and misses together
are all block references.
"""

from __future__ import annotations

from msgspec import Struct


class TierTally(Struct, frozen=True):
    """One tier. ``tier`` is its name, ``medium`` what its blocks lie on. ``stores``: blocks that became
    readable there; ``evictions``: blocks that left to make room. ``bytes_stored`` were written into it,
    ``bytes_loaded`` read out of it for a tier above. ``events`` it has published.
    """

    tier: str
    medium: str
    hits: int = 0
    stores: int = 0
    evictions: int = 0
    bytes_stored: int = 0
    bytes_loaded: int = 0
    events: int = 0


class Tally(Struct, frozen=True):
    """A whole run, or as much of it as there was time for."""

    requests: int
    block_refs: int
    misses: int
    mismatches: int
    tiers: list[TierTally]

    @property
    def hits(self) -> int:
        return sum(tier.hits for tier in self.tiers)
