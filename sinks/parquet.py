"""A log as Parquet files: the public tables and the ``events`` view, one file each, in a folder.

An export and not a ``Sink``: a Parquet file is whole only once its footer is written, so it cannot be
continued after a crash, which is what a sink promises. The columns are those of ``docs/log-schema.md``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kvbus.columns import Columns, Tables
from kvbus.draft import beside
from kvbus.errors import LogError
from kvbus.log import Entry
from sinks import schema
from sinks.views import VIEWS

CHUNK_ENTRIES: Final = 2048
FILES: Final = ("sources", "epochs", "capacities", "batches", "events", "losses", "strays")

_EMPTIED: Final = (*(name for name in FILES if name != "events"), "event_rows", "event_extras")


def export(entries: Iterable[Entry], output: Path, /) -> None:
    """Write ``entries`` as ``FILES`` into the new folder ``output``, which appears when it is whole.

    Positions count from 0. Raises ``LogError`` when the folder is there already or cannot be written.
    """
    if output.exists():
        raise LogError(f"{output} is there already", next_step="Choose another place, or remove it.")
    draft = beside(output)
    try:
        draft.mkdir(mode=0o700)
        _write(iter(entries), draft)
        draft.rename(output)
    except (OSError, duckdb.Error, UnicodeEncodeError) as error:
        why = str(error).replace(str(draft), str(output))
        raise LogError(
            f"cannot write {output}: {why}", next_step="Choose another place, or make room."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(entries: Iterator[Entry], folder: Path) -> None:
    """Chunk by chunk through a database in memory, so that there is one definition of the views."""
    connection = schema.connect(threads=os.cpu_count() or 1, memory_limit="2GB")
    connection.execute(schema.TABLES + schema.TABLES_2 + VIEWS)
    columns = Columns()
    writers: dict[str, pq.ParquetWriter] = {}
    try:
        for name in FILES:
            empty = _rows(connection, f"SELECT * FROM {name} LIMIT 0")
            writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", empty.schema, compression="zstd")
        while chunk := list(islice(entries, CHUNK_ENTRIES)):
            _put(connection, columns.build(chunk))
            for name in FILES:
                order = "position, event" if name == "events" else "ALL"
                rows = _rows(connection, f"SELECT * FROM {name} ORDER BY {order}")
                if rows.num_rows:
                    writers[name].write_table(rows)
            # Shapes stay: a later chunk's events may have one of them, which is told once.
            for name in _EMPTIED:
                connection.execute(f"DELETE FROM {name}")
    finally:
        connection.close()
        with ExitStack() as closing_all:
            for writer in writers.values():
                closing_all.callback(_close, writer)


def _close(writer: pq.ParquetWriter) -> None:
    """Where it cannot be, that is its end all the same: it would try again when it is let go, and say so."""
    try:
        writer.close()
    finally:
        writer.is_open = False


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    return connection.sql(sql).to_arrow_table()


def _put(connection: duckdb.DuckDBPyConnection, tables: Tables) -> None:
    for name, rows in tables.items():
        connection.register("arriving", rows)
        connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM arriving")
        connection.unregister("arriving")
