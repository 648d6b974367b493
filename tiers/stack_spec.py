"""What an engine is to be made of: sizes, policy, memory, and the tiers behind. Values only, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

GPU: Final = "gpu"
CPU: Final = "cpu"
DEVICES: Final = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A tier behind the CPU: what it is called, its type for ``SecondaryTierFactory``, and its options."""

    name: str
    type: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """Everything about an engine: sizes in blocks, ``block_bytes`` and ``block_tokens`` of each, the CPU
    tier's cache policy, where the blocks lie (``auto``, ``cpu``, ``cuda``), and the tiers behind, in order.
    """

    gpu_blocks: int
    cpu_blocks: int
    policy: str = "lru"
    behind: tuple[TierSpec, ...] = ()
    block_bytes: int = 65_536
    block_tokens: int = 16
    device: str = "auto"

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers as they publish, and as hits are counted."""
        return (GPU, CPU, *(tier.name for tier in self.behind))
