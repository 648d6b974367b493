"""``kvbus tail``: watch engines, live."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import typer

from cli import options
from cli.exits import pipe_may_close, reader_gone, stop_signals
from cli.filters import Filters, Hashes, Kinds, Media, RankFilter, filters
from cli.format import DIRECTIVES, compile_format
from cli.given import refuse
from cli.printer import Printer
from cli.render import human_line, painter
from cli.span import EndOfFeeds, LastBatches, start_of
from kvbus.config import Settings, faulty
from kvbus.engines import Engines, Item
from kvbus.feed import Notice
from kvbus.log import Entry
from kvbus.rounds import Round
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
  kvbus tail --engine e1=cpu@tcp://10.0.0.1:5557,fs@tcp://10.0.0.1:5567 --order emitted
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
Payload = Annotated[
    bool,
    typer.Option(
        "--payload/--no-payload",
        help="With --json: a batch's exact bytes, for import, or token lists. Default: bytes.",
        show_default=False,
    ),
]
Order = Annotated[
    Literal["contract", "emitted"],
    typer.Option(
        "--order",
        help="With --engine: a round's events by tier, as the engine drains them, or as they were made.",
    ),
]


def tail(
    context: typer.Context,
    endpoints: options.Endpoints = None,
    replay: options.Replays = None,
    topic: options.Topics = None,
    ranks: options.Ranks = None,
    bind: options.Bind = None,
    engines: options.Engines = None,
    lateness: options.Lateness = None,
    order: Order = "contract",
    start: From = None,
    count: Count = None,
    exit_at_end: options.Exit = False,
    as_json: options.Json = None,
    payload: Payload = True,
    template: Format = None,
    kind: Kinds = None,
    medium: Media = None,
    rank: RankFilter = None,
    block_hash: Hashes = None,
    idle: options.Idle = None,
    quiet: options.Quiet = None,
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
        tiers=engines,
        lateness=lateness,
        start=start,
        json=as_json,
        format=template,
        idle=idle,
        quiet=quiet,
    )
    feeds = options.feeds_of(given)
    if order == "emitted" and not given.engine:
        raise faulty(["--order emitted: expected together with an engine, whose tiers it puts in one order"])
    begin = start_of(given.start, has_replay=any(feed.replay for feed in feeds))
    if begin.last is not None and not any(feed.replay for feed in feeds):
        refuse(context, ("start",), "expected together with a --replay, which has the batches before")
    printer = printer_of(context, given, filters(kind, medium, rank, block_hash), count, payload=payload)
    with (
        stop_signals() as stop,
        Subscriber(feeds, origin=begin.origin, idle_s=given.idle or None) as subscriber,
        pipe_may_close(),
    ):
        names = [feed.name for feed in feeds]
        end = EndOfFeeds(names, now=time.monotonic()) if exit_at_end else None
        history = None if begin.last is None else LastBatches(names, begin.last)
        live = Live(subscriber, Engines(options.engines_of(given)), history)
        follow(live, printer, end=end, stop=stop, as_made=order == "emitted")


def printer_of(
    context: typer.Context, given: Settings, chosen: Filters, count: int | None, *, payload: bool
) -> Printer:
    """How these settings print events. Raises ``ConfigError`` for a bad template, and for what would have no
    effect.
    """
    import sys

    if not given.json:
        refuse(context, ("payload",), "expected together with --json, whose lines alone have room for it")
    if given.format is not None and given.json:
        raise faulty(["--format and --json: expected one of them"])
    cell = None
    if given.format is not None:
        cell = compile_format(given.format)
    elif not given.json:
        cell = human_line(painter(sys.stdout))
    return Printer(cell=cell, filters=chosen, limit=count, payload=payload, quiet=given.quiet)


class Live:
    """What engines say, in the order in which it is shown: owns what waits for its turn."""

    def __init__(self, subscriber: Subscriber, engines: Engines, history: LastBatches | None) -> None:
        self._subscriber = subscriber
        self._engines = engines
        self._history = history

    def poll(self, end: EndOfFeeds | None) -> Iterable[Item]:
        """What has come; ``end`` is told."""
        items = self._subscriber.poll(POLL_S)
        if end is not None:
            end.note(items, time.monotonic())
        if self._history is not None:
            items = list(self._history.take(items))
        return self._engines.take(items, now_ns=time.time_ns(), holding=self._subscriber.holding)

    def leave(self) -> Iterable[Item]:
        """What waits for other tiers, when nobody looks any longer: it has come and has its place."""
        return self._engines.finish()

    def finish(self) -> Iterable[Item]:
        """What still waits, when nothing more will come."""
        rest = self._engines.take(self._subscriber.finish(), now_ns=time.time_ns())
        return [*rest, *self._engines.finish()]


def follow(
    live: Live, printer: Printer, *, end: EndOfFeeds | None, stop: threading.Event, as_made: bool
) -> None:
    """Print what comes until told to stop, until the limit, or until the end where one is wanted.

    ``as_made``: the events of a round in the order in which they were made.
    """
    while not stop.is_set() and not reader_gone():
        if show(live.poll(end), printer, as_made=as_made):
            return
        if end is not None and end.reached(time.monotonic()):
            show(live.finish(), printer, as_made=as_made)
            for name in end.absent:
                printer.notice("disconnected", name, f"nobody answered at {name}")
            return
    show(live.leave(), printer, as_made=as_made)


def show(items: Iterable[Item], printer: Printer, *, as_made: bool) -> bool:
    """Entries and notices in their order; True when enough was shown."""
    run: list[Entry] = []
    for item in items:
        if isinstance(item, Round) and not as_made:
            run += item.entries
            continue
        if not isinstance(item, Notice | Round):
            run.append(item)
            continue
        if printer.show(run):
            return True
        run = []
        if isinstance(item, Round):
            if printer.show_as_made(item.entries):
                return True
        elif item.kind != "caught_up":
            printer.notice(item.kind, item.source, item.text)
    return printer.show(run)
