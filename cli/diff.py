"""``kvbus diff``: do two logs tell the same order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from cli import options, tellings
from cli.exits import NO, OK, pipe_may_close
from cli.format import plain
from cli.given import refuse_all_but
from cli.json_line import json_line

EPILOG: Final = """\
What may be ignored: reorder-within-batch, reorder-within-event, batching, interleaving, parents,
tokens, groups, owners, reasons, restarts, losses. `--list` says what each means.

Exit code: 0 the same, 1 different, 2 it could not be found out.

Examples:

\b
  kvbus diff yesterday.duckdb today.duckdb
  kvbus diff tests/lru.baseline today.duckdb
  kvbus diff tests/lru.baseline today.duckdb --ignore batching,tokens
  kvbus diff a.duckdb b.duckdb --json | jq .engines[].reordered"""

First = Annotated[
    Path | None,
    typer.Argument(metavar="A", help="A log or a baseline: what is expected.", show_default=False),
]
Second = Annotated[
    Path | None, typer.Argument(metavar="B", help="A log or a baseline: what is there.", show_default=False)
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="WHAT,…", help="What is not to be looked at; may be repeated."),
]
ListTolerances = Annotated[bool, typer.Option("--list", help="Print what can be ignored; compare nothing.")]


def diff(
    context: typer.Context,
    a: First = None,
    b: Second = None,
    ignore: Ignore = None,
    list_tolerances: ListTolerances = False,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Compare two logs, or a baseline and a log, by order and not by clock: where they part, and what is
    missing, extra or reordered.

    Blocks are known by first sight, sources by the tiers they speak of. Logs may be recorded to meanwhile.
    """
    from kvbus.tolerance import tolerances

    if list_tolerances:
        refuse_all_but(
            context,
            ("list_tolerances", "as_json", "config"),
            "expected without --list, which compares nothing",
        )
        show_tolerances(as_json=options.settings(config, json=as_json).json)
        return
    from kvbus.comparison import compare
    from kvbus.side_by_side import as_object, lines

    chosen = tolerances(ignore or [])
    given = options.settings(config, json=as_json)
    first, second = tellings.both(a, b)
    found = compare(first, second, chosen)
    code = OK if found.same else NO
    with pipe_may_close(code):
        if given.json:
            told = {**as_object(found), "ignored": sorted(chosen)}
            sys.stdout.write(json_line(told))
        else:
            sys.stdout.writelines(plain(line) + "\n" for line in lines(found))
    raise typer.Exit(code)


def show_tolerances(*, as_json: bool) -> None:
    """A line for each thing that can be ignored."""
    from kvbus.tolerance import TOLERANCES

    with pipe_may_close():
        for name, means in TOLERANCES.items():
            line = json_line({"ignore": name, "means": means}) if as_json else f"{name:<21} {means}\n"
            sys.stdout.write(line)
