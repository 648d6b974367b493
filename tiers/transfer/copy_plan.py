"""Which GPU block goes with which place inside which CPU slot. Numbers only: no bytes, no tensors.

A slot holds a chunk of ``blocks_per_chunk`` GPU blocks. A run of blocks may begin inside a chunk: then the
first slot's front is skipped. Every id of both sides must find its place, or the caller meant something else
than it said and nothing is planned.

    block_indices[g] = 5, group_sizes[g] = 4, 4 blocks a chunk:   |·|a|b|c|  |d|·|·|·|   (2 slots)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiers.errors import TierValueError
from tiers.specs import BlockIds, CPULoadStoreSpec, GPULoadStoreSpec


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Block ``blocks[i]`` of a KV-cache group belongs with place ``places[i]`` in slot ``slots[i]``."""

    group_idx: int
    blocks: BlockIds
    slots: BlockIds
    places: BlockIds


def plan_copy(
    gpu: GPULoadStoreSpec, cpu: CPULoadStoreSpec, *, blocks_per_chunk: int, num_groups: int
) -> list[GroupPlan]:
    """One plan for each group that has blocks, in the order of groups.

    Raises ``TierValueError`` if ``cpu`` names more or fewer slots than the blocks take, or ``gpu`` other
    groups than there are.
    """
    if len(gpu.group_sizes) != num_groups:
        raise TierValueError(
            f"a transfer of {len(gpu.group_sizes)} groups in a KV cache of {num_groups}",
            next_step="Give each group a size, 0 if it takes no part.",
        )
    skips = [index % blocks_per_chunk for index in gpu.block_indices]
    pairs = list(zip(gpu.group_sizes, skips, strict=True))
    chunks = [-(-(size + skip) // blocks_per_chunk) if size else 0 for size, skip in pairs]
    if sum(chunks) != len(cpu.block_ids):
        raise TierValueError(
            f"{len(cpu.block_ids)} CPU slots where groups of {list(gpu.group_sizes)} blocks take {chunks}",
            next_step=f"Give each group ceil((blocks + skipped) / {blocks_per_chunk}); skipped: {skips}.",
        )
    plans, block_at, slot_at = [], 0, 0
    for group_idx, (size, skip) in enumerate(pairs):
        if size:
            positions = np.arange(skip, skip + size)
            slots = cpu.block_ids[slot_at + positions // blocks_per_chunk]
            blocks = gpu.block_ids[block_at : block_at + size]
            plans.append(GroupPlan(group_idx, blocks, slots, positions % blocks_per_chunk))
        block_at, slot_at = block_at + size, slot_at + chunks[group_idx]
    return plans
