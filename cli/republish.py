"""Publishing a log again: each stream on an address of its own, byte for byte, to the last byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from msgspec import Struct

from cli.render import say, stream_name
from kvbus.config import Settings, faulty
from kvbus.errors import LogError
from kvbus.log import Entry, LogReader, Received, SourceId
from kvbus.publisher import Publisher
from kvbus.replay import Played, play, sources, speed

WAIT_S: Final = 0.2
QUEUE: Final = 8192
ROOM_EVERY: Final = 64
HWM: Final = 1000
"""Messages that may wait for a subscriber: what is queued at the end is little."""
LINGER_S: Final = 60.0
STOPPED_LINGER_S: Final = 1.0


class Ends(Struct, frozen=True):
    """Where to publish, and whether to begin without a first subscriber."""

    to: str
    replay_endpoint: str | None
    no_wait: bool


def publish_to(
    ends: Ends,
    wanted: Iterator[Entry],
    chosen: Sequence[SourceId],
    given: Settings,
    *,
    stop: threading.Event,
    limit: int | None,
) -> None:
    """Publish the chosen streams. Raises ``EndpointError``; ``LogError`` when not everything got out."""
    with ExitStack() as stack:
        publishers = {
            stream: stack.enter_context(publisher(ends, index)) for index, stream in enumerate(chosen)
        }
        tell(publishers, given)
        if not ends.no_wait and not wait_for_all(list(publishers.values()), stop):
            return
        done = publish(wanted, publishers, given, stop=stop, limit=limit)
        if not done.stopped:
            stay(list(publishers.values()), given.linger, stop)
        unsent = let_go(list(publishers.values()), STOPPED_LINGER_S if stop.is_set() else LINGER_S)
    if not given.quiet:
        say(f"published {done.batches - unsent:,} batches{' (stopped)' if done.stopped else ''}")
    if unsent and not done.stopped:
        raise LogError(
            f"{unsent:,} batches did not get out within {LINGER_S:g} s",
            next_step="Look at the subscriber: it takes nothing.",
        )


def chosen_sources(reader: LogReader, names: Sequence[str]) -> list[SourceId]:
    """The streams of the log that are wanted, sorted. Raises ``ConfigError`` when there is none, or none of a
    name.
    """
    there = sources(reader)
    known = {stream.source for stream in there}
    if not known or not known.issuperset(names):
        missing = ", ".join(sorted(set(names) - known)) or "anything"
        have = ", ".join(sorted(known)) or "none"
        raise faulty([f"--source: the log has no batches of {missing}; sources with batches are: {have}"])
    return [stream for stream in there if not names or stream.source in names]


def publisher(ends: Ends, index: int) -> Publisher:
    """One stream's publisher; the ``index``-th takes the ``index``-th port. Raises ``EndpointError``."""
    return Publisher(
        ends.to,
        replay_endpoint=ends.replay_endpoint,
        data_parallel_rank=index,
        hwm=HWM,
        max_queue_size=QUEUE,
        when_full="wait",
    )


def tell(publishers: dict[SourceId, Publisher], given: Settings) -> None:
    if given.quiet:
        return
    for stream, one in publishers.items():
        beside = f", replay {one.replay_endpoint}" if one.replay_endpoint else ""
        say(f"{stream_name(stream)} → {one.endpoint}{beside}")


def wait_for_all(publishers: Sequence[Publisher], stop: threading.Event) -> bool:
    """Wait until each has a subscriber; False when told to stop before."""
    for one in publishers:
        while not one.wait_for_subscriber(WAIT_S):
            if stop.is_set():
                return False
    return True


def publish(
    wanted: Iterator[Entry],
    publishers: dict[SourceId, Publisher],
    given: Settings,
    *,
    stop: threading.Event,
    limit: int | None,
) -> Played:
    """Send every batch on its stream's publisher, in time and no faster than subscribers take them."""
    sent = 0

    def forward(entry: Entry) -> None:
        nonlocal sent
        if not isinstance(entry, Received):
            return
        one = publishers[entry.source]
        if sent % ROOM_EVERY == 0:
            while one.counts().waiting > QUEUE - ROOM_EVERY and not stop.wait(0.005):
                pass
        if not stop.is_set():
            one.forward(entry.source.topic, entry.seq, entry.payload)
            sent += 1

    def pause(seconds: float) -> bool:
        if limit is not None and sent >= limit:
            return True
        return stop.wait(seconds) if seconds > 0 else stop.is_set()

    mine = (entry for entry in wanted if entry.source in publishers)
    played = play(mine, forward, factor=speed(given.speed), pause=pause)
    return Played(sent, played.payload_bytes, stop.is_set())


def stay(publishers: Sequence[Publisher], linger_s: float, stop: threading.Event) -> None:
    """Stay until nothing was asked or sent for ``linger_s`` seconds.

    A subscriber that has not yet read what is in its socket loses it when we close: libzmq gives up a
    connection that is gone while its queue is full.
    """
    seen = None
    quiet_since = time.monotonic()
    while not stop.wait(min(0.05, linger_s)) and time.monotonic() - quiet_since < linger_s:
        served = [(one.counts().replies, one.counts().waiting) for one in publishers]
        if served != seen:
            seen, quiet_since = served, time.monotonic()


def let_go(publishers: Sequence[Publisher], linger_s: float) -> int:
    """Let every queued byte out and close; how many batches did not get out within ``linger_s``."""
    unsent = 0
    for one in publishers:
        one.close(linger_s)
        unsent += sum(one.counts().dropped.values())
    return unsent
