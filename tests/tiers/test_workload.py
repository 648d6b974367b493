"""Driving an engine: pace, counts, stopping, and the hit shares of real request traces."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import pytest

from tests.tiers.small_engine import SmallEngine, asked
from tiers.serving.prompt import Prompt, prompts
from tiers.serving.served import Served
from tiers.serving.stack_spec import StackSpec, TierSpec
from tiers.serving.trace import read_trace
from tiers.serving.what_if import what_if
from tiers.serving.workload import RunCount, drive

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
    assert (count.all_hits, count.hit_rate) == (5, 5 / 12)
    assert RunCount().hit_rate == 0


def test_stopping_waits_for_the_request_that_is_served() -> None:
    """Told to stop, it ends behind the present request, and counts that one."""
    engine, stop = SmallEngine(3, 3), threading.Event()
    told: list[str] = []

    def served(prompt: Prompt, _: Served, so_far: RunCount) -> None:
        told.append(prompt.req_id)
        assert so_far.requests == len(told)
        if len(told) == 2:
            stop.set()

    count = drive(engine.engine, asked((1,), (2,), (3,)), stop=stop, on_served=served)
    assert (count.requests, told) == (2, ["request-0", "request-1"])
    engine.engine.check_integrity()


@pytest.mark.parametrize("every_s", [1e6, 1e12])
def test_a_stop_ends_a_pause(every_s: float) -> None:
    """Whoever stops a run at the trace's pace does not wait for its next request, however far that is."""
    engine, stop = SmallEngine(3, 3), threading.Event()
    count = drive(
        engine.engine,
        asked((1,), (2,), every_s=every_s),
        speed=1.0,
        stop=stop,
        on_served=lambda *_: threading.Timer(0.01, stop.set).start(),
    )
    assert count.requests == 1


class PassingTime(threading.Event):
    """Is never set; a pause moves its clock, and so does work."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


def test_pace() -> None:
    """The first request is due at once, the others as far behind it as in the trace, over the speed; a late
    one is not waited for, and the pace does not shift.
    """
    time, begun = PassingTime(), list[float]()

    def served(prompt: Prompt, _: Served, __: RunCount) -> None:
        begun.append(time.now - 100.0)
        time.now += 3.0 if prompt.req_id == "request-1" else 0.0

    some = asked((1,), (2,), (3,), (4,), every_s=20.0)
    drive(SmallEngine(3, 3).engine, some, speed=10.0, stop=time, on_served=served, clock=lambda: time.now)
    assert begun == pytest.approx([0.0, 2.0, 5.0, 6.0])


@pytest.mark.parametrize(
    ("name", "refs", "hits"), [("conversation", 288_500, 105_710), ("synthetic", 121_877, 77_953)]
)
def test_unbounded_room_gives_the_share_of_the_trace(name: str, refs: int, hits: int) -> None:
    """With room for everything, every reference but a block's first is a hit: 36.6 % and 64.0 %."""
    count = what_if(StackSpec(WITHOUT_END, 0), trace(name))
    assert (count.block_refs, count.hits, count.misses) == (refs, [hits, 0], refs - hits)


def behind(most: int) -> tuple[TierSpec, TierSpec]:
    """A tier of so many blocks, and one behind it that keeps everything."""
    return (TierSpec("first", "memory", {"max_blocks": most}), TierSpec("second", "memory"))


def test_unbounded_tiers_behind_give_it_too() -> None:
    """A small GPU and a small CPU tier lose nothing where a tier behind them keeps everything."""
    some = trace("conversation", limit=3_000)
    best = sum(what_if(StackSpec(WITHOUT_END, 0), some).hits)
    small = what_if(StackSpec(400, 900, behind=behind(2_000)), some)
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
        assert what_if(StackSpec(capacity, 0), some).hits == [lru_hits(some, capacity), 0], capacity


@pytest.mark.soak
@pytest.mark.parametrize(("name", "hits"), [("conversation", 105_710), ("synthetic", 77_953)])
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_whole_trace_through_four_tiers(name: str, hits: int, policy: str) -> None:
    """However small the tiers above it are, with one that keeps everything nothing is computed twice."""
    count = what_if(StackSpec(1_000, 8_000, policy=policy, behind=behind(20_000)), trace(name))
    assert sum(count.hits) == hits
    assert min(count.hits) > 0
