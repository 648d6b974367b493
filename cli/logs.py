"""Which kind of log a path is: DuckDB unless its name ends in ``.jsonl``.

Only the choice; the logs are ``sinks``'. Each is imported when it is wanted, so that ``tail`` does not
wait for a database.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from kvbus.errors import LogError
from kvbus.log import LogReader
from kvbus.sink import Sink

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson")


def is_jsonl(path: Path) -> bool:
    return path.suffix.lower() in JSONL_SUFFIXES


def is_file(path: Path) -> bool:
    """Whether there is a file at ``path``; False: nothing.

    Raises ``LogError`` for anything else: a folder, or a pipe, which is waited for and can be read once only.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unopened(path, error) from error
    if stat.S_ISDIR(mode):
        raise LogError(f"{path} is a folder", next_step="Name the log file itself.")
    if not stat.S_ISREG(mode):
        raise LogError(
            f"{path} is not a file, but a pipe or a device",
            next_step="Write what comes out of it into a file, and name that.",
        )
    return True


def begins_as_jsonl(path: Path) -> bool:
    """Whether a file begins as JSON lines do, whatever its name says. Raises ``LogError``."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError as error:
        raise unopened(path, error) from error


def missing(path: Path) -> LogError:
    """What to say where there is no log."""
    return LogError(
        f"there is no log at {path}",
        next_step="Check the name; `kvbus record` and `kvbus import` make one.",
    )


def unopened(path: Path, error: OSError) -> LogError:
    """What to say where the system does not let us at it."""
    return LogError(
        f"{path} cannot be opened: {error.strerror}", next_step="Check its name, folder and rights."
    )


def writer(path: Path, *, flush_s: float = 0.25) -> Sink:
    """The log at ``path`` for writing, made if it is not there. Raises ``LogError``.

    ``flush_s``: how long it may gather before it makes durable what it was given.
    """
    is_file(path)
    if is_jsonl(path):
        from sinks.jsonl import JsonlLog

        return JsonlLog(path, flush_s=flush_s)
    from sinks.duckdb import DuckDBLog

    return DuckDBLog(path, flush_s=flush_s)


def reader(path: Path) -> LogReader:
    """The log at ``path`` for reading, whether or not it is being written. Raises ``LogError``."""
    if not is_file(path):
        raise missing(path)
    if is_jsonl(path):
        from sinks.jsonl import open_log as open_jsonl

        return open_jsonl(path)
    from sinks.duckdb import open_log

    return open_log(path)
