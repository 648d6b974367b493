"""The threads of a tier: order, ends, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tiers.errors import TierContractError, TierValueError
from tiers.storage.read_priority import ReadPriorityPool


@contextmanager
def pool(read_threads: int = 1, write_threads: int = 1) -> Iterator[ReadPriorityPool[str]]:
    made: ReadPriorityPool[str] = ReadPriorityPool(read_threads, write_threads)
    try:
        yield made
    finally:
        made.shutdown()


class Blocker:
    """A task that holds its thread until told to go on, and knows which thread that is."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.thread = ""

    def __call__(self) -> str:
        self.thread = threading.current_thread().name
        self.begun.set()
        assert self.go.wait(10)
        return "held"


def held(workers: ReadPriorityPool[str], count: int) -> list[Blocker]:
    """Hold so many threads, those that prefer loads first."""
    blockers = [Blocker() for _ in range(count)]
    workers.submit(blockers, is_load=False)
    for blocker in blockers:
        assert blocker.begun.wait(10)
    return sorted(blockers, key=lambda blocker: blocker.thread)


def collect(workers: ReadPriorityPool[str]) -> list[str]:
    results: list[str] = []
    while workers.outstanding:
        results += workers.wait()
    return results


def test_everything_is_done_once() -> None:
    """Each task's result is handed out once; nothing outstanding, nothing to wait for."""
    with pool(3, 2) as workers:
        workers.submit([partial(str, n) for n in range(200)], is_load=True)
        workers.submit([partial(str, n) for n in range(200, 400)], is_load=False)
        assert sorted(map(int, collect(workers))) == list(range(400))
        assert (workers.wait(), workers.take()) == ([], [])


def test_loads_go_before_stores_that_came_earlier() -> None:
    """With its queue full of stores, the reading thread takes the load that came last."""
    with pool() as workers:
        reader, writer = held(workers, 2)
        order = list[str]()

        def note(name: str) -> str:
            order.append(name)
            return name

        workers.submit([partial(note, "store")] * 50, is_load=False)
        workers.submit([partial(note, "load")], is_load=True)
        reader.go.set()
        results = workers.wait()
        while len(results) < 52:
            results += workers.wait()
        writer.go.set()
        assert collect(workers) == ["held"]
        assert order == ["load"] + ["store"] * 50


def test_loads_do_not_starve_stores() -> None:
    """With one thread stuck in a load or a store, the other one does what there is, of either kind."""
    for is_load in (True, False):
        with pool() as workers:
            (blocker,) = held(workers, 1)
            workers.submit([lambda: "other"], is_load=is_load)
            assert workers.wait() == ["other"]
            blocker.go.set()
            assert collect(workers) == ["held"]


def test_a_task_that_raises_raises_where_its_result_is_taken() -> None:
    """An error goes to the thread that asks, and the pool goes on."""
    with pool() as workers:
        workers.submit([lambda: str(1 // 0)], is_load=True)
        with pytest.raises(ZeroDivisionError):
            workers.wait()
        workers.submit([lambda: "fine"], is_load=True)
        assert workers.wait() == ["fine"]


def note(event: threading.Event) -> str:
    event.set()
    return "ran"


def test_shutdown_ends_what_is_under_way_and_drops_the_rest() -> None:
    """Running tasks end, waiting ones never begin, no thread is left, and nothing is taken any more."""
    workers: ReadPriorityPool[str] = ReadPriorityPool(1, 1, name="closing")
    blockers, ran = held(workers, 2), threading.Event()
    workers.submit([partial(note, ran) for _ in range(10)], is_load=True)
    closing = threading.Thread(target=workers.shutdown)
    closing.start()
    while not workers._is_closed:
        closing.join(0.001)
    for blocker in blockers:
        blocker.go.set()
    closing.join(10)
    assert not closing.is_alive()
    assert not ran.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closing-")]
    assert (workers.outstanding, workers.take(), workers.wait()) == (0, [], [])
    workers.shutdown()
    with pytest.raises(TierContractError):
        workers.submit([lambda: "late"], is_load=True)


def test_a_pool_nobody_uses_has_no_threads() -> None:
    """Threads come with the first task."""
    with pool() as workers:
        assert workers._started == []


def test_each_kind_needs_a_thread() -> None:
    """A pool without threads of a kind is refused, and so is a number that is none, or far too large."""
    wrongs: list[tuple[Any, Any]] = [(0, 1), (1, 0), ("8", 1), (1, 1.0), (True, 1), (1_025, 1), (1, 100_000)]
    for wrong in wrongs:
        with pytest.raises(TierValueError, match="_threads"):
            ReadPriorityPool(*wrong)
