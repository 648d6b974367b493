"""``kvbus stat``: what is in a log."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cli import logs, options
from cli.exits import pipe_may_close
from cli.format import plain
from cli.json_line import json_line
from cli.render import wants_colour

if TYPE_CHECKING:
    from rich.console import Console

    from kvbus.summary import SourceSummary, Summary

LOSSES_SHOWN: Final = 5

EPILOG: Final = """Examples:

\b
  kvbus stat day.duckdb
  kvbus stat day.duckdb --json | jq .resident"""


def stat(
    log: options.LogArgument = None, as_json: options.Json = None, config: options.Config = None
) -> None:
    """Count what a log holds: batches, events and blocks by kind and medium, what is resident, what is
    missing.

    Works while the log is being recorded to.
    """
    from kvbus.summary import summarize

    given = options.settings(config, log=log, json=as_json)
    path = options.log_of(given)
    with closing(logs.reader(path)) as reader:
        found = summarize(reader.entries())
    with pipe_may_close():
        if given.json:
            sys.stdout.write(json_line(found))
        else:
            console = terminal()
            with console.capture() as shown:  # rich would end the process itself where the reader has left
                show(found, plain(str(path)), console)
            sys.stdout.write(shown.get())


def terminal() -> Console:
    """stdout as rich sees it: coloured on a terminal only, and wide enough elsewhere that no cell is cut."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    return Console(file=sys.stdout, no_color=not wants_colour(sys.stdout), highlight=False, width=width)


def show(found: Summary, title: str, console: Console) -> None:
    """Tables for people."""
    from rich.table import Table

    console.print(f"{title}: {found.batches:,} batches", markup=False)
    events = Table("kind", "medium", title="events", title_justify="left")
    for column in ("events", "blocks", "resident"):
        events.add_column(column, justify="right")
    for kind, by_medium in found.events.items():
        media = by_medium if isinstance(by_medium, dict) else {"": by_medium}
        for medium, many in media.items():
            blocks = found.blocks.get(kind, {}).get(medium)
            resident = found.resident.get(medium, 0) if kind == "BlockStored" else None
            events.add_row(plain(kind), plain(medium), f"{many:,}", _number(blocks), _number(resident))
    console.print(events)
    sources = Table("source", "topic", "rank", "epoch", title="sources", title_justify="left")
    for column in ("first seq", "last seq", "batches", "missing"):
        sources.add_column(column, justify="right")
    for source in found.sources:
        for epoch in source.epochs:
            sources.add_row(
                plain(source.source),
                plain(source.topic),
                "" if source.rank is None else str(source.rank),
                str(epoch.epoch),
                str(epoch.first_seq),
                str(epoch.last_seq),
                f"{epoch.batches:,}",
                _number(_missing(source, epoch.epoch)),
            )
    console.print(sources)
    for line in trouble(found):
        console.print(line, markup=False, soft_wrap=True)


def trouble(found: Summary) -> list[str]:
    """What is not as it should be, a line each."""
    lines = []
    for source in found.sources:
        for loss in source.losses[:LOSSES_SHOWN]:
            span = f"seq {loss.first_seq} to {loss.last_seq}"
            lines.append(f"lost: {plain(source.source)} epoch {loss.epoch} {span}: {loss.reason}")
        if len(source.losses) > LOSSES_SHOWN:
            more = len(source.losses) - LOSSES_SHOWN
            lines.append(f"lost: {plain(source.source)}: {more} more ranges (--json has all)")
        lines += [
            f"set aside: {plain(source.source)}: {many:,} {reason}" for reason, many in source.strays.items()
        ]
    if found.undecoded:
        lines.append(f"unreadable: {found.undecoded:,} payloads or events; their bytes are kept")
    return lines


def _missing(source: SourceSummary, epoch: int) -> int | None:
    return sum(x.last_seq - x.first_seq + 1 for x in source.losses if x.epoch == epoch) or None


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
