"""Content that tells every block from every other."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import OffloadKey, make_offload_key
from tiers.errors import TierValueError
from tiers.serving.block_content import BlockContent

CPU = torch.device("cpu")
BYTES = 256


def keys(count: int) -> list[OffloadKey]:
    return [make_offload_key(hashlib.sha256(bytes([n])).digest(), n % 2) for n in range(count)]


def memory(count: int, num_bytes: int = BYTES) -> torch.Tensor:
    return torch.zeros((count, num_bytes), dtype=torch.int8)


def test_what_was_written_is_right_and_nothing_else_is() -> None:
    """Slots in any order hold their keys' blocks; another's block, or none, is told."""
    content, blocks = BlockContent(BYTES, device=CPU), memory(8)
    content.write(blocks, [6, 1, 3], keys(3))
    assert content.differing(blocks, [6, 1, 3], keys(3)) == []
    assert content.differing(blocks, [6, 3, 1], keys(3)) == [1, 2]
    assert content.differing(blocks, [0, 6], keys(2)[::-1]) == [0]
    assert not blocks[[0, 2, 4, 5, 7]].any()
    assert content.differing(blocks, [], []) == []


@settings(max_examples=50, deadline=None)
@given(position=st.integers(0, BYTES - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_seen(position: int, bit: int) -> None:
    """Wherever a bit of a block changes, the block is named."""
    content, blocks = BlockContent(BYTES, device=CPU), memory(2)
    content.write(blocks, [0, 1], keys(2))
    blocks.view(torch.uint8)[1, position] ^= 1 << bit
    assert content.differing(blocks, [0, 1], keys(2)) == [1]


def test_groups_are_different_blocks() -> None:
    """The same hash in another KV-cache group has other content: the whole key counts."""
    content, blocks = BlockContent(BYTES, device=CPU), memory(1)
    first, second = (make_offload_key(b"h" * 32, group) for group in (0, 1))
    content.write(blocks, [0], [first])
    assert content.differing(blocks, [0], [second]) == [0]


def test_content_is_the_same_in_every_process() -> None:
    """What one run stored another can compare: nothing in it depends on anything but the key."""
    content, blocks = BlockContent(BYTES, device=CPU), memory(1)
    content.write(blocks, [0], keys(1))
    digest = hashlib.sha256(blocks.numpy().tobytes()).hexdigest()
    assert digest == "69f78ff3278668ebee0df7e2e97875c6108f4e0b3a2115d7975736754315d873"


@pytest.mark.parametrize("num_bytes", [0, 40, 100])
def test_sizes_that_cannot_be(num_bytes: int) -> None:
    """A block has whole words and room behind its key."""
    with pytest.raises(TierValueError, match=f"blocks of {num_bytes} bytes"):
        BlockContent(num_bytes, device=CPU)
