"""What may be asked of a log: one SELECT at a time, answered in batches of rows.

Both sides of reading go this way: the reader of a file, and the recorder that answers for its log. Nothing
else than a SELECT is ever run, and what DuckDB says of it is told with the step that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import duckdb
import pyarrow as pa

from kvbus.errors import LogError

BATCH_ROWS: Final = 2048

Parameter = int | float | str | None
"""What a ``?`` of a question can stand for."""

DAMAGED: Final = "Use a copy, or import what `kvbus replay --json --until POSITION` still reads."
STEPS: Final = {
    "Corrupt database file": DAMAGED,
    "IO Error: Could not read enough bytes": DAMAGED,
    "IO Error": "Look at the disk: its space, its rights and its health.",
    "Out of Memory Error": "Ask for less at once: a WHERE, fewer columns, or sums instead of rows.",
    "Permission Error": "Ask the log's own tables and views: no file, setting or network is within reach.",
    "Invalid Configuration Error": "Ask the log's own tables and views: no setting can be changed.",
    "Parser Error": "Mend the SQL, which is DuckDB's; docs/log-schema.md has questions to begin with.",
    "Conversion Error": "Mend the expression: TRY_CAST gives NULL where a value cannot be converted.",
    "Out of Range Error": "Mend the expression: a larger type, such as HUGEINT or DOUBLE, has room.",
}
"""What to do, by how DuckDB's problem begins; the first that fits."""
OTHERWISE: Final = "Compare its names with docs/log-schema.md, or ask SHOW TABLES and DESCRIBE."


class Asked(Protocol):
    """Who answers: a log's reader."""

    def query(self, sql: str, parameters: Sequence[Parameter] = (), /) -> Iterator[pa.RecordBatch]:
        """Rows of one SELECT, streamed. Raises ``LogError`` for what is not a SELECT or is wrong."""
        ...

    def rows(self, sql: str, parameters: Sequence[Parameter] = (), /) -> list[tuple[Any, ...]]:
        """All rows of one SELECT, as tuples."""
        ...


def run(cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Parameter]) -> pa.RecordBatchReader:
    """The rows of one SELECT. ``LogError`` for any other statement, ``duckdb.Error`` for a wrong one."""
    statements = cursor.extract_statements(sql)
    if not statements:
        raise LogError("there is no question", next_step='Ask one: "SELECT count(*) FROM events".')
    if len(statements) > 1:
        raise LogError("that is more than one statement", next_step="Ask one SELECT at a time.")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise LogError(
            f"{statements[0].type.name} is not for a log: only a SELECT can be asked",
            next_step="Ask a SELECT; to change something, `kvbus export` the log and work on that.",
        )
    return cursor.sql(statements[0], params=list(parameters) or None).to_arrow_reader(BATCH_ROWS)


def batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Those of an answer that have rows."""
    return (batch for batch in reader if batch.num_rows)


def refused(error: Exception) -> LogError:
    """What is wrong with a question, or with the log; also what DuckDB thinks was meant, without its drawing
    of the place.
    """
    if isinstance(error, LogError):
        return error
    problem = " ".join(str(error).partition("\n\nLINE ")[0].split())
    step = next((step for begins, step in STEPS.items() if problem.startswith(begins)), OTHERWISE)
    return LogError(problem, next_step=step)
