"""The ``kvbus`` command: what there is, and nothing of how it is done."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from cli import (
    baseline,
    check,
    diff,
    export,
    history,
    import_,
    record,
    replay,
    residency,
    run,
    sql,
    stat,
    tail,
    where,
    why_removed,
)
from cli.exits import GuardedGroup

EPILOG: Final = """\
Settings may also stand in kvbus.toml and in KVBUS_* variables; flags win. Exit codes: 0 it holds or
is done, 1 the answer is no, 2 it could not be found out.

Examples:

\b
  kvbus tail tcp://10.0.0.1:5557
  kvbus record tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558 -o day.duckdb
  kvbus stat day.duckdb
  kvbus check day.duckdb
  kvbus replay day.duckdb --to 'tcp://*:5557'
  kvbus run --record run.duckdb"""

DASHED: Final = {"ignore_unknown_options": True}
"""For commands whose arguments may begin with a dash: negative numbers, comments of SQL."""

app = typer.Typer(
    cls=GuardedGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """``--version``: name and version on stdout."""
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"kvbus {version('kvbus')}")
        except PackageNotFoundError:  # run from a checkout that is not installed
            print("kvbus 0.0+unknown")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and leave.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors. Also: KVBUS_DEBUG=1.")]


@app.callback()
def kvbus(version: Version = False, debug: Debug = False) -> None:
    """KV-cache events of LLM engines: watched, recorded in order, replayed, judged."""


app.command(epilog=tail.EPILOG)(tail.tail)
app.command(epilog=record.EPILOG)(record.record)
app.command(epilog=replay.EPILOG)(replay.replay)
app.command(epilog=stat.EPILOG)(stat.stat)
app.command(epilog=check.EPILOG)(check.check)
app.command(epilog=sql.EPILOG, context_settings=DASHED)(sql.sql)
app.command(epilog=diff.EPILOG)(diff.diff)
app.command(epilog=baseline.EPILOG)(baseline.baseline)
app.command("import", epilog=import_.EPILOG)(import_.import_)
app.command(epilog=export.EPILOG)(export.export)
app.command(epilog=run.EPILOG)(run.run)
app.command(epilog=where.EPILOG, context_settings=DASHED)(where.where)
app.command(epilog=history.EPILOG, context_settings=DASHED)(history.history)
app.command(epilog=residency.EPILOG)(residency.residency)
app.command("why-removed", epilog=why_removed.EPILOG)(why_removed.why_removed)
