"""What a run of an engine came to, in all and tier by tier: counts that add up. Values only.

A block reference is a hit in the tier that supplied it, the GPU first, or a miss: hits and misses together
are all block references.
"""

from __future__ import annotations

from msgspec import Struct, field


class Totals(Struct, frozen=True):
    """A whole run, or as much of it as there was time for."""

    requests: int = 0
    block_refs: int = 0
    misses: int = 0
    mismatches: int = 0

    @property
    def all_hits(self) -> int:
        """Of every tier together."""
        return self.block_refs - self.misses

    @property
    def hit_rate(self) -> float:
        """Of all block references; 0 where there are none."""
        return self.all_hits / self.block_refs if self.block_refs else 0.0


class TierTally(Struct, frozen=True):
    """One tier. ``tier`` is its name, ``medium`` what its blocks lie on. ``stores``: blocks that became
    readable there, also those that it found there; ``evictions``: blocks that left to make room.
    ``bytes_stored`` were written into it, ``bytes_loaded`` read out of it for a tier above: of its blocks,
    without what pads them. ``events`` it has published.
    """

    tier: str
    medium: str
    hits: int = 0
    stores: int = 0
    evictions: int = 0
    bytes_stored: int = 0
    bytes_loaded: int = 0
    events: int = 0


class Tally(Totals, frozen=True):
    """All of it, with its tiers in order."""

    tiers: list[TierTally] = field(default_factory=list)
