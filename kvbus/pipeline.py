"""The only place that joins parts: arrivals in, entries through, a sink at the end.

``record`` runs a subscriber into a sink until told to stop; ``ingest`` runs a finished series of arrivals
(a capture) through the same ordering. Neither knows what a sink is made of.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch
from kvbus.link import Notice
from kvbus.log import Entry, Loss, Received, SourceId, Standing, Stray
from kvbus.sequencer import Sequencer
from kvbus.sink import Sink
from kvbus.subscriber import Subscriber

WRITE_BATCHES: Final = 1024
"""Entries handed to the sink at once when more come than ``flush_s`` lets gather: columns of this height
stay in cache.
"""
GRACE_S: Final = 3.0
TICK_EVERY: Final = 64


class Progress(Struct):
    """What a run has done so far. ``waiting``: batches held back behind a hole; ``other``: see
    ``Subscriber.counts``.
    """

    batches: int = 0
    events: int = 0
    payload_bytes: int = 0
    losses: int = 0
    lost_batches: int = 0
    strays: int = 0
    undecodable: int = 0
    waiting: int = 0
    other: Counter[str] = Counter()

    def count(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Received):
                self.batches += 1
                self.payload_bytes += len(entry.payload)
                if isinstance(entry.batch, EventBatch):
                    self.events += len(entry.batch.events)
                else:
                    self.undecodable += 1
            elif isinstance(entry, Loss):
                self.losses += 1
                self.lost_batches += entry.last_seq - entry.first_seq + 1
            elif isinstance(entry, Stray):
                self.strays += 1


def record(
    subscriber: Subscriber,
    sink: Sink,
    *,
    stop: threading.Event,
    flush_s: float = 0.5,
    max_batches: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_notice: Callable[[Notice], None] | None = None,
) -> Progress:
    """Write what ``subscriber`` delivers to ``sink`` until ``stop`` is set or ``max_batches`` are in; then
    flush.

    An entry is handed to the sink at most ``flush_s`` seconds after it was delivered. On stopping, holes
    whose replay is under way get ``GRACE_S`` seconds; what is still missing then is declared lost, so that
    what waited behind it is kept. Raises what the sink raises (``LogError``); everything it had made
    durable stays.
    """
    progress = Progress()
    gathered: list[Entry] = []
    oldest = 0.0

    def hand_over() -> None:
        if gathered:
            sink.write(gathered)
            progress.count(gathered)
            gathered.clear()
        progress.waiting = subscriber.waiting
        progress.other = subscriber.counts()
        if on_progress is not None:
            on_progress(progress)

    def gather(timeout_s: float) -> None:
        nonlocal oldest
        for item in subscriber.poll(timeout_s):
            if not isinstance(item, Notice):
                gathered.append(item)
            elif on_notice is not None:
                on_notice(item)
        now = time.monotonic()
        if not gathered:
            oldest = now
        if len(gathered) >= WRITE_BATCHES or now - oldest >= flush_s:
            hand_over()
            oldest = now

    def full() -> bool:
        return max_batches is not None and progress.batches + len(gathered) >= max_batches

    while not stop.is_set() and not full():
        gather(min(flush_s, 0.1))
    deadline = time.monotonic() + GRACE_S
    while subscriber.waiting and time.monotonic() < deadline and not full():
        gather(0.02)
    if not full():
        gathered += subscriber.finish()
    hand_over()
    sink.flush()
    return progress


def ingest(
    arrivals: Iterable[Arrival],
    sink: Sink,
    *,
    source: str,
    standings: Mapping[SourceId, Standing] | None = None,
    limits: Limits | None = None,
) -> Progress:
    """Order ``arrivals`` (a capture: no replay to ask) under the name ``source`` and write them to
    ``sink``.

    ``standings`` default to the sink's, so importing the same capture twice adds nothing. The clock is that
    of the arrivals (``received_ns``).
    """
    sequencer = Sequencer(
        source,
        can_ask=False,
        standings=sink.standings() if standings is None else standings,
        limits=limits,
    )
    progress = Progress()
    gathered: list[Entry] = []
    now_ns = 0

    def hand_over() -> None:
        sink.write(gathered)
        progress.count(gathered)
        gathered.clear()

    for number, arrival in enumerate(arrivals):
        gathered += sequencer.live(arrival)
        now_ns = max(now_ns, arrival.received_ns)
        if number % TICK_EVERY == 0:
            gathered += sequencer.tick(now_ns)
        if len(gathered) >= WRITE_BATCHES:
            hand_over()
    gathered += sequencer.finish(now_ns)
    hand_over()
    sink.flush()
    progress.other = sequencer.counts
    return progress
