"""What an engine is to be made of: sizes, policy, memory, and the tiers behind. Values only, no torch.

A run makes tiers of it, a what-if books of the same sizes; both read it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final, Self

from tiers.row_layout import RowLayout

GPU_NAME: Final = "gpu"
CPU_NAME: Final = "cpu"
"""As these tiers publish, and as their hits are counted; what they lie on is their ``Medium``."""

DEVICES: Final = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A tier behind the CPU: what it is called, its type for ``SecondaryTierFactory``, and its options."""

    name: str
    type: str
    options: Mapping[str, object] = field(default_factory=dict)

    def most_blocks(self, block_bytes: int) -> int | None:
        """How many blocks of ``block_bytes`` its options leave room for, None: no bound. A tier keeps rows,
        which are blocks padded to a page.
        """
        bounds = []
        if isinstance(most := self.options.get("max_blocks"), int):
            bounds.append(most)
        if isinstance(most := self.options.get("max_bytes"), int):
            bounds.append(most // RowLayout((block_bytes,)).row_bytes)
        return min(bounds, default=None)

    def bounded(self, max_blocks: int) -> Self:
        """The same tier with room for so many blocks, whatever bound it had."""
        options = {name: value for name, value in self.options.items() if name != "max_bytes"}
        return replace(self, options={**options, "max_blocks": max_blocks})


@dataclass(frozen=True, slots=True)
class StackSpec:
    """Everything about an engine: sizes in blocks, the CPU tier's cache policy, the tiers behind, in order;
    ``block_bytes`` and ``block_tokens`` of each block, and where blocks lie (``auto``, ``cpu``, ``cuda``).
    """

    gpu_blocks: int
    cpu_blocks: int
    _: KW_ONLY
    policy: str = "lru"
    behind: tuple[TierSpec, ...] = ()
    block_bytes: int = 65_536
    block_tokens: int = 16
    device: str = "auto"

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers as they publish, and in the order in which hits are counted."""
        return (GPU_NAME, CPU_NAME, *(tier.name for tier in self.behind))
