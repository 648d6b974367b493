"""The form of a KV cache that transfers understand."""

from __future__ import annotations

import pytest
import torch

from tiers import TierValueError
from tiers.transfer.kv_caches import CacheRef, CanonicalKVCaches, allocate_kv_caches


def test_allocated_for_a_layout() -> None:
    """One zeroed tensor a page size; without groups named, one group has its blocks in all of them."""
    caches = allocate_kv_caches(3, [8, 5])
    assert [(tuple(t.shape), t.dtype, int(t.count_nonzero())) for t in caches.tensors] == [
        ((3, 8), torch.int8, 0),
        ((3, 5), torch.int8, 0),
    ]
    assert caches.group_refs == [[CacheRef(0, 8), CacheRef(1, 5)]]
    assert (caches.num_blocks, caches.page_sizes, caches.device.type) == (3, (8, 5), "cpu")


@pytest.mark.parametrize(("num_blocks", "page_sizes"), [(0, [8]), (3, []), (3, [8, 0])])
def test_sizes_that_cannot_be(num_blocks: int, page_sizes: list[int]) -> None:
    """No blocks, no tensors and empty pages are refused."""
    with pytest.raises(TierValueError):
        allocate_kv_caches(num_blocks, page_sizes)


@pytest.mark.parametrize("ref", [CacheRef(1, 4), CacheRef(-1, 4), CacheRef(0, 9), CacheRef(0, 0)])
def test_refs_point_into_the_tensors(ref: CacheRef) -> None:
    """A group cannot refer to a tensor that is not there, nor to more bytes than a page has."""
    with pytest.raises(TierValueError, match="group 0"):
        allocate_kv_caches(3, [8], group_refs=[[ref]])


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.zeros((3, 8))],
        [torch.zeros((8, 3), dtype=torch.int8).T],
        [torch.zeros(8, dtype=torch.int8)],
        [torch.zeros((3, 0), dtype=torch.int8)],
        [torch.zeros((3, 8), dtype=torch.int8), torch.zeros((4, 8), dtype=torch.int8)],
    ],
)
def test_tensors_are_pages_of_bytes(tensors: list[torch.Tensor]) -> None:
    """Other types, other shapes, gaps between pages, and tensors of different lengths are refused."""
    with pytest.raises(TierValueError):
        CanonicalKVCaches(tensors, [])
