"""Recording, from a publisher in another process to committed rows, against the two things it cannot beat.

Building: the same payloads decoded and laid out as the log's Arrow tables, in memory, no socket and no
database. Inserting: those tables, ready-made, into a database of the log's schema, nothing else, under
DuckDB's own limit of the write-ahead log and under one so large that nothing is checkpointed.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from bench.figures import Section, rate
from bench.source import Source
from bench.stream import Stream
from kvbus.columns import Columns, Tables
from kvbus.dialects import DialectReader
from kvbus.feed import Feed
from kvbus.log import Received, SourceId
from kvbus.pipeline import patient_gc, record
from kvbus.subscriber import Subscriber
from kvbus.wire import Live
from sinks import schema
from sinks.committer import ORDER
from sinks.duckdb import BUILD_ENTRIES, DuckDBLog

TRANSACTION_BATCHES: Final = 8192
WAL_LIMITS: Final = ("16MB", "1GB")
WHOLE: Final = "record: socket to committed rows"
SOURCE: Final = SourceId("bench", b"kv", 0)


def recording(stream: Stream, *, rounds: int, batches: int) -> Section:
    live = list(stream.repeated(batches))
    events = batches * stream.events / len(stream.batches)
    whole: list[float] = []
    building: list[float] = []
    inserting: dict[str, list[float]] = {limit: [] for limit in WAL_LIMITS}
    for _ in range(rounds):
        whole.append(events / end_to_end(batches))
        with patient_gc():
            seconds, tables = build(live)
        building.append(events / seconds)
        for limit in WAL_LIMITS:
            inserting[limit].append(events / insert(tables, wal_limit=limit))
        del tables
    return Section(
        "record",
        f"{batches} batches, {rounds} rounds; the publisher shares the machine",
        (
            rate("decode and build in memory", "events/s", building),
            *(
                rate(f"bare insertion, WAL limit {limit}", "events/s", inserting[limit])
                for limit in WAL_LIMITS
            ),
            rate(WHOLE, "events/s", whole, against="decode and build", base=building, reach="≥ 0.75×"),
            *(
                rate(WHOLE, "events/s", whole, against=f"insertion, {limit}", base=inserting[limit])
                for limit in WAL_LIMITS
            ),
        ),
    )


def end_to_end(batches: int) -> float:
    """Seconds from the first ``publish`` in the other process until the last row is committed here."""
    with tempfile.TemporaryDirectory(prefix="kvbus-bench-") as folder, Source(batches=batches) as source:
        feed = Feed(source.addresses.endpoint, source.addresses.replay)
        with Subscriber([feed]) as subscriber, DuckDBLog(Path(folder) / "log.duckdb") as log:
            progress = record(subscriber, log, stop=threading.Event(), max_batches=batches)
            ended_ns = time.monotonic_ns()
            sent_ns = source.sent_ns()
    if progress.batches != batches or progress.lost_batches:
        raise RuntimeError(
            f"{progress.batches} of {batches} recorded, {progress.lost_batches} lost: no measurement"
        )
    return (ended_ns - sent_ns[0]) / 1e9


def build(live: Sequence[Live]) -> tuple[float, list[Tables]]:
    """Seconds to decode and lay out everything, and the tables, one set a transaction."""
    reader = DialectReader()
    columns = Columns()
    parts: list[Tables] = []
    began = time.perf_counter()
    for first in range(0, len(live), BUILD_ENTRIES):
        received = [
            Received(
                SOURCE, 0, b.seq, b.payload, time.time_ns(), False, reader.read(b.payload), reader.dialect
            )
            for b in live[first : first + BUILD_ENTRIES]
        ]
        parts.append(columns.build(received))
    seconds = time.perf_counter() - began
    stride = TRANSACTION_BATCHES // BUILD_ENTRIES
    return seconds, [joined(parts[first : first + stride]) for first in range(0, len(parts), stride)]


def joined(parts: Sequence[Tables]) -> Tables:
    found = {name: [tables[name] for tables in parts if name in tables] for name in ORDER}
    return {name: pa.concat_tables(tables) for name, tables in found.items() if tables}


def insert(transactions: Sequence[Tables], *, wal_limit: str) -> float:
    """Seconds to insert and commit ready-made tables into a fresh log."""
    with tempfile.TemporaryDirectory(prefix="kvbus-bench-") as folder:
        path = Path(folder) / "log.duckdb"
        schema.create(path, made_by="kvbus bench")
        with schema.connect(threads=1, memory_limit="2GB") as connection:
            connection.execute("SET wal_autocheckpoint = ?", [wal_limit])
            schema.attach(connection, path, read_only=False)
            began = time.perf_counter()
            for tables in transactions:
                connection.execute("BEGIN TRANSACTION")
                for name, rows in tables.items():
                    connection.register("ready", rows)
                    connection.execute(f"INSERT INTO log.{name} BY NAME SELECT * FROM ready")
                    connection.unregister("ready")
                connection.execute("COMMIT")
            return time.perf_counter() - began
