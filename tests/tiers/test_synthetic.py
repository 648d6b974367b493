"""Made-up traffic: the same everywhere, shaped like chat, with something to find in every tier."""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.errors import TierValueError
from tiers.serving.synthetic import ChatTraffic, synthetic
from tiers.serving.trace import Request

ODD = st.builds(
    ChatTraffic,
    requests_per_s=st.floats(0.01, 1e4),
    block_size=st.integers(1, 64),
    system_prompts=st.integers(1, 4),
    system_blocks=st.integers(0, 5),
    conversations=st.integers(1, 5),
    turn_blocks=st.integers(1, 5),
    max_blocks=st.integers(10, 40),
    return_share=st.floats(0, 0.5),
    document_share=st.floats(0, 0.5),
)


def test_the_same_on_every_machine() -> None:
    """A seed names its requests: these stand here as they came on another day."""
    assert [(r.timestamp_s, len(r.block_ids), r.output_length) for r in synthetic(7, requests=4)] == FIRST
    assert list(synthetic(7, requests=500)) == list(islice(synthetic(7), 500))
    assert list(synthetic(7, requests=5)) != list(synthetic(8, requests=5))


FIRST = [(0.019566, 11, 48), (0.042327, 6, 48), (0.070754, 29, 16), (0.158434, 18, 16)]


@given(st.integers(0, 1 << 64), ODD)
def test_whatever_the_numbers(seed: int, traffic: ChatTraffic) -> None:
    """With any numbers prompts fit, time does not go back, ids count up, and an id has one id before it."""
    seen, last_s, before = 0, 0.0, dict[int, int]()
    for request in synthetic(seed, requests=60, traffic=traffic):
        ids = request.block_ids
        assert 1 <= len(ids) <= traffic.max_blocks
        assert request.input_length == len(ids) * traffic.block_size
        assert 1 <= request.output_length <= traffic.turn_blocks * traffic.block_size
        assert request.timestamp_s >= last_s
        for parent, block_id in zip((-1, *ids), ids, strict=False):
            assert before.setdefault(block_id, parent) == parent
        last_s, seen = request.timestamp_s, max(seen, *ids)
    assert len(before) <= seen + 1


def test_arrivals_are_poisson() -> None:
    """Gaps have the mean that was asked for, and as much spread as mean."""
    times = [request.timestamp_s for request in synthetic(1, requests=5000)]
    gaps = [later - sooner for sooner, later in pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert spread == pytest.approx(mean, rel=0.05)


def test_some_prompts_are_more_popular() -> None:
    """The first system prompt begins about twice as many conversations as the second, and documents none."""
    traffic = ChatTraffic(return_share=0.0, document_share=0.25)
    first = Counter(request.block_ids[0] for request in synthetic(1, requests=8000, traffic=traffic))
    (top, often), (second, less) = first.most_common(2)
    assert (top, second) == (0, traffic.system_blocks)
    assert often / less == pytest.approx(2, rel=0.2)
    assert sum(n == 1 for n in first.values()) == pytest.approx(2000, rel=0.1)


def test_conversations_come_back_longer() -> None:
    """A conversation's next prompt begins with its last one, the answer, and goes on with a question."""
    traffic = ChatTraffic(conversations=1, return_share=1.0, document_share=0.0, block_size=1)
    requests = list(synthetic(3, requests=200, traffic=traffic))
    turns = [
        (last, following)
        for last, following in pairwise(requests)
        if following.block_ids[: len(last.block_ids)] == last.block_ids
    ]
    assert len(turns) > 150
    for last, following in turns:
        more = len(following.block_ids) - len(last.block_ids) - last.output_length
        assert 1 <= more <= traffic.turn_blocks


def test_something_to_find_in_every_tier() -> None:
    """With the defaults, tiers of 256 and 1000 blocks and one behind them each supply their part, soon."""
    found = hits(list(synthetic(0, requests=600)), [256, 1000, 1_000_000])
    assert all(share > 0.02 for share in found)
    assert found[0] > found[1] > found[2]
    assert sum(found) < 0.8


def hits(requests: list[Request], capacities: list[int]) -> list[float]:
    """The share of blocks that each of some LRU tiers supplies, each holding what the ones before hold."""
    tiers = [OrderedDict[int, None]() for _ in capacities]
    counts, references = [0] * len(tiers), 0
    for request in requests:
        references += len(request.block_ids)
        for block_id in request.block_ids:
            having = [n for n, tier in enumerate(tiers) if block_id in tier]
            if not having:
                break
            counts[having[0]] += 1
        for block_id in reversed(request.block_ids):
            for tier, capacity in zip(tiers, capacities, strict=True):
                tier[block_id] = None
                tier.move_to_end(block_id)
                if len(tier) > capacity:
                    tier.popitem(last=False)
    return [count / references for count in counts]


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_s": 0.0},
        {"requests_per_s": float("nan")},
        {"requests_per_s": float("inf")},
        {"conversations": 0},
        {"system_blocks": -1},
        {"max_blocks": 11},
        {"return_share": -0.1},
        {"return_share": 0.9, "document_share": 0.2},
        {"document_share": float("nan")},
    ],
)
def test_numbers_that_do_not_go_together(wrong: dict[str, float]) -> None:
    """Traffic that cannot be is refused before any of it is made."""
    with pytest.raises(TierValueError, match="chat traffic with"):
        ChatTraffic(**wrong)  # type: ignore[arg-type]


def test_a_negative_number_of_requests() -> None:
    """Nobody can send fewer than no requests."""
    assert list(synthetic(0, requests=0)) == []
    with pytest.raises(TierValueError):
        synthetic(0, requests=-1)
