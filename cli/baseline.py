"""``kvbus baseline``: a log's order as text to commit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from cli import options, tellings
from cli.exits import pipe_may_close
from cli.given import refuse
from cli.json_line import json_line
from cli.render import say

EPILOG: Final = """\
A baseline has one line an event, no times and no names of machines; the same order gives the same
text. `kvbus diff BASELINE LOG` compares. FILE may be an older baseline, which is replaced; nothing
else is overwritten.

Examples:

\b
  kvbus baseline day.duckdb -o tests/lru.baseline
  kvbus baseline day.duckdb | head
  kvbus diff tests/lru.baseline today.duckdb"""

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to write. Default: stdout."),
]


def baseline(
    context: typer.Context,
    log: options.LogArgument = None,
    output: Output = None,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Write the order of a log as a small text, one line an event, that can be reviewed and committed.

    Works while the log is being recorded to. With --json it says what it wrote into FILE.
    """
    from kvbus.baseline import counted, written
    from kvbus.baseline_file import save

    given = options.settings(config, log=log, json=as_json)
    if output is None:
        refuse(context, ("as_json",), "says what was written into a file, and -o FILE names none")
    told = tellings.told(options.log_of(given))
    counts = counted(told)
    if counts["losses"]:
        say(f"holes are in the log, and so in the baseline, as lines `lost`: {counts['losses']:,}")
    with pipe_may_close():
        if output is None:
            sys.stdout.writelines(written(told))
            return
        save(output, told)
        if given.json:
            sys.stdout.write(json_line({"file": str(output), **counts}))
    say(f"{output}: {counts['events']:,} events of {counts['sources']:,} sources")
