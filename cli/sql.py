"""``kvbus sql``: ask a log in SQL."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from cli import logs, options
from cli.entry import COULD_NOT
from cli.exits import finish, pipe_may_close
from cli.format import plain
from cli.given import refuse
from cli.render import say
from cli.stat import terminal
from kvbus.errors import ConfigError
from sinks.spilled import remove_spilled

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.duckdb import DuckDBReader

TABLE_ROWS: Final = 1000
"""Rows that are laid out as a table, which waits for all of them; the other forms stream without an end."""

EPILOG: Final = """\
Tables and views: docs/log-schema.md, or "SHOW TABLES" and "DESCRIBE lifetimes". Nothing but the log
can be read, and nothing be written.

Examples:

\b
  kvbus sql day.duckdb "SELECT kind, medium, count(*) FROM events GROUP BY ALL ORDER BY ALL"
  kvbus sql day.duckdb "SELECT medium, count(*), median(seconds) FROM lifetimes GROUP BY ALL"
  kvbus sql day.duckdb "SELECT * FROM violations ORDER BY number" --json
  kvbus sql day.duckdb "SELECT * FROM residency" --csv > resident.csv
  kvbus sql day.duckdb - < question.sql           # however long, with comments"""

What = Annotated[
    list[str],
    typer.Argument(metavar="[LOG] SQL", help="The log (default: the setting log), and one SELECT; -: stdin."),
]
Csv = Annotated[bool, typer.Option("--csv", help="Comma-separated values, with a line of names.")]

Row = Sequence[Any]


def sql(
    context: typer.Context,
    what: What,
    as_json: options.Json = None,
    as_csv: Csv = False,
    config: options.Config = None,
) -> None:
    """Answer one SELECT over the tables and views of a log: as a table, as --json (an object a line) or as
    --csv.

    Works while the log is being recorded to, and sees it as it was when the question was asked.
    """
    log, question = _asked(what)
    if as_csv:
        refuse(context, ("as_json",), "expected without --csv: an answer has one form")
    given = options.settings(config, log=log, json=as_json)
    with closing(_opened(options.log_of(given))) as reader, _ended_at_once(reader.path), pipe_may_close():
        batches = _stoppable(reader.query(question))
        first = next(batches, None)
        names = _apart(first.schema.names if first is not None else reader.column_names(question))
        rows = _rows(batches if first is None else chain([first], batches))
        if as_csv:
            _write_csv(names, rows)
        elif given.json:
            _write_json(names, rows)
        else:
            _write_table(names, rows)


def _asked(what: list[str]) -> tuple[Path | None, str]:
    """The log, None where the settings name it, and the question. It may begin as an option does, with a
    comment; what begins so and is a single word is an option that there is not.
    """
    for word in what:
        if word.startswith("-") and word != "-" and len(word.split()) == 1:
            raise ConfigError(
                f"there is no option {word}", next_step="`kvbus sql --help` tells what there is."
            )
    *log, question = what
    if len(log) > 1:
        raise ConfigError("that is more than a log and a question", next_step="Put quotes around the SQL.")
    if log and not log[0]:
        raise ConfigError("the log has an empty name", next_step="Name the file, or leave it out.")
    if not log and _is_there(question):
        raise ConfigError(f"{question}: and the SQL?", next_step='Add it, in quotes: "SELECT ...".')
    return (Path(log[0]) if log else None), sys.stdin.read() if question == "-" else question


def _is_there(name: str) -> bool:
    """Whether it is the name of something; a question may be longer than any name."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _opened(path: Path) -> DuckDBReader:
    """The log for questions. Raises ``LogError``; ``ConfigError`` for JSON lines, by whatever name."""
    if not logs.is_file(path):
        raise logs.missing(path)
    if logs.is_jsonl(path) or logs.begins_as_jsonl(path):
        raise ConfigError(
            f"{path} is JSON lines, which know no SQL",
            next_step=f"Bring it into a DuckDB log: kvbus import {quote(str(path))} -o "
            f"{quote(path.name + '.duckdb')}.",
        )
    from sinks.duckdb import open_log

    return open_log(path)


def _stoppable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, fetched by another thread: while DuckDB works, Python answers no signal in the one that
    called it. Nobody waits for what it still fetches when this ends.
    """
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        while (batch := pool.submit(next, batches, None).result()) is not None:
            yield batch
    finally:
        pool.shutdown(wait=False)


@contextmanager
def _ended_at_once(log: Path) -> Iterator[None]:
    """An interruption in here ends the process, as nothing else would end a query soon, and removes what it
    has laid aside.
    """
    try:
        yield
    except KeyboardInterrupt:
        remove_spilled(log)
        finish(COULD_NOT)


def _apart(names: Iterable[str]) -> list[str]:
    """Names of columns, each there once: objects could hold only one of two alike."""
    found: list[str] = []
    for name in names:
        number, one = 1, name
        while one in found:
            number += 1
            one = f"{name}_{number}"
        found.append(one)
    return found


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _write_json(names: list[str], rows: Iterator[Row]) -> None:
    encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
    for row in rows:
        sys.stdout.write(encode(dict(zip(names, row, strict=True))).decode() + "\n")


def _write_csv(names: list[str], rows: Iterator[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([("" if value is None else _text(value)) for value in row] for row in rows)


def _write_table(names: list[str], rows: Iterator[Row]) -> None:
    from rich.table import Table

    shown = list(islice(rows, TABLE_ROWS))
    table = Table(title_justify="left")
    for number, name in enumerate(names):
        is_number = any(isinstance(row[number], int | float) for row in shown)
        table.add_column(plain(name), justify="right" if is_number else "left")
    for row in shown:
        table.add_row(*("NULL" if value is None else plain(_text(value)) for value in row))
    console = terminal()
    with console.capture() as text:
        console.print(table, markup=False)
    sys.stdout.write(text.get())
    if next(rows, None) is not None:
        say(f"only the first {TABLE_ROWS:,} rows: --json and --csv print all")


def _text(value: object) -> str:
    """A value in a cell: bytes as hexadecimal digits, what has parts as JSON."""
    match value:
        case str():
            return value
        case bytes():
            return value.hex()
        case list() | dict() | tuple():
            return msgspec.json.encode(value, enc_hook=str).decode()
        case _:
            return str(value)
