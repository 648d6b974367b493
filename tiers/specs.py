"""Where the blocks of a transfer lie: which slots, on which side. No bytes and no tensors.

Bookkeeping hands these to a worker, which owns the memory. ``block_ids`` is always a one-dimensional int64
array, whatever sequence of integers it was made from. What is no whole number is refused: a slot rounded
silently is another block's.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiers.errors import TierContractError, TierValueError
from tiers.keys import OffloadKey

BlockIds = NDArray[np.int64]
SMALLEST: Final = int(np.iinfo(np.int64).min)
LARGEST: Final = int(np.iinfo(np.int64).max)


class LoadStoreSpec:
    """One side of a transfer. A worker knows the kinds it can carry by their class."""


class BlockIDsLoadStoreSpec(LoadStoreSpec):
    """Blocks named by their slots, in the order of the keys they belong to.

    Raises ``TierValueError`` (a ``ValueError``) for anything but whole numbers in one dimension. Which slots
    there are, the worker knows.
    """

    def __init__(self, block_ids: Sequence[int] | BlockIds) -> None:
        self.block_ids = whole_numbers("block_ids", block_ids)

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
        sizes: list[int] = whole_numbers("group_sizes", group_sizes, at_least=0).tolist()
        indices: list[int] = whole_numbers("block_indices", block_indices, at_least=0).tolist()
        if sum(sizes) != len(self.block_ids):
            raise TierValueError(
                f"group_sizes {sizes} sum to {sum(sizes)}, but there are {len(self.block_ids)} block_ids",
                next_step="Give each block to exactly one group.",
            )
        if len(indices) != len(sizes):
            raise TierValueError(
                f"{len(indices)} block_indices for {len(sizes)} groups",
                next_step="Give each group the index of its first block, 0 if it is empty.",
            )
        self.group_sizes = tuple(sizes)
        self.block_indices = tuple(indices)

    def __repr__(self) -> str:
        return f"GPULoadStoreSpec({self.block_ids.tolist()}, {self.group_sizes}, {self.block_indices})"


def whole_numbers(name: str, values: Sequence[int] | BlockIds, *, at_least: int = SMALLEST) -> BlockIds:
    """A copy of ``values``. Raises ``TierValueError`` unless they are whole numbers in one dimension."""
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.empty((0, 0))
    is_list = found.ndim == 1 and (not found.size or found.dtype.kind in "iu")
    if not is_list or (found.size and not at_least <= int(found.min()) <= int(found.max()) <= LARGEST):
        raise TierValueError(
            f"{name} {reprlib.repr(values)}", next_step="Give a list of whole numbers; counts from 0 up."
        )
    return found.astype(np.int64)


@dataclass
class PrepareStoreOutput:
    """What a store may begin with. ``keys_to_store[i]`` goes to slot ``store_spec.block_ids[i]``.

    ``evicted_keys`` lost their slots for it, in the order of eviction; they may not be read any more.
    """

    keys_to_store: list[OffloadKey]
    store_spec: LoadStoreSpec
    evicted_keys: list[OffloadKey]


def block_ids(spec: LoadStoreSpec) -> BlockIds:
    """The primary's slots. ``TierContractError`` if the primary is no CPU tier."""
    if not isinstance(spec, CPULoadStoreSpec):
        raise TierContractError(
            f"the primary tier gave {spec!r}", next_step="A primary tier gives CPULoadStoreSpec."
        )
    return spec.block_ids
