"""``kvbus residency``: which blocks are in which tier, at any place of a log."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli import logs, options
from cli.exits import pipe_may_close
from cli.format import hex_hash, plain
from cli.json_line import json_line
from cli.stat import terminal
from cli.steps import At, hash_object

if TYPE_CHECKING:
    from kvbus.census import Shelved, Summed

EPILOG: Final = """Examples:

\b
  kvbus residency day.duckdb
  kvbus residency day.duckdb --at 2026-01-31T08:15:00Z
  kvbus residency day.duckdb --at 1200 --list | grep GPU | head
  kvbus residency day.duckdb --json | jq 'select(.medium == "CPU").blocks'"""

List = Annotated[bool, typer.Option("--list", help="A line a block that is there, instead of counts.")]


def residency(
    log: options.LogArgument = None,
    at: At = None,
    list_blocks: List = False,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Count the blocks in each tier of each source, or list them; now, or at any time of the log."""
    from kvbus.block_log import last_position
    from kvbus.census import Summed, census
    from kvbus.replay import point

    given = options.settings(config, log=log, json=as_json)
    moment = None if at is None else point(at)
    path = options.log_of(given)
    with closing(logs.reader(path)) as reader:
        last = last_position(reader, moment)
        shown = reader.batch_count() - 1 if last is None else last
        found = census(reader, last=last)
    with pipe_may_close():
        if list_blocks:
            for shelved in found:
                write_blocks(shelved, as_json=given.json)
        elif given.json:
            for one in map(Summed.of, found):
                sys.stdout.write(json_line({"position": shown, **msgspec.structs.asdict(one)}))
        else:
            show([Summed.of(one) for one in found], plain(str(path)), shown)


def write_blocks(shelved: Shelved, *, as_json: bool) -> None:
    """A line a block: medium, group, source, hash, copies."""
    medium, group = shelved.place.medium, shelved.place.group
    source = shelved.source.source
    for block, copies in zip(shelved.hashes.tolist(), shelved.copies.tolist(), strict=True):
        if as_json:
            told = {"medium": medium, "group": group, "source": source, "rank": shelved.source.said_rank}
            sys.stdout.write(json_line({**hash_object(block), **told, "copies": copies}))
        else:
            group_text = "-" if group is None else str(group)
            sys.stdout.write(f"{plain(medium)} {group_text} {plain(source)} {hex_hash(block)} {copies}\n")


def show(found: list[Summed], title: str, position: int) -> None:
    """A table for people."""
    from rich.table import Table

    after = f"after position {position}" if position >= 0 else "before the first batch"
    table = Table(
        "medium", "group", "source", "rank", "epoch", title=f"{title}: {after}", title_justify="left"
    )
    for column in ("blocks", "copies"):
        table.add_column(column, justify="right")
    table.add_column("counts")
    for one in found:
        table.add_row(
            plain(one.medium),
            "" if one.group is None else str(one.group),
            plain(one.source),
            "" if one.rank is None else str(one.rank),
            str(one.epoch),
            f"{one.blocks:,}",
            f"{one.copies:,}",
            "certain" if one.certain else "uncertain: something was missed",
        )
    console = terminal()
    with console.capture() as shown:  # rich would end the process itself where the reader has left
        console.print(table)
    sys.stdout.write(shown.get())
