"""``kvbus/replay.py``: a log again, in its order and its time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.errors import ConfigError
from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, Loss, PositionedEntry, Received, SourceId
from kvbus.replay import Pace, Point, play, point, sources, speed, within

A = SourceId("a")
S = 1_000_000_000


def batch(seq: int, at_s: float, source: SourceId = A) -> Received:
    return Received(source, 0, seq, b"p" * seq, int(at_s * S), False, EventBatch(0.0, []), "map")


class FakeLog:
    """A reader over entries in memory."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = entries

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[PositionedEntry]:
        position = 0
        for entry in self._entries:
            if first <= position and (last is None or position <= last):
                yield PositionedEntry(position, entry)
            position += isinstance(entry, Received)

    def batch_count(self) -> int:
        return sum(isinstance(entry, Received) for entry in self._entries)

    def close(self) -> None: ...


class Clock:
    """A clock that only pauses move, and what was done at which time."""

    def __init__(self, stop_at_s: float = float("inf")) -> None:
        self.now = 100.0
        self.stop_at = 100.0 + stop_at_s
        self.done: list[tuple[float, int]] = []

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self.stop_at

    def forward(self, entry: Entry) -> None:
        assert isinstance(entry, Received)
        self.done.append((round(self.now - 100.0, 6), entry.seq))


def run(*batches: Received, factor: float | None, stop_at_s: float = float("inf")) -> Clock:
    clock = Clock(stop_at_s)
    play(batches, clock.forward, factor=factor, pause=clock.pause, clock=lambda: clock.now)
    return clock


def test_a_replay_keeps_the_times_between_receipts() -> None:
    """At speed 1 batches are as far apart as they were received; at 10 a tenth of it; at max not at all."""
    log = (batch(0, 5), batch(1, 6), batch(2, 8.5))
    assert run(*log, factor=1).done == [(0, 0), (1, 1), (3.5, 2)]
    assert run(*log, factor=10).done == [(0, 0), (0.1, 1), (0.35, 2)]
    assert run(*log, factor=None).done == [(0, 0), (0, 1), (0, 2)]


def test_what_takes_long_to_send_does_not_push_the_rest_back() -> None:
    """A batch that is late is sent at once, and the ones after it keep their own time."""
    clock = Clock()

    def slowly(entry: Entry) -> None:
        clock.forward(entry)
        clock.now += 1.5 if entry == batch(0, 0) else 0

    play(
        [batch(0, 0), batch(1, 1), batch(2, 2)], slowly, factor=1, pause=clock.pause, clock=lambda: clock.now
    )
    assert clock.done == [(0, 0), (1.5, 1), (2, 2)]


@given(st.lists(st.integers(0, 2**62), min_size=1), st.floats(0.001, 1000))
def test_due_times_never_go_back(times: list[int], factor: float) -> None:
    """Whatever the times of receipt, each batch is due no earlier than the one before, the first at once."""
    pace = Pace(factor)
    due = [pace.due_s(at) for at in times]
    assert due == sorted(due)
    assert due[0] == 0


def test_a_replay_stops_when_told() -> None:
    """A pause that says stop ends it before the next batch."""
    assert run(batch(0, 0), batch(1, 1), batch(2, 2), factor=1, stop_at_s=1.5).done == [(0, 0), (1, 1)]


def test_a_replay_counts_what_it_sent() -> None:
    """The result counts batches and payload bytes, and says whether it was stopped."""
    clock = Clock()
    played = play(
        [batch(2, 0), batch(3, 0)], clock.forward, factor=None, pause=clock.pause, clock=lambda: clock.now
    )
    assert (played.batches, played.payload_bytes, played.stopped) == (2, 5, False)


LOG = (
    EpochBegan(A, 0, "first_sight", "", 10 * S),
    batch(0, 10),
    batch(1, 11),
    Loss(A, 0, 2, 4, "too_old", 12 * S),
    batch(5, 12),
    batch(6, 13),
)


@pytest.mark.parametrize(
    ("first", "until", "found"),
    [
        (None, None, LOG),
        (Point(position=1), Point(position=3), LOG[2:5]),
        (Point(position=3), None, LOG[5:]),
        (Point(position=3), Point(position=3), ()),
        (Point(time_ns=11 * S), Point(time_ns=13 * S), LOG[2:5]),
        (Point(position=1), Point(time_ns=12 * S), LOG[2:3]),
    ],
)
def test_from_is_included_and_until_is_not(
    first: Point | None, until: Point | None, found: tuple[Entry, ...]
) -> None:
    """A part of a log runs from its first point up to but without its second, by position or by time."""
    assert tuple(within(FakeLog(*LOG), first=first, until=until)) == found


def test_sources_are_those_with_batches() -> None:
    """Streams without a batch are not replayed."""
    log = FakeLog(batch(0, 0, SourceId("b")), EpochBegan(SourceId("z"), 0, "first_sight", "", 0), batch(0, 0))
    assert sources(log) == [A, SourceId("b")]


def test_points_are_positions_or_times() -> None:
    """A whole number is a position, anything else an ISO 8601 time; other words are refused."""
    assert point("1200") == Point(position=1200)
    assert point("1970-01-01T00:00:01.5Z") == Point(time_ns=1_500_000_000)
    for text in ("yesterday", "-5", "", "12:00"):
        with pytest.raises(ConfigError, match="neither a position nor a time"):
            point(text)


def test_speeds_are_factors_or_max() -> None:
    """max does not wait; a factor must be above zero and finite."""
    assert (speed("max"), speed("10"), speed("0.5")) == (None, 10.0, 0.5)
    for text in ("0", "-1", "inf", "nan", "fast"):
        with pytest.raises(ConfigError, match="not a speed"):
            speed(text)
