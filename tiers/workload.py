"""Drives an engine with requests: one after the other, at the trace's pace or as fast as it goes.

Counts what they came to. When a request comes late because the one before it took long, it is served at once
and the pace is not made up: an engine under load does the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from tiers.engine import Engine, Served
from tiers.prompt import Prompt


class Count:
    """What was served so far, added up; ``hits[t]`` as in ``Served``, for ``tiers`` many."""

    def __init__(self, tiers: int) -> None:
        self.requests = self.block_refs = self.misses = self.mismatches = 0
        self.hits = [0] * tiers

    def add(self, served: Served) -> None:
        self.requests += 1
        self.block_refs += served.blocks
        self.misses += served.misses
        self.mismatches += len(served.mismatches)
        for tier, hits in enumerate(served.hits):
            self.hits[tier] += hits


def drive(
    engine: Engine,
    prompts: Iterable[Prompt],
    *,
    speed: float | None = None,
    stop: threading.Event | None = None,
    on_served: Callable[[Prompt, Served], None] | None = None,
) -> Count:
    """Serve ``prompts`` in order; ``speed``: so many seconds of the trace in one, None: without a pause.

    Ends after the present request when ``stop`` is set. Raises what ``Engine.serve`` raises.
    """
    stop = threading.Event() if stop is None else stop
    count = Count(engine.num_tiers)
    pace = Pace(speed)
    for prompt in prompts:
        stop.wait(pace.seconds_until(prompt.arrival_s))
        if stop.is_set():
            break
        served = engine.serve(prompt)
        count.add(served)
        if on_served is not None:
            on_served(prompt, served)
    return count


class Pace:
    """When what happened at ``arrival_s`` of a trace is due; the first one asked about is due now."""

    def __init__(self, speed: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._clock = clock
        self._trace_began: float | None = None
        self._began = clock()

    def seconds_until(self, arrival_s: float) -> float:
        """0 if it is due, or overdue."""
        if self._speed is None:
            return 0.0
        if self._trace_began is None:
            self._trace_began, self._began = arrival_s, self._clock()
        due = self._began + (arrival_s - self._trace_began) / self._speed
        return max(0.0, due - self._clock())
