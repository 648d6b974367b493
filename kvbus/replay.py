"""A log as it was: its batches again, byte for byte, in their order and, if wanted, in their time.

The timing is arithmetic on the times of receipt; the clock, the pause and whatever sends the batches are
handed in. Nothing is decoded, renumbered or repaired on the way: a hole in the log is a hole in the
replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct

from kvbus.errors import ConfigError
from kvbus.log import Entry, EpochBegan, LogReader, Loss, Received, SourceId, Stray

SPEED_MIN: Final = 1e-3
SPEED_MAX: Final = 1e9
PAUSE_S_MAX: Final = 86_400.0
"""Waited for at once; a longer gap is waited for in several."""

PAUSE_S_MIN: Final = 0.001
"""Shorter gaps are not slept: they would last longer than they should."""


class Played(Struct, frozen=True):
    """What a replay did."""

    batches: int
    payload_bytes: int
    stopped: bool


class Point(Struct, frozen=True):
    """A place in a log: a position, or a time of receipt in nanoseconds since 1970; the other is None."""

    position: int | None = None
    time_ns: int | None = None


def point(text: str) -> Point:
    """``--from`` and ``--until``: a whole number is a position, anything else an ISO 8601 time (local
    unless it says).

    Raises ``ConfigError``.
    """
    if text.isascii() and text.isdigit():
        return Point(position=int(text))
    try:
        moment = datetime.fromisoformat(text)
        return Point(time_ns=round(moment.timestamp() * 1_000_000) * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{text!r} is neither a position nor a time",
            next_step="Give a whole number such as 1200, or a time such as 2026-01-31T08:15:00Z.",
        ) from error


def speed(text: str) -> float | None:
    """``--speed``: a factor, or None for ``max``. Raises ``ConfigError``."""
    if text == "max":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not SPEED_MIN <= factor <= SPEED_MAX:
        raise ConfigError(
            f"{text!r} is not a speed",
            next_step=f"Give max, or a factor such as 1, 10 or 0.5, from {SPEED_MIN:g} to {SPEED_MAX:g}.",
        )
    return factor


def within(log: LogReader, *, first: Point | None = None, until: Point | None = None) -> Iterator[Entry]:
    """The entries from ``first`` up to but not including ``until``, in log order.

    What is no batch counts by the position of the batch after it, or by the time it was noticed.
    """
    begin = first.position if first is not None and first.position is not None else 0
    end = until.position if until is not None else None
    if end is not None and end <= begin:
        return
    from_ns = first.time_ns if first is not None and first.time_ns is not None else -1
    until_ns = until.time_ns if until is not None and until.time_ns is not None else 1 << 127
    for positioned in log.entries(begin, None if end is None else end - 1):
        if from_ns <= noted_ns(positioned.entry) < until_ns:
            yield positioned.entry


def noted_ns(entry: Entry) -> int:
    """When we learned of an entry, on our wall clock."""
    match entry:
        case Received() | Stray():
            return entry.received_ns
        case Loss():
            return entry.noticed_ns
        case EpochBegan():
            return entry.began_ns


def sources(log: LogReader) -> list[SourceId]:
    """Every stream that has batches in the log, sorted."""
    return sorted({item.entry.source for item in log.entries() if isinstance(item.entry, Received)})


class Pace:
    """When each batch is due: ``factor`` times as fast as received; None: at once.

    Times of receipt that go back (several streams in one log, clocks set) do not make it wait twice.
    """

    def __init__(self, factor: float | None) -> None:
        self._factor = factor
        self._first_ns: int | None = None
        self._latest_s = 0.0

    def due_s(self, received_ns: int) -> float:
        """When a batch received at ``received_ns`` is due, seconds after the beginning; never decreasing."""
        if self._factor is None:
            return 0.0
        if self._first_ns is None:
            self._first_ns = received_ns
        self._latest_s = max(self._latest_s, (received_ns - self._first_ns) / 1e9 / self._factor)
        return self._latest_s


def pause_until(due: float, *, pause: Callable[[float], bool], clock: Callable[[], float]) -> bool:
    """Pause until the clock shows ``due``, not at all if it is past. True when it is time to stop.

    ``pause``: as for ``play``. It is asked at least once, and never for more than a day.
    """
    while (left := due - clock()) > PAUSE_S_MAX:
        if pause(PAUSE_S_MAX):
            return True
    return pause(left if left > PAUSE_S_MIN else 0.0)


def play(
    entries: Iterable[Entry],
    forward: Callable[[Entry], None],
    *,
    factor: float | None,
    pause: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Played:
    """Hand each entry to ``forward``, batches when they are due and the others right after the batch
    before them.

    ``pause`` sleeps so many seconds and answers True when it is time to stop (``threading.Event.wait``
    does just that); it is asked before every entry, with 0 when there is nothing to wait for.
    """
    pace = Pace(factor)
    began = clock()
    count = size = 0
    for entry in entries:
        due = began + pace.due_s(entry.received_ns) if isinstance(entry, Received) else 0.0
        if pause_until(due, pause=pause, clock=clock):
            return Played(count, size, True)
        forward(entry)
        if isinstance(entry, Received):
            count += 1
            size += len(entry.payload)
    return Played(count, size, False)
