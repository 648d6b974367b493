"""Which GPU block goes with which place in which slot."""

from __future__ import annotations

import pytest

from tiers import CPULoadStoreSpec, GPULoadStoreSpec, TierValueError
from tiers.transfer.copy_plan import plan_copy


def places(gpu: GPULoadStoreSpec, slots: list[int], *, chunk: int) -> list[tuple[int, int, int, int]]:
    """(group, GPU block, slot, place), in order."""
    plans = plan_copy(gpu, CPULoadStoreSpec(slots), blocks_per_chunk=chunk, num_groups=len(gpu.group_sizes))
    return [
        (plan.group_idx, *triple)
        for plan in plans
        for triple in zip(plan.blocks.tolist(), plan.slots.tolist(), plan.places.tolist(), strict=True)
    ]


def test_a_run_that_begins_inside_a_chunk() -> None:
    """The first slot's front is skipped, and the run goes on at the front of the next slot."""
    gpu = GPULoadStoreSpec([70, 71, 3, 4], [4], [5])
    assert places(gpu, [9, 2], chunk=4) == [(0, 70, 9, 1), (0, 71, 9, 2), (0, 3, 9, 3), (0, 4, 2, 0)]


def test_groups_take_their_slots_one_after_the_other() -> None:
    """Each group begins a slot of its own; an empty one takes none, wherever it would begin."""
    gpu = GPULoadStoreSpec([5, 6, 7], [1, 0, 2], [0, 3, 1])
    assert places(gpu, [0, 1, 2], chunk=2) == [(0, 5, 0, 0), (2, 6, 1, 1), (2, 7, 2, 0)]


@pytest.mark.parametrize("slots", [[0], [0, 1, 2]])
def test_every_slot_must_find_its_blocks(slots: list[int]) -> None:
    """Too few and too many slots are refused: which blocks they were for cannot be guessed."""
    with pytest.raises(TierValueError, match=r"take \[2\]"):
        places(GPULoadStoreSpec([1, 2, 3], [3], [0]), slots, chunk=2)


def test_groups_must_be_those_of_the_cache() -> None:
    """A transfer that counts other groups than the KV cache has is refused."""
    with pytest.raises(TierValueError, match="1 groups in a KV cache of 2"):
        plan_copy(GPULoadStoreSpec([], [0], [0]), CPULoadStoreSpec([]), blocks_per_chunk=1, num_groups=2)
