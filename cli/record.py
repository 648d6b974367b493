"""``kvbus record``: write what engines say into a log, until told to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import logs, options
from cli.exits import NO, stop_signals
from cli.format import plain
from cli.given import refuse
from cli.render import say
from cli.status import Rate, status_line
from kvbus.config import FLUSH_S_MAX, FLUSH_S_MIN, Settings
from kvbus.feed import Feed, Notice
from kvbus.pipeline import Progress
from kvbus.pipeline import record as run
from kvbus.sink import Sink
from kvbus.subscriber import Subscriber

if TYPE_CHECKING:
    from kvbus.checking import Checking
    from kvbus.violation import Violation

EPILOG: Final = """\
SIGINT and SIGTERM stop it cleanly, with everything flushed. Started again on the same log it goes
on where it stood and asks the replay socket for what it missed.

Examples:

\b
  kvbus record tcp://10.0.0.1:5557 -o day.duckdb
  kvbus record tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558 --ranks 4 -o day.duckdb
  kvbus record --engine e1=cpu@tcp://10.0.0.1:5557,fs@tcp://10.0.0.1:5567 -o day.duckdb
  kvbus record tcp://10.0.0.1:5557 -o day.duckdb --check --capacity GPU=4096
  kvbus record tcp://10.0.0.1:5557 -o sample.jsonl --for 60
  kvbus record -o day.duckdb                # endpoints from kvbus.toml"""

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="LOG", help="Where to write: LOG.duckdb, or LOG.jsonl for JSON lines."
    ),
]
Flush = Annotated[
    float | None,
    typer.Option(
        "--flush",
        min=FLUSH_S_MIN,
        max=FLUSH_S_MAX,
        metavar="SECONDS",
        help="Longest time until a batch is durable. Default: 0.5.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option("--count", "-n", min=1, metavar="N", help="Stop when N batches have been recorded."),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Judge what is recorded, at once; a violation makes the exit code 1."),
]


def record(
    context: typer.Context,
    endpoints: options.Endpoints = None,
    output: Output = None,
    replay: options.Replays = None,
    topic: options.Topics = None,
    ranks: options.Ranks = None,
    bind: options.Bind = None,
    engines: options.Engines = None,
    lateness: options.Lateness = None,
    flush: Flush = None,
    count: Count = None,
    seconds: options.For = None,
    check: Check = False,
    capacity: options.Capacity = None,
    idle: options.Idle = None,
    quiet: options.Quiet = None,
    config: options.Config = None,
) -> None:
    """Record engines into a log: every batch byte for byte, in order, holes filled from the replay or
    written down.

    Other commands can read the log meanwhile. It ends with exit code 0 when stopped, 1 when --check found the
    order violated, 2 when it cannot go on.
    """
    if not check:
        refuse(context, ("capacity",), "expected together with --check, which judges by it")
    given = options.settings(
        config,
        endpoint=endpoints,
        log=output,
        replay=replay,
        topic=topic,
        ranks=ranks,
        bind=bind,
        tiers=engines,
        lateness=lateness,
        capacity=options.capacities(capacity),
        flush=flush,
        idle=idle,
        quiet=quiet,
    )
    feeds = options.feeds_of(given)
    path = options.log_of(given)
    # Half of the time to gather batches here, half for the log to gather its rows.
    with stop_signals() as stop, alarm(stop, seconds), logs.writer(path, flush_s=given.flush / 2) as sink:
        judge = judging(sink, path, given) if check else None
        done = _run(feeds, given, judge or sink, stop=stop, count=count)
        if judge is not None:
            judge.close()
    if not given.quiet:
        say(f"recorded {summary(done)} to {path}")
    if judge is not None:
        conclude(judge, feeds, path, quiet=given.quiet)


def judging(sink: Sink, path: Path, given: Settings) -> Checking:
    """The sink that judges before it hands on; what the log has already is judged first."""
    from kvbus.audit import Audit
    from kvbus.checking import Checking

    def tell(violation: Violation) -> None:
        if not given.quiet:
            say(f"VIOLATED {violation.rule} ({violation.id}): {plain(violation.because)}")

    engines = [engine.tiers for engine in options.engines_of(given)]
    auditor = Audit(capacities=given.capacity, engines=engines)
    with closing(logs.reader(path)) as log:
        return Checking(sink, auditor, log=log, on_violation=tell)


def conclude(judge: Checking, feeds: list[Feed], path: Path, *, quiet: bool) -> None:
    """Tell the verdict, which is about all feeds; leave with 1 where the order was violated."""
    from cli.watch import silence, unheard
    from kvbus.verdict import doubted

    doubts = [silence(name) for name in unheard(feeds, judge.sources)]
    verdict = doubted(judge.report(), doubts).verdict
    if not quiet:
        for doubt in doubts:
            say(plain(doubt))
        say(f"{verdict}, with {judge.violation_count:,} violations; `kvbus check {path}` tells all")
    if verdict == "VIOLATED":
        raise typer.Exit(NO)


def _run(
    feeds: list[Feed],
    given: Settings,
    sink: Sink,
    *,
    stop: threading.Event,
    count: int | None,
) -> Progress:
    rate = Rate()
    subscriber = Subscriber(feeds, standings=sink.standings(), idle_s=given.idle or None)
    with subscriber, status_line(quiet=given.quiet) as show:
        if not given.quiet:
            say(f"recording from {', '.join(subscriber.endpoints)}; Ctrl-C stops")

        def progressed(progress: Progress) -> None:
            show(lambda: f"{summary(progress)} · {rate.since(progress.batches):,.0f}/s")

        return run(
            subscriber,
            sink,
            stop=stop,
            engines=options.engines_of(given),
            flush_s=given.flush / 2,
            max_batches=count,
            on_progress=progressed,
            on_notice=None if given.quiet else notify,
        )


def notify(notice: Notice) -> None:
    """Say what is news: silence, a lost connection, a tier that is missing or cannot be one, a message that
    is none.
    """
    if notice.kind in ("idle", "disconnected", "malformed", "absent", "clock", "streams"):
        say(f"{notice.source}: {notice.text}")


def summary(progress: Progress) -> str:
    """Progress in words; only what there is."""
    parts = [f"{progress.batches:,} batches", f"{progress.events:,} events"]
    if progress.lost_batches:
        parts.append(f"{progress.lost_batches:,} batches lost")
    if progress.strays:
        parts.append(f"{progress.strays:,} set aside")
    if progress.undecodable:
        parts.append(f"{progress.undecodable:,} unreadable")
    if progress.waiting:
        parts.append(f"{progress.waiting:,} waiting")
    return ", ".join(parts)


@contextmanager
def alarm(stop: threading.Event, seconds: float | None) -> Iterator[None]:
    """Set ``stop`` after so many seconds; None: never."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
