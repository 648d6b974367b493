"""``kvbus why-removed``: why blocks left."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli import logs, options
from cli.exits import pipe_may_close
from cli.format import hex_hash, plain
from cli.json_line import json_line
from cli.render import stream_name
from cli.stat import terminal
from cli.steps import clock, source_object

if TYPE_CHECKING:
    from kvbus.removals import Removed, Why

EPILOG: Final = """\
A reason that the event gives is believed ("said"); else it is inferred from who holds the block then.

Examples:

\b
  kvbus why-removed day.duckdb
  kvbus why-removed day.duckdb --list | grep corrupt
  kvbus why-removed day.duckdb --json | jq 'select(.why == "demoted").blocks'"""

List = Annotated[bool, typer.Option("--list", help="A line a removed block, instead of counts.")]


def why_removed(
    log: options.LogArgument = None,
    list_removed: List = False,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Sort every removal of a log: evicted, demoted, reset, corrupt, deleted, copy or unknown."""
    from kvbus.removals import listed, removals

    given = options.settings(config, log=log, json=as_json)
    path = options.log_of(given)
    with closing(logs.reader(path)) as reader, pipe_may_close():
        if list_removed:
            for one in listed(reader):
                sys.stdout.write(json_line(removed_object(one)) if given.json else removed_line(one) + "\n")
            return
        counts = removals(reader)
        if given.json:
            for why, blocks in ranked(counts):
                sys.stdout.write(json_line({**why_object(why), "blocks": blocks}))
        else:
            show(counts, plain(str(path)))


def ranked(counts: Mapping[Why, int]) -> list[tuple[Why, int]]:
    """By source, medium and class."""
    return sorted(
        counts.items(),
        key=lambda item: (item[0].source, item[0].medium, item[0].why, item[0].how, item[0].reason or ""),
    )


def why_object(why: Why) -> dict[str, Any]:
    return {
        **source_object(why.source),
        "medium": why.medium,
        "why": why.why,
        "how": why.how,
        "reason": why.reason,
    }


def removed_object(one: Removed) -> dict[str, Any]:
    block = {"hash": one.block, "hex": None if one.block is None else hex_hash(one.block)}
    place = {"epoch": one.epoch, "position": one.position, "seq": one.seq, "event": one.event}
    told = {"received_ns": one.received_ns, "group": one.group, "blocks": one.blocks}
    return {**block, **why_object(one.because), **place, **told}


def removed_line(one: Removed) -> str:
    """Position, time, stream, medium, hash, class, how it is known."""
    why = one.because
    block = hex_hash(one.block) if one.block is not None else f"{one.blocks:,} blocks"
    text = f"{one.position:>8} {clock(one.received_ns)} {stream_name(why.source)} #{one.seq}.{one.event}"
    text += f" {plain(why.medium)} {block} {why.why} {why.how}"
    return text + (f" {plain(why.reason)}" if why.reason else "")


def show(counts: Mapping[Why, int], title: str) -> None:
    """A table for people."""
    from rich.table import Table

    table = Table("source", "medium", "why", "how", "reason", title=title, title_justify="left")
    table.add_column("blocks", justify="right")
    for why, blocks in ranked(counts):
        reason = "" if why.reason is None else plain(why.reason)
        table.add_row(stream_name(why.source), plain(why.medium), why.why, why.how, reason, f"{blocks:,}")
    console = terminal()
    with console.capture() as shown:  # rich would end the process itself where the reader has left
        console.print(table)
    sys.stdout.write(shown.get())
