"""A publisher, a bad network and a reader, all of values: one seed is one history.

The publisher numbers batches, keeps the last few for replay, sometimes burns a number and sometimes dies
and starts again. The network loses, doubles, delays and reorders live messages, cuts replays short, loses
their end marker. The reader is the real ``Sequencer``. Time is a counter of nanoseconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch
from kvbus.log import Entry
from kvbus.sequencer import Sequencer
from kvbus.wire import PublisherInfo

STEP_NS = 10_000_000
_OVER = object()


@dataclass
class Weather:
    """Chances per message (or per replay), all 0 for a calm day."""

    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    burn: float = 0.0
    restart: float = 0.0
    cut_replay: float = 0.0
    lose_marker: float = 0.0
    hole_in_replay: float = 0.0
    slow_replay: float = 0.0
    clock_back: float = 0.0
    """The publisher's clock steps back by up to a second within a life."""
    skew_s: float = 0.0
    """The next life's clock may be that much behind (another host)."""
    slow_join: int = 0
    """Up to so many messages of a new life pass before the reader is connected again."""
    says_hello: bool = False
    least_life: int = 0
    """Messages that each life lasts at least."""
    hello_late: bool = False
    """Hello is answered some messages after the reconnect, as over real sockets."""
    topic_in_replay: bool = True


@dataclass
class SimulatedPublisher:
    """What an engine's publisher does: consecutive numbers from 0 in each life, the last ``keep`` batches
    replayable.
    """

    rng: random.Random
    keep: int = 10_000
    life: int = 0
    next_seq: int = 0
    clock_ns: int = 0
    kept: deque[tuple[int, bytes]] = field(default_factory=deque)
    said: list[tuple[int, int, bytes]] = field(default_factory=list)

    def publish(self, now_ns: int) -> tuple[int, bytes]:
        ts = (now_ns + self.clock_ns) / 1e9
        payload = msgspec.msgpack.encode((ts, [], 0, self.rng.getrandbits(32)))
        seq = self.next_seq
        self.next_seq += 1
        self.kept.append((seq, payload))
        while len(self.kept) > self.keep:
            self.kept.popleft()
        self.said.append((self.life, seq, payload))
        return seq, payload

    def burn(self) -> None:
        self.next_seq += 1

    def restart(self) -> None:
        self.life += 1
        self.next_seq = 0
        self.kept.clear()

    @property
    def info(self) -> PublisherInfo:
        first = self.kept[0][0] if self.kept else None
        return PublisherInfo(incarnation=f"life{self.life}", first_seq=first, next_seq=self.next_seq)


def _batch(payload: bytes) -> EventBatch:
    ts, _, rank, _ = msgspec.msgpack.decode(payload)
    return EventBatch(ts=ts, events=[], data_parallel_rank=rank)


def simulate(
    seed: int, weather: Weather, *, steps: int = 400, keep: int = 10_000, can_ask: bool = True
) -> tuple[SimulatedPublisher, list[Entry], Sequencer]:
    """Run one history to its end: the publisher, what was delivered, and the reader."""
    rng = random.Random(seed)
    publisher = SimulatedPublisher(rng, keep=keep)
    reader = Sequencer("sim", can_ask=can_ask, limits=Limits(reorder_ns=20 * STEP_NS))
    entries: list[Entry] = []
    delayed: list[tuple[int, Arrival]] = []
    now = 10_000_000_000
    deaf = born = 0
    greeting: int | None = None

    def arrival(seq: int, payload: bytes, *, replayed: bool = False) -> Arrival:
        topic = None if replayed and not weather.topic_in_replay else b"kv"
        return Arrival(topic, seq, payload, now, _batch(payload), "sim", replayed=replayed)

    def ask() -> Iterator[None]:
        """One request and its answer; a slow one lets live messages come in between, and outlives the
        publisher.
        """
        reader.asked()
        reply = [(seq, payload) for seq, payload in publisher.kept if seq >= (reader.ask_from or 0)]
        complete, info = rng.random() >= weather.lose_marker, publisher.info
        if rng.random() < weather.cut_replay:
            reply, complete = reply[: rng.randrange(len(reply) + 1)], False
        holes = set()
        if rng.random() < weather.hole_in_replay and len(reply) > 3:
            at = rng.randrange(1, len(reply) - 1)
            holes = set(range(at, at + rng.randrange(1, 4)))
        for place, (seq, payload) in enumerate(reply):
            if place not in holes:
                entries.extend(reader.replayed(arrival(seq, payload, replayed=True)))
                reader.check_integrity()
            if rng.random() < weather.slow_replay:
                yield
        said = info if weather.says_hello and complete else None
        entries.extend(reader.ended(complete=complete, info=said, now_ns=now))

    answer: Iterator[None] = iter(())

    def go_on() -> None:
        """Take the next piece of the answer under way; ask again when it is over and something is wanted."""
        nonlocal answer
        if next(answer, _OVER) is _OVER and reader.ask_from is not None:
            answer = ask()
            next(answer, None)

    for _ in range(steps):
        now += STEP_NS
        if rng.random() < weather.restart and len(publisher.said) >= born + weather.least_life:
            born = len(publisher.said)
            publisher.restart()
            publisher.clock_ns -= rng.randrange(int(weather.skew_s * 1e9) + 1)
            deaf = rng.randrange(weather.slow_join + 1)
            if weather.says_hello and not weather.hello_late:
                entries.extend(reader.hello(publisher.info))
            else:
                greeting = rng.randrange(1, 6) if weather.says_hello else None
                if not deaf:
                    reader.connected(now)
                    answer = iter(())  # the rim hangs up on a publisher that may be gone
        if rng.random() < weather.clock_back:
            publisher.clock_ns -= rng.randrange(1_000_000_000)
        if rng.random() < weather.burn:
            publisher.burn()
        seq, payload = publisher.publish(now)
        message = arrival(seq, payload)
        if deaf:
            deaf -= 1
            if not deaf:
                reader.connected(now)
                answer = iter(())
        elif rng.random() >= weather.lose:
            if rng.random() < weather.delay:
                delayed.append((now + rng.randrange(1, 5) * STEP_NS, message))
            else:
                entries.extend(reader.live(message))
            if rng.random() < weather.double:
                entries.extend(reader.live(message))
        for due, late in [item for item in delayed if item[0] <= now]:
            delayed.remove((due, late))
            entries.extend(reader.live(late))
        reader.check_integrity()
        if greeting is not None and not deaf:
            greeting -= 1
            if greeting == 0:
                greeting = None
                entries.extend(reader.hello(publisher.info))
        elif can_ask and not deaf and rng.random() < 0.3:
            go_on()
        entries.extend(reader.tick(now))
    for _ in range(30 + int(4000 * weather.slow_replay)):
        now += STEP_NS
        if can_ask:
            go_on()
        entries.extend(reader.tick(now))
    settled = reader.ask_from is None
    entries.extend(reader.finish(now + 10_000_000_000))
    reader.check_integrity()
    assert settled or not can_ask, "something is wanted for ever"
    return publisher, entries, reader
