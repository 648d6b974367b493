"""Rows on their way into DuckDB: one thread that commits them, many writes in one transaction.

Whoever builds rows hands them over and goes on; DuckDB lets go of the interpreter while it inserts, so
building and inserting share two cores. The first failure ends it: nothing after it is written, and everyone
who asks is told.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from kvbus.columns import Tables
from kvbus.errors import LogError
from sinks.private_files import private_files

ORDER: Final = (
    "sources",
    "event_shapes",
    "epochs",
    "capacities",
    "batches",
    "event_rows",
    "event_extras",
    "losses",
    "strays",
    "violation_rows",
    "witnesses",
)
"""Tables in the order in which a transaction fills them."""

STEPS: Final = 4
"""Inserts that make a full transaction: fewer leave more for its end, each has a fixed price."""


class Committer:
    """Owns the thread and the order of transactions; the connection is lent.

    A transaction is committed when it holds ``flush_batches`` batches, when its oldest has waited ``flush_s``
    seconds, or at ``flush``; rows go into it in steps before that, so that little is left to do at the end.
    ``put`` blocks while twice ``flush_batches`` wait.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, path: Path, *, flush_batches: int, flush_s: float
    ) -> None:
        self._connection = connection
        self._path = path
        self._flush_batches = flush_batches
        self._step = max(flush_batches // STEPS, 1)
        self._flush_s = flush_s
        self._state = threading.Condition()
        self._waiting: list[Tables] = []
        self._batches = 0
        self._begun = False
        self._open_parts = 0
        self._open_batches = 0
        self._due = 0.0
        self._urgent = False
        self._stopping = False
        self._put = 0
        self._done = 0
        self._failure: LogError | None = None
        self._thread = threading.Thread(target=self._run, name=f"kvbus commits {path.name}", daemon=True)
        self._thread.start()

    def put(self, tables: Tables) -> None:
        """Hand over rows. Raises what an earlier commit ran into."""
        batches = tables["batches"].num_rows if "batches" in tables else 0
        with self._state:
            while self._batches >= 2 * self._flush_batches and not self._failure:
                self._state.wait()
            self._raise_failure()
            if not self._waiting and not self._open_parts:
                self._due = time.monotonic() + self._flush_s
                self._state.notify_all()
            self._waiting.append(tables)
            self._batches += batches
            self._put += 1
            if self._batches >= self._step:
                self._state.notify_all()

    def flush(self) -> None:
        """Return when all that was put is durable; raise ``LogError`` if it cannot be."""
        with self._state:
            wanted = self._put
            while self._done < wanted and not self._failure:
                self._urgent = True
                self._state.notify_all()
                self._state.wait()
            self._raise_failure()

    def close(self) -> None:
        """Commit what waits and end the thread. Does not raise: ``flush`` first."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure:
            raise LogError(self._failure.problem, next_step=self._failure.next_step) from self._failure

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            work, commits = self._take()
            if not commits and not work:
                return
            try:
                with private_files():  # DuckDB makes its write-ahead log anew after each checkpoint
                    self._step_forward(work, commits=commits)
            except Exception as error:  # whatever it is, the writer must hear of it
                with self._state:
                    self._failure = _failed(self._path, error)
                    self._failure.__cause__ = error
                    self._waiting.clear()
                    self._state.notify_all()
                return

    def _take(self) -> tuple[list[Tables], bool]:
        """What to insert next, and whether to commit then; nothing and False when all is done."""
        with self._state:
            while not self._ready():
                if self._stopping and not self._waiting and not self._open_parts:
                    return [], False
                holds = self._waiting or self._open_parts
                self._state.wait(max(self._due - time.monotonic(), 0.0) if holds else None)
            work, self._waiting = self._waiting, []
            full = self._open_batches + self._batches >= self._flush_batches
            commits = full or self._pressed()
            self._open_parts += len(work)
            self._open_batches += self._batches
            self._batches = 0
            self._urgent = False
            self._state.notify_all()
            return work, commits

    def _ready(self) -> bool:
        if self._batches >= self._step:
            return True
        return bool(self._waiting or self._open_parts) and self._pressed()

    def _pressed(self) -> bool:
        return self._urgent or self._stopping or time.monotonic() >= self._due

    def _step_forward(self, work: list[Tables], *, commits: bool) -> None:
        """Put ``work`` into the transaction under way, or a new one, and end it if it ``commits``."""
        try:
            if not self._begun:
                self._connection.execute("BEGIN TRANSACTION")
                self._begun = True
            for name in ORDER:
                parts = [tables[name] for tables in work if name in tables]
                if parts:
                    self._insert(name, pa.concat_tables(parts))
            if not commits:
                return
            self._connection.execute("COMMIT")
            self._begun = False
        except BaseException:
            self._rollback()
            raise
        with self._state:
            self._done += self._open_parts
            self._open_parts = self._open_batches = 0
            if self._waiting:
                self._due = time.monotonic() + self._flush_s
            self._state.notify_all()

    def _insert(self, name: str, rows: pa.Table) -> None:
        # Registered under a name of its own: a Python variable named like a table is shadowed by the table.
        self._connection.register(f"rows_to_{name}", rows)
        try:
            self._connection.execute(f"INSERT INTO log.{name} BY NAME SELECT * FROM rows_to_{name}")
        finally:
            with contextlib.suppress(duckdb.Error):  # in an aborted transaction: what aborted it is told
                self._connection.unregister(f"rows_to_{name}")

    def _rollback(self) -> None:
        with contextlib.suppress(duckdb.Error):  # a failed COMMIT has already rolled back
            self._connection.execute("ROLLBACK")


def _failed(path: Path, error: Exception) -> LogError:
    text = str(error).splitlines()
    return LogError(
        f"{path} could not be written: {text[0] if text else repr(error)}",
        next_step="What was committed is safe. Make room or mend the disk, then start again: it resumes.",
    )
