"""The KV cache that an engine computes in, in the one form that transfers understand: pages of bytes.

A list of int8 tensors, one row a GPU block, and for each KV-cache group which tensors its blocks lie in. What
a page means (layers, heads, data types) is the engine's business; so is who holds which block: ``gpu.pool``
keeps those books. The tensors are on CUDA or, for machines without, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tiers.errors import TierValueError


@dataclass(frozen=True, slots=True)
class CacheRef:
    """A group's blocks lie in ``tensors[tensor_idx]``; of each row the first ``page_bytes`` bytes count."""

    tensor_idx: int
    page_bytes: int


@dataclass(frozen=True)
class CanonicalKVCaches:
    """``tensors[i]``: int8, contiguous, shape (num_blocks, bytes a page with its padding), all on one device.

    ``group_refs[g]``: where the blocks of KV-cache group g lie; a block has a page in each of them. Raises
    ``TierValueError`` if these do not fit together.
    """

    tensors: list[torch.Tensor]
    group_refs: list[list[CacheRef]]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise TierValueError("a KV cache without tensors", next_step="Give one a layer group.")
        for idx, tensor in enumerate(self.tensors):
            self._check_tensor(idx, tensor)
        for group, refs in enumerate(self.group_refs):
            for ref in refs:
                self._check_ref(group, ref)

    def _check_tensor(self, idx: int, tensor: torch.Tensor) -> None:
        whole = tensor.dtype is torch.int8 and tensor.dim() == 2 and tensor.is_contiguous()
        if not whole or not tensor.numel():
            raise TierValueError(
                f"tensor {idx} of a KV cache is {tensor.dtype} of shape {tuple(tensor.shape)}",
                next_step="View it as int8, contiguous, shape (num_blocks, bytes a page), not empty.",
            )
        if tensor.device != self.device or len(tensor) != self.num_blocks:
            raise TierValueError(
                f"tensor {idx} has {len(tensor)} blocks on {tensor.device}, "
                f"tensor 0 has {self.num_blocks} on {self.device}",
                next_step="Give all of them the same blocks on the same device.",
            )

    def _check_ref(self, group: int, ref: CacheRef) -> None:
        if not 0 <= ref.tensor_idx < len(self.tensors):
            raise TierValueError(
                f"group {group} refers to tensor {ref.tensor_idx} of {len(self.tensors)}",
                next_step="Number the tensors from 0.",
            )
        if not 0 < ref.page_bytes <= self.page_sizes[ref.tensor_idx]:
            raise TierValueError(
                f"group {group} has pages of {ref.page_bytes} bytes in tensor {ref.tensor_idx}, "
                f"whose rows have {self.page_sizes[ref.tensor_idx]}",
                next_step="Give the unpadded bytes of a page: 1 up to the bytes of a row.",
            )

    @property
    def num_blocks(self) -> int:
        return len(self.tensors[0])

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """Bytes a block takes in each tensor, padding included."""
        return tuple(tensor.shape[1] for tensor in self.tensors)


def allocate_kv_caches(
    num_blocks: int,
    page_sizes: Sequence[int],
    *,
    group_refs: Sequence[Sequence[CacheRef]] | None = None,
    device: torch.device | str = "cpu",
) -> CanonicalKVCaches:
    """Zeroed tensors of ``num_blocks`` rows, one a page size (bytes). Without ``group_refs`` there is one
    group, whose blocks lie in all of them and fill their pages. Raises ``TierValueError`` for sizes below 1.
    """
    if num_blocks < 1 or min(page_sizes, default=0) < 1:
        raise TierValueError(
            f"{num_blocks} blocks with pages of {list(page_sizes)} bytes", next_step="Give 1 or more of each."
        )
    tensors = [torch.zeros((num_blocks, size), dtype=torch.int8, device=device) for size in page_sizes]
    if group_refs is None:
        group_refs = [[CacheRef(idx, size) for idx, size in enumerate(page_sizes)]]
    return CanonicalKVCaches(tensors, [list(refs) for refs in group_refs])
