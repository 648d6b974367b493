"""``kvbus tail``: watch engines, live."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import typer

from cli import options
from cli.exits import pipe_may_close, reader_gone, stop_signals
from cli.filters import Filters, Hashes, Kinds, Media, RankFilter, filters
from cli.format import DIRECTIVES, compile_format
from cli.render import Printer, human_line, painter
from cli.span import EndOfFeeds, LastBatches, start_of
from kvbus.config import FeedSettings, Settings, faulty
from kvbus.feed import Feed, Notice
from kvbus.log import Entry
from kvbus.subscriber import Subscriber

POLL_S: Final = 0.2

EPILOG: Final = (
    "Directives of --format:\n\n\b\n"
    + "\n".join(f"  %{name}  {what}" for name, (what, _) in DIRECTIVES.items())
    + """

Examples:

\b
  kvbus tail tcp://10.0.0.1:5557
  kvbus tail tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558 --ranks 4
  kvbus tail tcp://10.0.0.1:5557 --kind removed --medium CPU --hash 0x1a2b
  kvbus tail tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558 --from beginning --exit --json > day.jsonl
  kvbus tail tcp://10.0.0.1:5557 --format '%t %S %s %k %m %h'
  kvbus tail --bind tcp://*:5557 -n 100"""
)

Format = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="TEMPLATE", help="A line per event from directives such as %s; see below."
    ),
]
Count = Annotated[
    int | None,
    typer.Option("--count", "-n", min=1, metavar="N", help="Leave after N lines of events."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="beginning|end|N|-N",
        help="Begin with all the replay has, with what comes now, at seq N, or with the last N batches. "
        "Default: beginning with --replay, else end.",
    ),
]
Exit = Annotated[
    bool, typer.Option("--exit", "-e", help="Leave at the end: replays through and nothing for 1 s.")
]
Payload = Annotated[
    bool,
    typer.Option(
        "--payload/--no-payload",
        help="With --json: a batch's exact bytes, for import, or token lists. Default: bytes.",
        show_default=False,
    ),
]
Quiet = Annotated[bool | None, typer.Option("--quiet/--no-quiet", "-q", help="No notices on stderr.")]


def tail(
    endpoints: options.Endpoints = None,
    replay: options.Replays = None,
    topic: options.Topics = None,
    ranks: options.Ranks = None,
    bind: options.Bind = None,
    start: From = None,
    count: Count = None,
    exit_at_end: Exit = False,
    as_json: options.Json = None,
    payload: Payload = True,
    template: Format = None,
    kind: Kinds = None,
    medium: Media = None,
    rank: RankFilter = None,
    block_hash: Hashes = None,
    idle: options.Idle = None,
    quiet: Quiet = None,
    config: options.Config = None,
) -> None:
    """Print what engines say about their KV cache, as they say it.

    A line per event; losses, restarts and silence are told on stderr, with --json as lines of their own.
    Watching never disturbs the engine: the only thing sent is the request for a replay.
    """
    given = options.settings(
        config,
        endpoint=endpoints,
        replay=replay,
        topic=topic,
        ranks=ranks,
        bind=bind,
        start=start,
        json=as_json,
        format=template,
        idle=idle,
        quiet=quiet,
    )
    told = options.feeds_of(given)
    begin = start_of(given.start, has_replay=any(feed.replay for _, feed in told))
    printer = printer_of(given, filters(kind, medium, rank, block_hash), count, payload=payload)
    with (
        stop_signals() as stop,
        subscriber_of(told, given, origin=begin.origin) as subscriber,
        pipe_may_close(),
    ):
        names = [name for name, _ in told]
        end = EndOfFeeds(names, now=time.monotonic()) if exit_at_end else None
        history = None if begin.last is None else LastBatches(names, begin.last)
        follow(subscriber, printer, history=history, end=end, stop=stop)


def printer_of(given: Settings, chosen: Filters, count: int | None, *, payload: bool) -> Printer:
    """How these settings print events. Raises ``ConfigError`` for a bad template."""
    import sys

    if given.format is not None and given.json:
        raise faulty(["--format and --json: expected one of them"])
    cell = None
    if given.format is not None:
        cell = compile_format(given.format)
    elif not given.json:
        cell = human_line(painter(sys.stdout))
    return Printer(cell=cell, filters=chosen, limit=count, payload=payload, quiet=given.quiet)


def subscriber_of(
    told: Sequence[tuple[str, FeedSettings]], given: Settings, *, origin: int | None
) -> Subscriber:
    """A subscriber to these feeds. Raises ``EndpointError``."""
    return Subscriber(feeds_from(told), origin=origin, idle_s=given.idle or None)


def feeds_from(told: Iterable[tuple[str, FeedSettings]]) -> list[Feed]:
    return [Feed(feed.endpoint, feed.replay, feed.topic, feed.bind, name) for name, feed in told]


def follow(
    subscriber: Subscriber,
    printer: Printer,
    *,
    history: LastBatches | None,
    end: EndOfFeeds | None,
    stop: threading.Event,
) -> None:
    """Print what comes until told to stop, until the limit, or until the end where one is wanted."""
    while not stop.is_set() and not reader_gone():
        items: Iterable[Entry | Notice] = subscriber.poll(POLL_S)
        if end is not None:
            end.note(items, time.monotonic())
        if history is not None:
            items = history.take(items)
        if show(items, printer):
            return
        if end is not None and end.reached(time.monotonic()):
            show(subscriber.finish(), printer)
            for name in end.absent:
                printer.notice("disconnected", name, f"nobody answered at {name}")
            return


def show(items: Iterable[Entry | Notice], printer: Printer) -> bool:
    """Entries and notices in their order; True when enough was shown."""
    run: list[Entry] = []
    for item in items:
        if not isinstance(item, Notice):
            run.append(item)
            continue
        if printer.show(run):
            return True
        run = []
        if item.kind != "caught_up":
            printer.notice(item.kind, item.source, item.text)
    return printer.show(run)
