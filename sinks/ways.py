"""The two ways to a log's rows: the file itself where nobody writes it, else the process that does.

DuckDB locks a file to one process, so who finds it locked asks its recorder (``sinks/session``). Either way
one reader sees one unchanging state, asks only SELECTs, and streams: a log need not fit in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

import duckdb
import pyarrow as pa

from kvbus.errors import LogError, LogLockedError
from sinks import schema
from sinks.question import Parameter, batches, refused, run
from sinks.session import Session

LOCK_WAIT_S: Final = 5.0


class Way(Protocol):
    """How rows come: ``Direct`` or ``Session``."""

    def query(self, sql: str, parameters: Sequence[Parameter] = (), /) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class Direct:
    """The file itself, opened for reading. While it is, no recorder can start."""

    def __init__(self, path: Path, /) -> None:
        self._connection = schema.connect(threads=os.cpu_count() or 1, memory_limit="2GB")
        try:
            self._version = schema.attach(self._connection, path, read_only=True)
        except BaseException:
            self._connection.close()
            raise

    def query(self, sql: str, parameters: Sequence[Parameter] = (), /) -> Iterator[pa.RecordBatch]:
        """Rows of one SELECT, streamed."""
        cursor = self._connection.cursor()
        try:
            cursor.execute("USE log")
            if self._version != schema.VERSION:
                schema.add_views(cursor)
            with closing(run(cursor, sql, parameters)) as reader:
                yield from batches(reader)
        except (duckdb.Error, pa.ArrowException) as error:
            raise refused(error) from error
        finally:
            cursor.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def way_to(path: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> Way:
    """The way to the log at ``path`` (its real path). Raises as ``sinks.reader.open_log`` does."""
    _check(path)
    deadline = time.monotonic() + lock_wait_s
    while True:
        try:
            return Direct(path)
        except LogLockedError as locked:
            try:
                return _through_recorder(path)
            except LogLockedError:
                if time.monotonic() >= deadline:
                    raise locked from None
        time.sleep(0.05)  # its holder may be starting, or about to let go


def _through_recorder(path: Path) -> Session:
    """A session whose log is of a version that this kvbus reads: its recorder may be another kvbus."""
    session = Session(path)
    try:
        for batch in session.query("SELECT value FROM meta WHERE key = 'schema_version'"):
            schema.check_version(batch.column(0)[0].as_py(), path)
    except BaseException:
        session.close()
        raise
    return session


def _check(path: Path) -> None:
    if path.is_dir():
        raise LogError(f"{path} is a folder", next_step="Name the log file itself.")
    if not path.exists():
        raise LogError(
            f"there is no log at {path}", next_step="Make one with `kvbus record` or `kvbus import`."
        )
    if not os.access(path, os.R_OK):
        raise LogError(f"{path} may not be read", next_step="Read it as the user who recorded it.")
