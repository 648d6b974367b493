"""The engine: what a request is, step by step, to the GPU and the tiers behind it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.events import BlockRemoved, BlockStored, canonical_hash, token_list
from tests.tiers.small_engine import SmallEngine, asked
from tiers import TierContractError
from tiers.errors import TierStalledError
from tiers.gpu.pool import GPUBlockPool
from tiers.serving.device import BooksOnly
from tiers.serving.engine import ServingEngine
from tiers.serving.trace import tokens_of
from tiers.tiering.manager import TieringOffloadingManager

TWICE = [(1, 2, 3), (4, 5, 6), (1, 2, 3)]


def test_what_was_computed_is_a_hit_of_the_gpu() -> None:
    """A block is computed once and found in the GPU for as long as its slot is not given out."""
    engine = SmallEngine(6, 0)
    assert [engine.hits(p) for p in asked((1, 2, 3), (1, 2, 3, 4), (1, 9))] == [(0, 0), (3, 0), (1, 0)]


def test_a_block_is_a_hit_of_the_tier_that_supplied_it() -> None:
    """What the GPU has given up comes from the CPU; what that has given up too, from the tier behind it."""
    from_cpu = SmallEngine(3, 9, None)
    assert [from_cpu.hits(p) for p in asked(*TWICE)][-1] == (0, 3, 0)
    from_behind = SmallEngine(3, 3, None)
    assert [from_behind.hits(p) for p in asked(*TWICE)][-1] == (0, 0, 3)
    # Block 3 is what the first tier behind has room for; the second has everything.
    shared = SmallEngine(3, 3, 3, None)
    assert [shared.hits(p) for p in asked(*TWICE)][-1] == (0, 0, 0, 3)


def test_one_request_can_be_supplied_by_every_tier() -> None:
    """The GPU's part of a prefix, then the CPU's, then a tier's behind them, then what has to be computed."""
    engine = SmallEngine(6, 6, None)
    for prompt in asked((1, 2, 3, 4, 5, 6), (7, 8, 9, 10), (7, 8, 9, 10, 11)):
        engine.hits(prompt)
    (whole,) = asked((1, 2, 3, 4, 5, 6))
    hits = engine.hits(whole)
    assert sum(hits) == 6
    assert hits[0] > 0
    assert hits[2] > 0


def test_a_hit_needs_every_block_before_it() -> None:
    """Blocks that are there behind one that is not are computed again: the chain is what is found."""
    engine = SmallEngine(4, 4)
    first, other = asked((1, 2, 3), (9, 2, 3))
    engine.hits(first)
    assert engine.hits(other) == (0, 0)


def test_of_a_prompt_longer_than_the_gpu_the_first_blocks_are_served() -> None:
    """What has no room in the GPU is a miss, and counted."""
    engine = SmallEngine(2, 8)
    (long,) = asked((1, 2, 3, 4, 5))
    served = engine.engine.serve(long)
    assert (served.blocks, served.misses) == (5, 5)
    assert engine.engine.serve(long).hits == (2, 0)
    assert engine.engine.get_stats()["blocks_beyond_gpu"] == 6
    engine.engine.check_integrity()


def test_a_cpu_tier_smaller_than_the_prefix_cuts_it() -> None:
    """Found blocks are pinned until they are loaded; where the CPU has no more room, the prefix ends."""
    engine = SmallEngine(8, 2, None)
    assert [engine.hits(p) for p in asked((1, 2, 3, 4), (5, 6, 7, 8, 9, 10, 11, 12), (1, 2, 3, 4))][-1] == (
        0,
        0,
        2,
    )


def test_a_copy_to_the_gpu_that_fails_is_a_miss() -> None:
    """The blocks are computed instead: nothing wrong is ever read."""
    engine = SmallEngine(3, 9)
    first, second, again = asked(*TWICE)
    engine.hits(first)
    engine.hits(second)
    engine.device.failing = {"load"}
    assert engine.hits(again) == (0, 0)
    assert engine.engine.get_stats()["load_failures"] == 1
    engine.device.failing.clear()
    assert engine.hits(again) == (3, 0)
    assert engine.engine.get_stats().get("loads", 0) == 0


def test_a_copy_from_the_gpu_that_fails_stores_nothing() -> None:
    """No tier announces a block whose bytes did not arrive; it is offered again when it is computed again."""
    engine = SmallEngine(3, 9, None)
    engine.device.failing = {"store"}
    first, second, again = asked(*TWICE)
    engine.hits(first)
    assert engine.heard["cpu"].events == engine.heard["memory0"].events == []
    assert engine.engine.get_stats()["store_failures"] == 1
    engine.device.failing.clear()
    engine.hits(second)
    assert engine.hits(again) == (0, 0, 0)


