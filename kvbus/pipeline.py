"""The only place that joins parts: arrivals in, entries through, a sink at the end.

``record`` runs a subscriber into a sink until told to stop; ``ingest`` runs a finished series of arrivals
(a capture) through the same ordering. Neither knows what a sink is made of.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from kvbus.arrival import Arrival, Limits
from kvbus.engines import Engine, Engines, Item
from kvbus.events import EventBatch
from kvbus.feed import Notice
from kvbus.log import Entry, Loss, Received, SourceId, Standing, Stray
from kvbus.rounds import Round
from kvbus.sequencer import Sequencer
from kvbus.sink import Sink
from kvbus.subscriber import Subscriber

WRITE_BATCHES: Final = 256
"""Entries handed to the sink at once when more come than ``flush_s`` lets gather: columns of this height
stay in cache.
"""
GRACE_S: Final = 3.0
TICK_EVERY: Final = 64


class Progress(Struct):
    """What a run has done so far. ``waiting``: batches held back behind a hole or for another tier;
    ``other``: see ``Subscriber.counts`` and ``Aggregator.counts``.
    """

    batches: int = 0
    events: int = 0
    payload_bytes: int = 0
    losses: int = 0
    lost_batches: int = 0
    strays: int = 0
    undecodable: int = 0
    waiting: int = 0
    other: Counter[str] = field(default_factory=Counter)

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
    engines: Sequence[Engine] = (),
    flush_s: float = 0.5,
    max_batches: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_notice: Callable[[Notice], None] | None = None,
) -> Progress:
    """Write what ``subscriber`` delivers to ``sink`` until ``stop`` is set or ``max_batches`` are in; then
    flush.

    Feeds that are tiers of one of ``engines`` are written round by round, in the order in which their
    composing manager drained them. An entry is handed to the sink at most ``flush_s`` seconds after it was
    delivered (its round complete), and durable as long again after that at the latest. On stopping, holes
    whose replay is under way and shares that a round waits for get ``GRACE_S`` seconds; what is still missing
    then is declared lost or left out, so that what waited for it is kept. Raises what the sink raises
    (``LogError``); everything it had made durable stays.
    """
    merged = Engines(engines, standings=sink.standings() if engines else None)
    recording = _Recording(subscriber, merged, sink, flush_s=flush_s, max_batches=max_batches)
    recording.on_progress, recording.on_notice = on_progress, on_notice
    with patient_gc():
        return recording.run(stop)


@contextlib.contextmanager
def patient_gc() -> Iterator[None]:
    """Let the cyclic garbage collector look less often: entries make no cycles, and looking through all that
    wait costs a tenth of the time of recording them."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Recording:
    """One run of ``record``: what was delivered and not yet handed over, and since when."""

    def __init__(
        self,
        subscriber: Subscriber,
        engines: Engines,
        sink: Sink,
        *,
        flush_s: float,
        max_batches: int | None,
    ) -> None:
        self.on_progress: Callable[[Progress], None] | None = None
        self.on_notice: Callable[[Notice], None] | None = None
        self._subscriber = subscriber
        self._engines = engines
        self._sink = sink
        self._flush_s = flush_s
        self._max_batches = max_batches
        self._progress = Progress()
        self._gathered: list[Entry] = []
        self._delivered = 0
        self._oldest = 0.0
        self._written = 0.0

    def run(self, stop: threading.Event) -> Progress:
        while not stop.is_set() and not self._full():
            self._gather(min(self._flush_s, 0.1))
        stopped_ns = time.time_ns()
        deadline = time.monotonic() + GRACE_S
        while self._is_owed(stopped_ns) and time.monotonic() < deadline and not self._full():
            self._gather(0.02)
        self._deliver(self._engines.take(self._subscriber.finish(), now_ns=time.time_ns()))
        self._deliver(self._engines.finish(until_ns=stopped_ns))
        self._hand_over()
        self._sink.flush()
        return self._progress

    def _full(self) -> bool:
        return self._max_batches is not None and self._delivered >= self._max_batches

    def _is_owed(self, until_ns: int) -> bool:
        """Whether something may still come for what waits since then."""
        return bool(self._subscriber.waiting) or self._engines.expects(until_ns)

    def _deliver(self, items: Iterable[Item]) -> None:
        """Gather entries in their order, up to the last batch that is wanted."""
        for item in items:
            if self._full():
                return
            if type(item) is Received:
                self._delivered += 1
                self._gathered.append(item)
            elif isinstance(item, Round):
                self._deliver(item.entries)
            elif not isinstance(item, Notice):
                self._gathered.append(item)
            elif self.on_notice is not None:
                self.on_notice(item)

    def _gather(self, timeout_s: float) -> None:
        items = self._subscriber.poll(timeout_s)
        self._deliver(self._engines.take(items, now_ns=time.time_ns(), holding=self._subscriber.holding))
        now = time.monotonic()
        if not self._gathered:
            self._oldest = now
        if len(self._gathered) >= WRITE_BATCHES or now - self._oldest >= self._flush_s:
            self._hand_over()
            self._oldest = self._written = now
        elif self._written and not self._gathered and now - self._written >= self._flush_s:
            # A busy sink sees to that itself; the end of a burst would wait for the next one.
            self._sink.flush()
            self._written = 0.0

    def _hand_over(self) -> None:
        progress = self._progress
        if self._gathered:
            self._sink.write(self._gathered)
            progress.count(self._gathered)
            self._gathered.clear()
        progress.waiting = self._subscriber.waiting + self._engines.waiting
        progress.other = self._subscriber.counts() + self._engines.counts()
        if self.on_progress is not None:
            self.on_progress(progress)


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
    progress = keep(_ordered(arrivals, sequencer), sink)
    progress.other = sequencer.counts
    return progress


def keep(entries: Iterable[Entry], sink: Sink) -> Progress:
    """Write entries that are in order already, and return when they are durable."""
    progress = Progress()
    gathered: list[Entry] = []

    def hand_over() -> None:
        sink.write(gathered)
        progress.count(gathered)
        gathered.clear()

    for entry in entries:
        gathered.append(entry)
        if len(gathered) >= WRITE_BATCHES:
            hand_over()
    hand_over()
    sink.flush()
    return progress


def _ordered(arrivals: Iterable[Arrival], sequencer: Sequencer) -> Iterator[Entry]:
    """A finished series of arrivals in order, on the arrivals' own clock."""
    now_ns = 0
    for number, arrival in enumerate(arrivals):
        yield from sequencer.live(arrival)
        now_ns = max(now_ns, arrival.received_ns)
        if number % TICK_EVERY == 0:
            yield from sequencer.tick(now_ns)
    yield from sequencer.finish(now_ns)
