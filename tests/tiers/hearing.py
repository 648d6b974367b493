"""Ears for tests: a voice that keeps what it was given, and a reader of one engine's sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

from kvbus import Aggregator, Entry, Event, EventBatch, Feed, Notice, Received, Round, Subscriber

PATIENCE_S = 30.0


class Heard:
    """A voice into a list; ``error``: what it raises instead."""

    def __init__(self) -> None:
        self.said: list[tuple[float, list[Event]]] = []
        self.error: Exception | None = None

    def publish(self, events: Sequence[Event], *, ts: float) -> None:
        if self.error is not None:
            raise self.error
        self.said.append((ts, list(events)))


class Ear:
    """Reads ``feeds`` into rounds. No round is given up for being late: time passes where a test says so."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.entries: list[Entry] = []
        self.rounds: list[Round] = []
        self.merge = Aggregator([feed.name for feed in feeds])
        self._subscriber = Subscriber(feeds)

    def listen(self, timeout_s: float = 0.0) -> None:
        for item in self._subscriber.poll(timeout_s):
            if not isinstance(item, Notice):
                self.entries.append(item)
                self.rounds += self.merge.add(item)

    def listen_until(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not enough():
            assert time.monotonic() < deadline, "it never came"
            self.listen(0.02)

    def received(self, name: str) -> list[Received]:
        """One tier's batches, in its own order."""
        return [e for e in self.entries if isinstance(e, Received) and e.source.source == name]

    def replayed(self) -> int:
        return self._subscriber.counts()["replayed"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._subscriber.close()


def events_of(rounds: Sequence[Round]) -> list[Event]:
    """All events of the rounds, in the order in which the aggregator gives them."""
    batches = [e.batch for one in rounds for e in one.entries if isinstance(e, Received)]
    return [event for batch in batches if isinstance(batch, EventBatch) for event in batch.events]