def test_a_block_that_is_not_what_was_stored_is_named_and_put_right() -> None:
    """A flipped byte in the CPU tier is found when the block is loaded, and does not stay in the GPU."""
    engine = SmallEngine(3, 9)
    first, second, again = asked(*TWICE)
    engine.hits(first)
    engine.hits(second)
    engine.device.cpu[48 * 1 + 5] ^= 1  # the second row: the first request's second block
    served = engine.engine.serve(again)
    assert served.mismatches == (again.keys[1],)
    assert served.hits == (0, 3)
    assert engine.engine.get_stats()["loads"] == 3
    assert engine.device.mismatches(engine.pool.find_prefix(again.hashes), again.keys) == []


def test_events_say_what_the_engine_knows() -> None:
    """Blocks are announced with their tokens and parents, in every tier alike, and evictions after them."""
    engine = SmallEngine(3, 4, None)
    first, second, _ = asked(*TWICE)
    engine.hits(first)
    engine.hits(second)
    (gpu_first, *_) = engine.heard["gpu"].events
    assert isinstance(gpu_first, BlockStored)
    assert gpu_first.block_hashes == [canonical_hash(h) for h in first.hashes]
    assert token_list(gpu_first.token_ids) == [t for b in (1, 2, 3) for t in tokens_of(b, 4)]
    stored = [e for e in engine.heard["memory0"].events if isinstance(e, BlockStored)]
    assert [e.block_hashes[0] for e in stored] == [canonical_hash(h) for h in first.hashes + second.hashes]
    assert stored[1].parent_block_hash == canonical_hash(first.hashes[0])
    assert token_list(stored[1].token_ids) == tokens_of(2, 4)
    removed = [e for e in engine.heard["gpu"].events if isinstance(e, BlockRemoved)]
    assert [e.reason for e in removed] == ["evicted"]
    stamps = [[ts for ts, _ in voice.batches] for voice in engine.heard.values()]
    assert stamps[0] == stamps[1] == stamps[2]
    assert stamps[0] == sorted(set(stamps[0]))


def test_a_tier_that_never_answers_ends_the_run() -> None:
    """Waiting has a limit: the error says what was waited for, and what to look at."""
    engine = SmallEngine(3, 3, None, delay_steps=1_000_000_000, patience_s=0.02)
    (prompt,) = asked((1, 2, 3))
    with pytest.raises(TierStalledError, match=r"no progress for 0\.02 s"):
        engine.engine.serve(prompt)


def test_the_gpu_s_slots_belong_to_the_engine() -> None:
    """Where somebody else holds slots, a request fails as a broken promise, not as a wrong count."""
    engine = SmallEngine(3, 3)
    engine.pool.allocate(2)
    (prompt,) = asked((1, 2, 3))
    with pytest.raises(TierContractError, match="no room for 3 blocks"):
        engine.engine.serve(prompt)


def sequences() -> st.SearchStrategy[list[list[int]]]:
    """Prompts that share beginnings: a walk down a small tree, whose numbers name their way."""
    ways = st.lists(st.integers(0, 2), min_size=1, max_size=7)
    return st.lists(ways, min_size=1, max_size=25)


def named(way: list[int]) -> list[int]:
    """Numbers under which each block has one predecessor, as in a trace."""
    return [hash(tuple(way[: n + 1])) % (1 << 40) for n in range(len(way))]


@settings(max_examples=60, deadline=None)
@given(
    ways=sequences(),
    gpu=st.integers(1, 12),
    cpu=st.integers(0, 10),
    behind=st.lists(st.one_of(st.none(), st.integers(1, 12)), max_size=2),
    policy=st.sampled_from(["lru", "arc"]),
    delay_steps=st.integers(0, 2),
)
def test_any_traffic_is_served_right(
    ways: list[list[int]], gpu: int, cpu: int, behind: list[int | None], policy: str, delay_steps: int
) -> None:
    """Every block loaded is what was stored, nothing stays pinned, counts add up; and on books alone, with
    tiers that answer at once, the very same tiers supply the very same blocks.
    """
    engine = SmallEngine(gpu, cpu, *behind, policy=policy, delay_steps=delay_steps)
    books = books_like(SmallEngine(gpu, cpu, *behind, policy=policy))
    for prompt in asked(*map(named, ways)):
        served = engine.engine.serve(prompt)
        engine.engine.check_integrity()
        assert served.mismatches == ()
        assert served.misses + sum(served.hits) == len(prompt)
        assert books.serve(prompt) == served


def books_like(engine: SmallEngine) -> ServingEngine:
    """The same sizes without bytes and without a word."""
    pool = GPUBlockPool(engine.pool.num_blocks, 4)
    manager = TieringOffloadingManager(engine.primary, engine.behind)
    return ServingEngine(pool, manager, device=BooksOnly())


def test_loaded_blocks_are_compared() -> None:
    """The comparison really looks at every block that came up, and at no other."""
    engine = SmallEngine(3, 9)
    for prompt in asked(*TWICE):
        engine.hits(prompt)
    assert engine.device.compared == 3
