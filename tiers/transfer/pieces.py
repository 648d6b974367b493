"""Where the blocks of a plan lie, as views of both memories, ready to be copied.

Views of single blocks are kept once made: making one costs as much as copying 16 KiB. Blocks that follow each
other on both sides become one piece. Elements are as wide as the pages allow: torch splits a copy over its
own threads by the count of elements, and for one block that costs more than it gains.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch

from tiers.row_layout import ROW_ALIGNMENT
from tiers.specs import BlockIds
from tiers.transfer.block_copies import BlockCopies
from tiers.transfer.copy_plan import GroupPlan
from tiers.transfer.host_memory import HostMemory
from tiers.transfer.kv_caches import CacheRef, CanonicalKVCaches

WIDTHS: Final = {
    16: torch.complex128,
    8: torch.int64,
    4: torch.int32,
    2: torch.int16,
    1: torch.int8,
}
"""Bytes an element → what to call it. Copies move bits; nobody computes with them."""

WIDEST: Final = max(WIDTHS)

LONGEST: Final = 32_768
"""Elements up to which torch leaves a copy on the CPU thread that asked for it (its ``GRAIN_SIZE``)."""


class Pieces(dict[int, torch.Tensor]):
    """Views of one flat tensor, ``length`` elements each, by the element they begin at; kept once made.

    At most as many as there are blocks, times the pieces of a block; about 400 bytes each.
    """

    def __init__(self, flat: torch.Tensor, length: int) -> None:
        super().__init__()
        self.flat = flat
        self.length = length

    def __missing__(self, start: int) -> torch.Tensor:
        view = self[start] = self.flat[start : start + self.length]
        return view

    def cut(self, starts: BlockIds, run_starts: BlockIds, run_lengths: BlockIds) -> list[torch.Tensor]:
        """The pieces that begin at ``starts``, then runs of their own lengths; all in elements."""
        pieces = list(map(self.__getitem__, starts.tolist()))
        for start, length in zip(run_starts.tolist(), run_lengths.tolist(), strict=True):
            pieces.append(self.flat[start : start + length])
        return pieces


class RefPieces:
    """The pages of one group in one tensor, and the places in the CPU tier's slots that belong to them."""

    def __init__(self, ref: CacheRef, kv_caches: CanonicalKVCaches, host_memory: HostMemory) -> None:
        layout = host_memory.layout
        page, offset = layout.page_sizes[ref.tensor_idx], layout.chunk_offset(ref.tensor_idx)
        width = math.gcd(WIDEST, page, ref.page_bytes, offset, ROW_ALIGNMENT)
        self._width = width
        self._page, self._offset, self._row = page // width, offset // width, layout.row_bytes // width
        self._block = ref.page_bytes // width
        # To CUDA each piece is a call of its own, and the larger the better.
        piece = self._block if kv_caches.device.type == "cuda" else piece_length(self._block)
        self._within = np.arange(0, self._block, piece)
        self._gpu, self._cpu = (
            Pieces(tensor.view(-1).view(WIDTHS[width]), piece)
            for tensor in (kv_caches.tensors[ref.tensor_idx], host_memory.tensor)
        )

    def cut(self, plan: GroupPlan) -> BlockCopies:
        """The planned copies, from the GPU's blocks to the CPU tier; in no particular order."""
        gpu = plan.blocks * self._page
        cpu = plan.slots * self._row + self._offset + plan.places * self._page
        first = firsts(gpu, cpu, self._block)
        lengths = np.diff(first, append=len(gpu)) * self._block
        alone = lengths == self._block
        run_lengths = lengths[~alone]
        sources, destinations = (
            pieces.cut(
                (starts[first[alone], None] + self._within).ravel(), starts[first[~alone]], run_lengths
            )
            for pieces, starts in ((self._gpu, gpu), (self._cpu, cpu))
        )
        sizes = np.full(len(sources), self._gpu.length)
        sizes[len(sources) - len(run_lengths) :] = run_lengths
        return BlockCopies(sources, destinations, sizes * self._width)


def piece_length(block: int) -> int:
    """Elements of the equal pieces that a block is copied in: all of it, or the most that stay under
    ``LONGEST``. A block that cannot be divided into few equal pieces stays whole, which is only slower.
    """
    fewest = -(-block // LONGEST)
    return next((block // count for count in range(fewest, 2 * fewest) if block % count == 0), block)


def firsts(gpu: BlockIds, cpu: BlockIds, block: int) -> BlockIds:
    """The positions of blocks that do not just continue the one before them on both sides, ascending."""
    goes_on = (np.diff(gpu) == block) & (np.diff(cpu) == block)
    return np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
