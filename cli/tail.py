"""``kvbus tail``: watch engines, live."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer
from msgspec import Struct

from cli import options
from cli.exits import pipe_may_close, reader_gone, stop_signals
from cli.filters import Filters, Hashes, Kinds, Media, RankFilter, filters
from cli.format import DIRECTIVES, compile_format
from cli.render import Printer, human_line, painter
from kvbus.config import FeedSettings, Settings, faulty
from kvbus.link import Feed, Notice
from kvbus.log import Entry, Received, SourceId
from kvbus.subscriber import Subscriber

POLL_S: Final = 0.2
QUIET_S: Final = 1.0
"""``--exit``: nothing for so long, with every replay through, is the end."""
ABSENT_S: Final = 5.0
"""``--exit``: an endpoint that nobody answered at for so long has nothing."""

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


class Start(Struct, frozen=True):
    """``origin``: first seq wanted (None: what comes now). ``last``: only so many of the batches before."""

    origin: int | None
    last: int | None = None


def start_of(text: str | None, *, has_replay: bool) -> Start:
    """What ``--from`` means. Raises ``ConfigError``."""
    if text is None:
        text = "beginning" if has_replay else "end"
    if text == "beginning":
        return Start(0)
    if text == "end":
        return Start(None)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or int(digits) >= 1 << 63:
        raise faulty([f"--from: expected beginning, end, a seq, or -N for the last N batches, got {text!r}"])
    return Start(0, int(digits)) if text.startswith("-") else Start(int(text))


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


class EndOfFeeds:
    """Whether everything that is there has been had: every feed caught up, and then ``QUIET_S`` of nothing.

    A feed where nobody answers for ``ABSENT_S`` has nothing.
    """

    def __init__(self, names: Iterable[str], *, now: float) -> None:
        self._missing: set[tuple[str, str]] = {
            (name, kind) for name in names for kind in ("connected", "caught_up")
        }
        self._began = now
        self._last = now

    def note(self, items: Iterable[Entry | Notice], now: float) -> None:
        for item in items:
            if not isinstance(item, Notice):
                self._last = now
            elif (met := (item.source, item.kind)) in self._missing:
                self._missing.discard(met)
                self._last = now

    def reached(self, now: float) -> bool:
        return now - self._last >= (ABSENT_S if self._missing else QUIET_S)


class LastBatches:
    """Holds what was there before, then gives the last ``last`` batches of each stream."""

    def __init__(self, names: Iterable[str], last: int) -> None:
        self._open = set(names)
        self._last = last
        self._held: dict[SourceId, deque[tuple[int, Entry]]] = {}
        self._batches: dict[SourceId, int] = {}
        self._taken = 0

    def take(self, items: Iterable[Entry | Notice]) -> Iterator[Entry | Notice]:
        for item in items:
            if isinstance(item, Notice):
                if item.kind == "caught_up":
                    yield from self._release(item.source)
                yield item
            elif item.source.source in self._open:
                self._hold(item)
            else:
                yield item

    def _hold(self, entry: Entry) -> None:
        held = self._held.setdefault(entry.source, deque())
        held.append((self._taken, entry))
        self._taken += 1
        self._batches[entry.source] = self._batches.get(entry.source, 0) + isinstance(entry, Received)
        while self._batches[entry.source] > self._last:
            self._batches[entry.source] -= isinstance(held.popleft()[1], Received)

    def _release(self, name: str) -> Iterator[Entry]:
        self._open.discard(name)
        mine = [source for source in self._held if source.source == name]
        for _, entry in sorted(
            (pair for source in mine for pair in self._held.pop(source)), key=lambda pair: pair[0]
        ):
            yield entry


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
