"""``kvbus history``: all that was said of one block."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import typer

from cli import logs, options
from cli.exits import NO, OK, pipe_may_close
from cli.format import hex_hash, plain
from cli.json_line import json_line
from cli.render import painter, say
from cli.steps import At, HashArgument, hash_object, step_line, step_object

EPILOG: Final = """\
Exit code: 0 something was said of it; 1 nothing was; 2 it could not be found out.

Examples:

\b
  kvbus history day.duckdb 0x9d3f02
  kvbus history day.duckdb -6540364235492816384 --at 1200
  kvbus history day.duckdb 9d3f02c1a47b5e60 --json | jq 'select(.what == "removed")'"""


def history(
    log: Path,
    block_hash: HashArgument,
    at: At = None,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """A block's life in order: stored where and by whom, removed when and why, and what clouds it.

    A line an event that names it; clears and restarts that took it; and the holes of sources that name it.
    """
    from kvbus.block_log import last_position, resolved
    from kvbus.life import lives
    from kvbus.replay import point

    given = options.settings(config, log=log, json=as_json)
    moment = None if at is None else point(at)
    with closing(logs.reader(log)) as reader:
        block = resolved(reader, block_hash)
        steps = (
            [] if block is None else lives(reader, [block], last=last_position(reader, moment)).steps(block)
        )
    if block is None or not steps:
        named = plain(block_hash) if block is None else f"0x{hex_hash(block)}"
        say(f"nothing in {plain(str(log))} speaks of block {named}")
        raise typer.Exit(NO)
    paint = painter(sys.stdout)
    with pipe_may_close(OK):
        for step in steps:
            if given.json:
                sys.stdout.write(json_line({**hash_object(block), **step_object(step)}))
            else:
                sys.stdout.write(step_line(step, paint) + "\n")
