"""``kvbus where``: which tiers hold a block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from cli import logs, options
from cli.exits import NO, OK, pipe_may_close
from cli.format import hex_hash, plain
from cli.json_line import json_line
from cli.render import Paint, painter, say, stream_name
from cli.steps import (
    At,
    HashArgument,
    clock,
    copies,
    hash_object,
    source_object,
    spot,
    step_object,
)

if TYPE_CHECKING:
    from kvbus.life import Holding

EPILOG: Final = """\
Exit code: 0 some tier holds it; 1 none does; 2 it could not be found out.

Examples:

\b
  kvbus where day.duckdb 0x9d3f02
  kvbus where day.duckdb 11906379838216735232 --at 1200
  kvbus where day.duckdb 9d3f02c1a47b5e60 --at 2026-01-31T08:15:00Z --json | jq .held"""


def where(
    log: Path,
    block_hash: HashArgument,
    at: At = None,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Which tiers of which sources hold a block, since when, and by which event.

    Where something was missed since, it is said: the tier may have lost it, or got it, meanwhile.
    """
    from kvbus.block_log import last_position, resolved
    from kvbus.life import lives
    from kvbus.replay import point

    given = options.settings(config, log=log, json=as_json)
    moment = None if at is None else point(at)
    with closing(logs.reader(log)) as reader:
        block = resolved(reader, block_hash)
        if block is None:
            say(f"no block of {plain(str(log))} begins so: {plain(block_hash)}")
            raise typer.Exit(NO)
        last = last_position(reader, moment)
        shown = reader.batch_count() - 1 if last is None else last
        found = lives(reader, [block], last=last).holdings(block)
    held = [one for one in found if one.copies]
    code = OK if held else NO
    with pipe_may_close(code):
        if given.json:
            sys.stdout.write(json_line(as_object(block, shown, found)))
        else:
            sys.stdout.writelines(line + "\n" for line in lines(block, shown, found, painter(sys.stdout)))
    raise typer.Exit(code)


def as_object(block: int, position: int, found: list[Holding]) -> dict[str, Any]:
    """``held``: the tiers that hold it; ``gone``: those that once did, or were told to let go of it."""
    told = [
        {
            **source_object(one.source),
            "medium": one.medium,
            "group": one.group,
            "copies": one.copies,
            "since": None if one.since is None else step_object(one.since),
            "doubt": one.doubt,
        }
        for one in found
    ]
    held, gone = ([one for one in told if bool(one["copies"]) is there] for there in (True, False))
    return {**hash_object(block), "position": position, "held": held, "gone": gone}


def lines(block: int, position: int, found: list[Holding], paint: Paint) -> Iterator[str]:
    """A line a tier, those that hold it first."""
    after = f"after position {position}" if position >= 0 else "before the first batch"
    held = sum(one.copies > 0 for one in found)
    tiers = "no tier" if not held else "1 tier" if held == 1 else f"{held} tiers"
    yield f"0x{hex_hash(block)} is in {tiers} {after}"
    for one in sorted(found, key=lambda one: not one.copies):
        yield _line(one, paint)


def _line(one: Holding, paint: Paint) -> str:
    from kvbus.rules.words import tier

    style = "BlockStored" if one.copies else "dim"
    text = f"  {paint(style, f'{plain(tier(one.medium, one.group)):<12} {copies(one.copies):<8}')} "
    if one.since is None:
        text += stream_name(one.source)
    else:
        since = one.since
        text += f"since position {since.position} {clock(since.received_ns)} {spot(since)}"
    return text + (f" (uncertain: {plain(one.doubt)})" if one.doubt else "")
