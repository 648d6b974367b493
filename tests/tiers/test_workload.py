"""Driving an engine: pace, counts, stopping, and the hit shares of real request traces."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import pytest

from tests.tiers.small_engine import SmallEngine, asked
from tiers.engine import Served
from tiers.prompt import Prompt, prompts
from tiers.trace import read_trace
from tiers.what_if import Sizes, what_if
from tiers.workload import Pace, drive

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
WITHOUT_END = 1 << 20


def trace(name: str, limit: int | None = None) -> list[Prompt]:
    path = TRACES / f"mooncake_{name}.jsonl"
    if not path.exists():
        pytest.skip(f"the trace {name} is not laid beside this checkout")
    return list(prompts(read_trace(path, limit=limit), block_size=16))


def test_counts_are_sums() -> None:
    """Hits of every tier and misses together are all block references."""
    engine = SmallEngine(3, 3, None)
    count = drive(engine.engine, asked((1, 2, 3), (4, 5, 6), (1, 2, 3), (1, 2, 7)))
    assert (count.requests, count.block_refs, count.hits, count.misses) == (4, 12, [2, 0, 3], 7)
    assert count.mismatches == 0


def test_stopping_waits_for_the_request_that_is_served() -> None:
    """Told to stop, it ends behind the present request, and counts that one."""
    engine, stop = SmallEngine(3, 3), threading.Event()
    told: list[str] = []

    def served(prompt: Prompt, _: Served) -> None:
        told.append(prompt.req_id)
        if len(told) == 2:
            stop.set()

    count = drive(engine.engine, asked((1,), (2,), (3,)), stop=stop, on_served=served)
    assert (count.requests, told) == (2, ["request-0", "request-1"])
    engine.engine.check_integrity()


def test_a_stop_ends_a_pause() -> None:
    """Whoever stops a run at the trace's pace does not wait for its next request."""
    engine, stop = SmallEngine(3, 3), threading.Event()
    count = drive(
        engine.engine,
        asked((1,), (2,), every_s=1e6),
        speed=1.0,
        stop=stop,
        on_served=lambda *_: threading.Timer(0.01, stop.set).start(),
    )
    assert count.requests == 1


def test_pace() -> None:
    """The first request is due at once, the others as far behind it as in the trace, over the speed; a late
    one is not waited for, and the pace does not shift.
    """
    now = [100.0]
    pace = Pace(10.0, clock=lambda: now[0])
    assert pace.seconds_until(5_000.0) == 0
    assert pace.seconds_until(5_020.0) == pytest.approx(2.0)
    now[0] = 103.0
    assert pace.seconds_until(5_020.0) == 0
    assert pace.seconds_until(5_040.0) == pytest.approx(1.0)
    assert Pace(None, clock=lambda: now[0]).seconds_until(1e9) == 0


@pytest.mark.parametrize(
    ("name", "refs", "hits"), [("conversation", 288_500, 105_710), ("synthetic", 121_877, 77_953)]
)
def test_unbounded_room_gives_the_share_of_the_trace(name: str, refs: int, hits: int) -> None:
    """With room for everything, every reference but a block's first is a hit: 36.6 % and 64.0 %."""
    count = what_if(Sizes(WITHOUT_END, 0), trace(name))
    assert (count.block_refs, count.hits, count.misses) == (refs, [hits, 0], refs - hits)


def test_unbounded_tiers_behind_give_it_too() -> None:
    """A small GPU and a small CPU tier lose nothing where a tier behind them keeps everything."""
    some = trace("conversation", limit=3_000)
    best = sum(what_if(Sizes(WITHOUT_END, 0), some).hits)
    small = what_if(Sizes(400, 900, behind=(("first", 2_000), ("second", None))), some)
    assert sum(small.hits) == best
    assert min(small.hits) > 0


def lru_hits(requests: list[Prompt], capacity: int) -> int:
    """A GPU's hits by another way: one ordered dict, oldest first, the tail of a prompt leaving before its
    head.
    """
    kept: OrderedDict[bytes, None] = OrderedDict()
    hits = 0
    for prompt in requests:
        blocks = prompt.hashes[:capacity]
        found = next((n for n, name in enumerate(blocks) if name not in kept), len(blocks))
        hits += found
        for name in blocks[:found]:
            del kept[name]
        while len(kept) > capacity - len(blocks):
            kept.popitem(last=False)
        kept.update(dict.fromkeys(reversed(blocks)))
    return hits


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_lru_hits_are_those_of_a_simulation(name: str) -> None:
    """At any capacity, also below the longest prompt, the GPU hits exactly what ten other lines say."""
    some = trace(name, limit=2_500)
    for capacity in (1, 60, 500, 3_000, 20_000):
        assert what_if(Sizes(capacity, 0), some).hits == [lru_hits(some, capacity), 0], capacity


@pytest.mark.soak
@pytest.mark.parametrize(("name", "hits"), [("conversation", 105_710), ("synthetic", 77_953)])
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_whole_trace_through_four_tiers(name: str, hits: int, policy: str) -> None:
    """However small the tiers above it are, with one that keeps everything nothing is computed twice."""
    behind = (("first", 20_000), ("second", None))
    count = what_if(Sizes(1_000, 8_000, policy, behind), trace(name))
    assert sum(count.hits) == hits
    assert min(count.hits) > 0
