"""``kvbus replay``: a log again, printed or published."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Annotated, Final

import typer
from msgspec import Struct

from cli import logs, options
from cli.exits import pipe_may_close, reader_gone, stop_signals
from cli.filters import Hashes, Kinds, Media, RankFilter, filters
from cli.render import Printer, say, stream_name
from cli.tail import Count, Format, Payload, Quiet, printer_of
from kvbus.config import Settings, faulty
from kvbus.errors import LogError
from kvbus.log import Entry, LogReader, Received, SourceId
from kvbus.publisher import Publisher
from kvbus.replay import Played, play, point, sources, speed, within

SHOW_ENTRIES: Final = 256
WAIT_S: Final = 0.2
QUEUE: Final = 8192
ROOM_EVERY: Final = 64
HWM: Final = 1000
"""Messages that may wait for a subscriber: what is queued at the end is little."""
LINGER_S: Final = 60.0
STOPPED_LINGER_S: Final = 1.0

EPILOG: Final = """\
With --to, each stream of the log gets a port of its own: the given one, the next, and so on (ipc: a
suffix), in the order that is told on stderr. --from is included, --until is not.

Examples:

\b
  kvbus replay day.duckdb
  kvbus replay day.duckdb --kind removed --from 1200 --until 1300
  kvbus replay day.duckdb --json | jq .seq
  kvbus replay day.duckdb --to 'tcp://*:5557' --replay-endpoint 'tcp://*:5558'
  kvbus replay day.duckdb --to 'tcp://*:5557' --speed 1 --from 2026-01-31T08:15 --until 2026-01-31T08:20"""

From = Annotated[
    str | None, typer.Option("--from", metavar="POSITION|TIME", help="Begin at this position or time.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="POSITION|TIME", help="End before this position or time.")
]
Pace = Annotated[
    str | None,
    typer.Option(
        "--speed",
        metavar="1|10|max",
        help="1: as fast as it was received; 10: ten times that. Default: max.",
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="ENDPOINT", help="Publish here, byte for byte, instead of printing."),
]
ReplayEndpoint = Annotated[
    str | None,
    typer.Option(
        "--replay-endpoint", metavar="ENDPOINT", help="With --to: answer replay requests here, as engines do."
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="With --to: begin without a first subscriber.")]
Linger = Annotated[
    float | None,
    typer.Option(
        "--linger",
        min=0,
        metavar="SECONDS",
        help="With --replay-endpoint: stay so long after the last request. Default: 2.",
    ),
]


def replay(
    log: options.LogArgument = None,
    to: To = None,
    replay_endpoint: ReplayEndpoint = None,
    no_wait: NoWait = False,
    pace: Pace = None,
    start: From = None,
    until: Until = None,
    source: options.SourceFilter = None,
    linger: Linger = None,
    count: Count = None,
    as_json: options.Json = None,
    payload: Payload = True,
    template: Format = None,
    kind: Kinds = None,
    medium: Media = None,
    rank: RankFilter = None,
    block_hash: Hashes = None,
    quiet: Quiet = None,
    config: options.Config = None,
) -> None:
    """Print a log as tail would have, or publish it again with --to.

    Published, batches keep their bytes, topics, seqs and order; it begins when a first subscriber has
    come (unless --no-wait) and leaves when everything is out.
    """
    given = options.settings(
        config, log=log, json=as_json, format=template, speed=pace, linger=linger, quiet=quiet
    )
    first = None if start is None else point(start)
    end = None if until is None else point(until)
    if to is None and (replay_endpoint is not None or no_wait):
        raise faulty(["--replay-endpoint, --no-wait: expected together with --to"])
    chosen = filters(kind, medium, rank, block_hash)
    printer = None if to is not None else printer_of(given, chosen, count, payload=payload)
    reader = logs.reader(options.log_of(given))
    with closing(reader), stop_signals() as stop:
        wanted = within(reader, first=first, until=end)
        if printer is not None:
            mine = (entry for entry in wanted if not source or entry.source.source in source)
            show(mine, printer, given, stop=stop)
            return
        assert to is not None
        streams = chosen_sources(reader, source or [])
        publish_to(Ends(to, replay_endpoint, no_wait), wanted, streams, given, stop=stop, limit=count)


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
        if ends.replay_endpoint is not None and not done.stopped:
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
    """The streams of the log that are wanted, sorted. Raises ``ConfigError`` when there is none."""
    there = sources(reader)
    chosen = [stream for stream in there if not names or stream.source in names]
    if not chosen:
        have = ", ".join(sorted({stream.source for stream in there})) or "none"
        raise faulty([f"--source: nothing to replay; sources with batches are: {have}"])
    return chosen


def show(entries: Iterator[Entry], printer: Printer, given: Settings, *, stop: threading.Event) -> None:
    """Print the log: batches and, between them, what is missing and where epochs begin."""
    held: list[Entry] = []
    enough = False

    def flush() -> None:
        nonlocal enough
        enough = printer.show(held) or reader_gone()
        held.clear()

    def pause(seconds: float) -> bool:
        if seconds > 0:
            flush()
        return enough or (stop.wait(seconds) if seconds > 0 else stop.is_set())

    def forward(entry: Entry) -> None:
        held.append(entry)
        if len(held) >= SHOW_ENTRIES:
            flush()

    with pipe_may_close():
        play(entries, forward, factor=speed(given.speed), pause=pause)
        flush()


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
    """Answer replay requests until nothing was asked or sent for ``linger_s`` seconds."""
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
