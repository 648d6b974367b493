"""How one slot of the CPU tier is laid out: the chunk of every KV-cache tensor, side by side. Pure.

    row    | tensor 0: page, page, … | tensor 1: page, page, … | … | padding |
             blocks_per_chunk pages                                 to 4096 bytes

A slot begins at a multiple of 4096 bytes, so that a tier behind the CPU can read and write it with O_DIRECT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiers.errors import TierValueError

ROW_ALIGNMENT: Final = 4096


@dataclass(frozen=True)
class RowLayout:
    """``page_sizes``: bytes a GPU block takes in each tensor, padding included. ``blocks_per_chunk``: GPU
    blocks that a slot holds. Raises ``TierValueError`` for sizes below 1.
    """

    page_sizes: tuple[int, ...]
    blocks_per_chunk: int = 1

    def __post_init__(self) -> None:
        if min(self.page_sizes, default=0) < 1 or self.blocks_per_chunk < 1:
            raise TierValueError(
                f"pages of {list(self.page_sizes)} bytes, {self.blocks_per_chunk} blocks a chunk",
                next_step="Give 1 or more of each.",
            )

    def chunk_offset(self, tensor_idx: int) -> int:
        """Bytes from the beginning of a row to the chunk of this tensor."""
        return sum(self.page_sizes[:tensor_idx]) * self.blocks_per_chunk

    @property
    def row_bytes(self) -> int:
        """Bytes from one slot to the next."""
        used = self.chunk_offset(len(self.page_sizes))
        return -(-used // ROW_ALIGNMENT) * ROW_ALIGNMENT
