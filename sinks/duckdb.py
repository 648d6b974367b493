"""The log: one DuckDB file, written by one process, readable by others while it is.

Rows are built in the caller's thread and committed in another; standings are worked out from the rows, so a
cursor cannot say anything else than they do. Readers in other processes are answered on a private socket
beside the file (``sinks/answers``; ``open_log`` reads it), because DuckDB locks it to one process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import duckdb

from kvbus.columns import Columns
from kvbus.errors import LogError, LogLockedError
from kvbus.log import Entry, LastBatch, SourceId, Standing
from kvbus.violation import Violation
from sinks import schema, violations
from sinks.answers import Answers
from sinks.committer import Committer
from sinks.ledger import RECENT_BYTES_MAX, RECENT_MAX, Ledger
from sinks.private_files import private_files
from sinks.reader import DuckDBReader, open_log
from sinks.rows import SOURCES, sources_of
from sinks.session import somebody_answers

__all__ = ["DuckDBLog", "DuckDBReader", "open_log"]

BUILD_ENTRIES: Final = 256
"""Entries turned into columns at once: their objects still are in the processor's cache."""

LOCK_WAIT_S: Final = 10.0


class DuckDBLog:
    """A ``Sink`` on the log at ``path``, made (mode 0600) if it is not there.

    ``flush_batches`` and ``flush_s`` bound what a transaction gathers, and so what a crash can lose.
    ``wal_limit`` is the size of write-ahead log that makes DuckDB checkpoint. ``lock_wait_s`` is how long a
    reader that has the file open is waited for; another recorder is not. ``answer_readers=False`` opens no
    socket.

    Raises ``LogLockedError``, ``LogVersionError`` or ``LogError`` when it cannot be opened. Not for several
    threads at once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush_batches: int = 8192,
        flush_s: float = 0.25,
        wal_limit: str = "256MB",
        threads: int = 1,
        memory_limit: str = "2GB",
        lock_wait_s: float = LOCK_WAIT_S,
        answer_readers: bool = True,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._closed = False
        with contextlib.ExitStack() as undo:
            self._connection = _open(
                self.path, threads=threads, memory_limit=memory_limit, wal_limit=wal_limit, wait_s=lock_wait_s
            )
            undo.callback(self._connection.close)
            try:
                sources, next_seqs, self._standings = _where_it_stands(self._connection)
                self._columns = Columns(sources=sources, **_next_numbers(self._connection))
                self._violations = list(violations.kept(self._connection))
                self._next_violation = len(self._violations)
            except (duckdb.Error, KeyError) as error:  # torn, or not made by kvbus alone
                raise schema.damaged(self.path, error) from error
            self._ledger = Ledger(next_seqs)
            self._answers = Answers(self._connection, self.path) if answer_readers else None
            self._committer = Committer(
                self._connection.cursor(), self.path, flush_batches=flush_batches, flush_s=flush_s
            )
            undo.pop_all()

    @property
    def batch_count(self) -> int:
        """Batches taken so far, durable or on their way: the next position."""
        return self._columns.position

    def standings(self) -> Mapping[SourceId, Standing]:
        """Where each source stood when the log was opened."""
        return self._standings

    def write(self, entries: Sequence[Entry], /) -> None:
        """Take ``entries``; all of them or, with ``LogError``, none."""
        self.write_judged(entries, ())

    def write_judged(self, entries: Sequence[Entry], found: Sequence[Violation], /) -> None:
        """``write``, and the violations become durable together with the last of the entries."""
        if self._closed:
            raise LogError(f"{self.path} is closed", next_step="Open it again.")
        self._ledger.admit(entries)
        judged = violations.tables_of(found, first=self._next_violation)
        self._next_violation += len(found)
        last = max(len(entries) - 1, 0) // BUILD_ENTRIES * BUILD_ENTRIES
        for first in range(0, last, BUILD_ENTRIES):
            self._committer.put(self._columns.build(entries[first : first + BUILD_ENTRIES]))
        if entries or found:
            self._committer.put(self._columns.build(entries[last:]) | judged)

    def violations(self) -> Iterator[Violation]:
        """Those that the log had when it was opened."""
        return iter(self._violations)

    def flush(self) -> None:
        """Return when everything written is durable."""
        self._committer.flush()

    def close(self) -> None:
        """Flush, end the readers' sessions and let go of the file."""
        if self._closed:
            return
        self._closed = True
        try:
            self._committer.flush()
        finally:
            self._committer.close()
            if self._answers is not None:
                self._answers.close()
            with private_files():
                self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(
    path: Path, *, threads: int, memory_limit: str, wal_limit: str, wait_s: float
) -> duckdb.DuckDBPyConnection:
    """A connection that has the log at ``path`` attached for writing."""
    deadline = time.monotonic() + wait_s
    while True:
        if not path.exists():
            schema.create(path, made_by="kvbus")
        connection = schema.connect(threads=threads, memory_limit=memory_limit)
        try:
            connection.execute("SET wal_autocheckpoint = ?", [wal_limit])
            with private_files():
                schema.attach(connection, path, read_only=False)
            return connection
        except LogLockedError as error:
            connection.close()
            if somebody_answers(path):
                raise LogLockedError(
                    f"{path} is being recorded by another process",
                    next_step="Stop that recorder first, or record into another file.",
                ) from error
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
        except BaseException:
            connection.close()
            raise


