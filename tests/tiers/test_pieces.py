"""Where the blocks of a plan lie, as pieces to copy, and how these are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.slow_copy import Setup, setups
from tiers import CPULoadStoreSpec, GPULoadStoreSpec
from tiers.transfer.block_copies import BlockCopies, join
from tiers.transfer.copy_plan import plan_copy
from tiers.transfer.kv_caches import CacheRef
from tiers.transfer.pieces import LONGEST, RefPieces, piece_length


def cut(setup: Setup) -> BlockCopies:
    kv_caches, memory = setup.allocate()
    refs = [[RefPieces(ref, kv_caches, memory) for ref in refs] for refs in kv_caches.group_refs]
    plans = plan_copy(
        setup.gpu, setup.cpu, blocks_per_chunk=setup.blocks_per_chunk, num_groups=len(setup.group_refs)
    )
    copies = join(ref.cut(plan) for plan in plans for ref in refs[plan.group_idx])
    memory.close()
    return copies


@given(setups(), st.integers(1, 5))
def test_sizes_are_said_as_they_are(setup: Setup, count: int) -> None:
    """Sources, destinations and stated sizes agree, and so they do in every part."""
    copies = cut(setup)
    parts = copies.parts(count)
    for part in (copies, *parts):
        sizes = part.sizes.tolist()
        assert [piece.nbytes for piece in part.sources] == sizes
        assert [piece.nbytes for piece in part.destinations] == sizes
    assert [id(piece) for part in parts for piece in part.sources] == list(map(id, copies.sources))
    assert len(parts) == count


def test_parts_are_of_about_as_many_bytes() -> None:
    """Ten blocks in four parts are two or three each."""
    refs = [[CacheRef(0, 64)]]
    gpu = GPULoadStoreSpec(list(range(0, 20, 2)), [10], [0])
    copies = cut(Setup((64,), refs, 1, 20, 10, gpu, CPULoadStoreSpec(list(range(10)))))
    assert [len(part.sources) for part in copies.parts(4)] == [2, 3, 2, 3]


@pytest.mark.parametrize(
    ("blocks", "slots", "pieces"),
    [([1, 2, 3], [5, 6, 7], [3]), ([1, 2, 3], [5, 6, 0], [1, 2]), ([3, 2, 1], [2, 1, 0], [1, 1, 1])],
)
def test_neighbours_are_one_piece(blocks: list[int], slots: list[int], pieces: list[int]) -> None:
    """Blocks that follow each other on both sides are copied as one."""
    refs = [[CacheRef(0, 4096)]]
    gpu, cpu = GPULoadStoreSpec(blocks, [3], [0]), CPULoadStoreSpec(slots)
    assert (cut(Setup((4096,), refs, 1, 8, 8, gpu, cpu)).sizes // 4096).tolist() == pieces


@pytest.mark.parametrize(
    ("block", "length"),
    [(1, 1), (LONGEST, LONGEST), (4 * LONGEST, LONGEST), (LONGEST + 2, LONGEST // 2 + 1), (65_537, 65_537)],
)
def test_a_block_is_cut_into_few_equal_pieces(block: int, length: int) -> None:
    """Pieces stay under torch's grain size; a block that no small number divides stays whole."""
    assert piece_length(block) == length
