"""Drives an engine with requests: one after the other, at the trace's pace or as fast as it goes.

Counts what they came to. When a request comes late because the one before it took long, it is served at once
and the pace is not made up: an engine under load does the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import field

from kvbus.replay import Pace, pause_until
from tiers.serving.engine import ServingEngine
from tiers.serving.prompt import Prompt
from tiers.serving.served import Served
from tiers.serving.tally import Totals

NANOSECONDS_A_SECOND: Final = 1_000_000_000


class RunCount(Totals, frozen=True):
    """What was served so far, added up; ``hits[t]`` as in ``Served``."""

    hits: list[int] = field(default_factory=list)

    def plus(self, served: Served) -> RunCount:
        """With one request more."""
        return RunCount(
            self.requests + 1,
            self.block_refs + served.blocks,
            self.misses + served.misses,
            self.mismatches + len(served.mismatches),
            [before + more for before, more in zip(self.hits, served.hits, strict=True)],
        )


OnServed = Callable[[Prompt, Served, RunCount], None]
"""Hears of each request, with what came of it and of all so far."""


def drive(
    engine: ServingEngine,
    prompts: Iterable[Prompt],
    *,
    speed: float | None = None,
    stop: threading.Event | None = None,
    on_served: OnServed | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RunCount:
    """Serve ``prompts`` in order; ``speed``: so many seconds of the trace in one, None: without a pause.

    Ends after the present request when ``stop`` is set. Raises what ``ServingEngine.serve`` raises.
    """
    stop = threading.Event() if stop is None else stop
    count = RunCount(hits=[0] * engine.num_tiers)
    pace, began = Pace(speed), clock()
    for prompt in prompts:
        due = began + pace.due_s(round(prompt.arrival_s * NANOSECONDS_A_SECOND))
        if pause_until(due, pause=stop.wait, clock=clock):
            break
        served = engine.serve(prompt)
        count = count.plus(served)
        if on_served is not None:
            on_served(prompt, served, count)
    return count