def _next_numbers(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    ((position, marker, shape),) = connection.execute(
        """SELECT (SELECT coalesce(max(position) + 1, 0) FROM batches),
            (SELECT coalesce(max(marker) + 1, 0) FROM (
                SELECT marker FROM epochs UNION ALL SELECT marker FROM losses
                UNION ALL SELECT marker FROM strays)),
            (SELECT coalesce(max(shape) + 1, 0) FROM event_shapes)
        """
    ).fetchall()
    return {"position": int(position), "marker": int(marker), "shape": int(shape)}


def _where_it_stands(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[dict[SourceId, int], dict[tuple[SourceId, int], int], dict[SourceId, Standing]]:
    """The sources and their numbers, the next seq of every epoch, and where each source stands."""
    by_id = sources_of(connection.execute(SOURCES).fetchall())
    next_seqs: dict[tuple[SourceId, int], int] = {}
    standings: dict[SourceId, Standing] = {}
    lasts = _lasts(connection)
    for number, epoch, next_seq, last_ts, incarnation in connection.execute(
        "SELECT source_id, epoch, next_seq, last_ts, incarnation FROM standings ORDER BY epoch"
    ).fetchall():
        source = by_id[number]
        next_seqs[source, epoch] = next_seq
        standings[source] = Standing(epoch, next_seq, last_ts, incarnation, {}, lasts.get(number))
    numbers = {source: number for number, source in by_id.items()}
    for source, standing in standings.items():
        standing.recent.update(_recent(connection, numbers[source], standing))
    return numbers, next_seqs, standings


def _lasts(connection: duckdb.DuckDBPyConnection) -> dict[int, LastBatch]:
    """The last batch of each source whose time can be read."""
    rows = connection.execute(
        """SELECT source_id, position, epoch, ts, received_ns, replayed FROM batches
        WHERE position IN (SELECT max(position) FROM batches WHERE isfinite(ts) GROUP BY source_id)"""
    ).fetchall()
    return {source_id: LastBatch(*last) for source_id, *last in rows}


def _recent(connection: duckdb.DuckDBPyConnection, source_id: int, standing: Standing) -> dict[int, bytes]:
    """The last payloads of a stream, the newest last."""
    sizes = connection.execute(
        """SELECT position, octet_length(payload) FROM batches WHERE source_id = ? AND epoch = ?
        ORDER BY position DESC LIMIT ?""",
        [source_id, standing.epoch, RECENT_MAX],
    ).fetchall()
    first, total = None, 0
    for position, size in sizes:
        total += size
        if first is not None and total > RECENT_BYTES_MAX:
            break
        first = position
    if first is None:
        return {}
    return dict(
        connection.execute(
            """SELECT seq, payload FROM batches WHERE source_id = ? AND epoch = ? AND position >= ?
            ORDER BY position""",
            [source_id, standing.epoch, first],
        ).fetchall()
    )
