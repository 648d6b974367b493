"""What waits to be taken: numbered, handed out once, bounded. By both of its kinds."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.words import k, keys
from tiers import EventBuffer, Medium, OffloadingEvent, TierValueError
from tiers.gpu.events import GPUEventBuffer
from tiers.numbered_buffer import NumberedBuffer


def offloading(events_max: int = 100) -> tuple[NumberedBuffer[Any], Callable[[], None]]:
    buffer = EventBuffer(Medium.CPU, events_max=events_max)
    return buffer, lambda: buffer.stored([k("a")])


def gpu(events_max: int = 100) -> tuple[NumberedBuffer[Any], Callable[[], None]]:
    buffer = GPUEventBuffer(enabled=True, events_max=events_max)
    return buffer, lambda: buffer.removed([b"a"], "evicted", group_idx=0)


KINDS = pytest.mark.parametrize("made", [offloading, gpu])
Made = Callable[..., tuple[NumberedBuffer[Any], Callable[[], None]]]


def numbers(events: list[Any]) -> list[int]:
    return [event.emit_seq for event in events]


@KINDS
def test_each_event_is_handed_out_once(made: Made) -> None:
    """Taking empties the buffer at once; what is said meanwhile waits for the next taking."""
    buffer, say = made()
    say()
    first = iter(buffer.take())
    say()
    assert numbers(list(first)) == [0]
    assert (len(buffer), numbers(buffer.take()), buffer.take()) == (1, [1], [])


@KINDS
def test_another_counter_renumbers_what_waits(made: Made) -> None:
    """A buffer that joins others takes its numbers from their counter, for what waits there too."""
    buffer, say = made()
    say()
    say()
    shared = itertools.count(7)
    buffer.number_from(shared)
    next(shared)
    say()
    assert numbers(buffer.take()) == [7, 8, 10]


@KINDS
def test_nobody_takes(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    """A buffer that nobody empties keeps the newest, counts what it dropped, and says so once."""
    buffer, say = made(3)
    with caplog.at_level(logging.WARNING, logger="tiers.numbered_buffer"):
        for _ in range(5):
            say()
        assert numbers(buffer.take()) == [2, 3, 4]
        for _ in range(4):
            say()
    assert numbers(buffer.take()) == [6, 7, 8]
    assert buffer.counts == {"events_dropped.undrained": 3}
    (record,) = caplog.records
    assert "3 events" in record.getMessage()


@KINDS
@given(st.lists(st.integers(1, 6), max_size=12), st.integers(1, 5))
def test_every_number_is_taken_or_counted(made: Made, runs: list[int], events_max: int) -> None:
    """However often it is emptied: numbers go up, never more wait than may, and none is lost uncounted."""
    buffer, say = made(events_max)
    taken: list[int] = []
    for run in runs:
        for _ in range(run):
            say()
            buffer.check_integrity()
        share = numbers(buffer.take())
        assert len(share) == min(run, events_max)
        taken += share
    assert taken == sorted(set(taken))
    assert len(taken) + buffer.counts["events_dropped.undrained"] == sum(runs)


@pytest.mark.parametrize("events_max", [0, -1, True, "9"])
def test_a_bound_that_cannot_be(events_max: Any) -> None:
    """A buffer must have room for an event."""
    with pytest.raises(TierValueError, match="events_max"):
        EventBuffer(Medium.CPU, events_max=events_max)


def test_a_check_that_can_fail() -> None:
    """More events than may wait do not pass the check."""
    buffer, say = offloading(2)
    say()
    say()
    buffer.events_max = 1
    with pytest.raises(AssertionError):
        buffer.check_integrity()


def test_an_event_keeps_what_it_said() -> None:
    """A new number changes nothing else of an event."""
    buffer = EventBuffer(Medium.STORAGE, ownership="fs", removal_expected=True)
    buffer.stored(keys("a b"))
    buffer.removed(keys("a"), "corrupt")
    buffer.number_from(itertools.count(5))
    assert buffer.take() == [
        OffloadingEvent(keys("a b"), Medium.STORAGE, False, None, "fs", True),
        OffloadingEvent(keys("a"), Medium.STORAGE, True, None, "fs", False),
    ]
