"""Where the blocks of a transfer lie: which slots, on which side. No bytes and no tensors.

Bookkeeping hands these to a worker, which owns the memory. ``block_ids`` is always a one-dimensional int64
array, whatever sequence of integers it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiers.errors import TierValueError
from tiers.keys import OffloadKey

BlockIds = NDArray[np.int64]


class LoadStoreSpec:
    """One side of a transfer. A worker knows the kinds it can carry by their class."""


class BlockIDsLoadStoreSpec(LoadStoreSpec):
    """Blocks named by their slots, in the order of the keys they belong to."""

    def __init__(self, block_ids: Sequence[int] | BlockIds) -> None:
        self.block_ids: BlockIds = np.array(block_ids, dtype=np.int64)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids.tolist()})"


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Slots of the CPU tier; each holds one offloaded chunk."""


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """GPU blocks, ordered by KV-cache group.

    ``group_sizes[g]``: how many of ``block_ids`` belong to group g. ``block_indices[g]``: the index, within
    the request, of that group's first block; it matters when an offloaded chunk is several GPU blocks and
    the run begins inside a chunk. Raises ``TierValueError`` (a ``ValueError``) if these do not agree.
    """

    def __init__(
        self,
        block_ids: Sequence[int] | BlockIds,
        group_sizes: Sequence[int],
        block_indices: Sequence[int],
    ) -> None:
        super().__init__(block_ids)
        if min(group_sizes, default=0) < 0 or min(block_indices, default=0) < 0:
            raise TierValueError(
                f"negative among group_sizes {list(group_sizes)} or block_indices {list(block_indices)}",
                next_step="Both count blocks: give numbers from 0 up.",
            )
        if sum(group_sizes) != len(self.block_ids):
            raise TierValueError(
                f"group_sizes {list(group_sizes)} sum to {sum(group_sizes)}, "
                f"but there are {len(self.block_ids)} block_ids",
                next_step="Give each block to exactly one group.",
            )
        if len(block_indices) != len(group_sizes):
            raise TierValueError(
                f"{len(block_indices)} block_indices for {len(group_sizes)} groups",
                next_step="Give each group the index of its first block, 0 if it is empty.",
            )
        self.group_sizes = tuple(group_sizes)
        self.block_indices = tuple(block_indices)

    def __repr__(self) -> str:
        return f"GPULoadStoreSpec({self.block_ids.tolist()}, {self.group_sizes}, {self.block_indices})"


@dataclass
class PrepareStoreOutput:
    """What a store may begin with. ``keys_to_store[i]`` goes to slot ``store_spec.block_ids[i]``.

    ``evicted_keys`` lost their slots for it, in the order of eviction; they may not be read any more.
    """

    keys_to_store: list[OffloadKey]
    store_spec: LoadStoreSpec
    evicted_keys: list[OffloadKey]
