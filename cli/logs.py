"""Which kind of log a path is: DuckDB unless its name ends in ``.jsonl``.

Only the choice; the logs are ``sinks``'. Each is imported when it is wanted, so that ``tail`` does not
wait for a database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvbus.errors import LogError
from kvbus.log import LogReader
from kvbus.sink import Sink

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson")


def is_jsonl(path: Path) -> bool:
    return path.suffix.lower() in JSONL_SUFFIXES


def writer(path: Path, *, flush_s: float = 0.25) -> Sink:
    """The log at ``path`` for writing, made if it is not there. Raises ``LogError``.

    ``flush_s``: how long it may gather before it makes durable what it was given.
    """
    if is_jsonl(path):
        from sinks.jsonl import JsonlLog

        return JsonlLog(path, flush_s=flush_s)
    from sinks.duckdb import DuckDBLog

    return DuckDBLog(path, flush_s=flush_s)


def reader(path: Path) -> LogReader:
    """The log at ``path`` for reading, whether or not it is being written. Raises ``LogError``."""
    if not path.exists():
        raise LogError(
            f"there is no log at {path}",
            next_step="Check the name; `kvbus record` and `kvbus import` make one.",
        )
    if is_jsonl(path):
        from sinks.jsonl import open_log as open_jsonl

        return open_jsonl(path)
    from sinks.duckdb import open_log

    return open_log(path)
