"""``kvbus replay``: a log again, printed or published."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Final

import typer

from cli import logs, options
from cli.exits import pipe_may_close, reader_gone, stop_signals
from cli.filters import Hashes, Kinds, Media, RankFilter, filters
from cli.given import refuse
from cli.printer import Printer
from cli.republish import Ends, chosen_sources, publish_to
from cli.tail import Count, Format, Payload, printer_of
from kvbus.log import Entry
from kvbus.replay import play, point, speed, within

SHOW_ENTRIES: Final = 256
PUBLISHING: Final = ("replay_endpoint", "no_wait", "linger")
PRINTING: Final = ("kind", "medium", "rank", "block_hash", "template", "as_json", "payload")
"""Parameters that have an effect with ``--to`` alone, and without it alone."""

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
        max=options.SECONDS_MAX,
        metavar="SECONDS",
        help="With --to: stay so long after the last batch and the last replay request. Default: 2.",
    ),
]


def replay(
    context: typer.Context,
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
    quiet: options.Quiet = None,
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
    if to is None:
        refuse(context, PUBLISHING, "expected together with --to")
    else:
        refuse(context, PRINTING, "expected without --to, which publishes whole batches")
    factor = speed(given.speed)
    chosen = filters(kind, medium, rank, block_hash)
    printer = None if to is not None else printer_of(context, given, chosen, count, payload=payload)
    reader = logs.reader(options.log_of(given))
    with closing(reader), stop_signals() as stop:
        wanted = within(reader, first=first, until=end)
        if source:
            chosen_sources(reader, source)
        if printer is not None:
            mine = (entry for entry in wanted if not source or entry.source.source in source)
            show(mine, printer, factor, stop=stop)
            return
        assert to is not None
        streams = chosen_sources(reader, source or [])
        publish_to(Ends(to, replay_endpoint, no_wait), wanted, streams, given, stop=stop, limit=count)


def show(entries: Iterator[Entry], printer: Printer, factor: float | None, *, stop: threading.Event) -> None:
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
        play(entries, forward, factor=factor, pause=pause)
        flush()
