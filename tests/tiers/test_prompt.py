"""Requests as chains of blocks."""

from __future__ import annotations

from tests.tiers.small_engine import asked
from tiers import get_offload_block_hash, get_offload_group_idx
from tiers.gpu.block_hash import hash_blocks
from tiers.serving.trace import tokens_of


def test_blocks_are_named_as_an_engine_names_them() -> None:
    """A prompt's hashes are those of its made-up tokens, chained; its keys are these in group 0."""
    (prompt,) = asked((5, 6, 7))
    tokens = [token for block_id in (5, 6, 7) for token in tokens_of(block_id, 4)]
    assert prompt.hashes == hash_blocks(tokens, 4)
    assert [get_offload_block_hash(key) for key in prompt.keys] == prompt.hashes
    assert {get_offload_group_idx(key) for key in prompt.keys} == {0}
    assert [t for block in prompt.tokens(range(1, 3)) for t in block] == tokens[4:]
    assert len(prompt) == 3


def test_equal_beginnings_have_equal_names_and_nothing_else_has() -> None:
    """Two prompts share names up to where they part; the same number behind another block is another one."""
    first, second = asked((1, 2, 3), (1, 9, 3))
    assert first.hashes[0] == second.hashes[0]
    assert len({*first.hashes, *second.hashes}) == 5


def test_requests_keep_their_order_and_time() -> None:
    """Ids count from 0, arrival is the trace's."""
    prompts = asked((1,), (), (2,), every_s=2.5)
    assert [(p.req_id, p.arrival_s, len(p)) for p in prompts] == [
        ("request-0", 0.0, 1),
        ("request-1", 2.5, 0),
        ("request-2", 5.0, 1),
    ]
