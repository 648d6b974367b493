"""Reading a log, from the file where nobody writes it, else through the process that does.

Either way one reader sees one unchanging state, asks only SELECTs, and streams: a log need not fit in memory.
Batches are read again from their payloads, as every generation of dialect is at the time of reading.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import duckdb
import pyarrow as pa

from kvbus.block_log import BlockRows, SourceLife
from kvbus.chunk import Ints
from kvbus.columns import Tables
from kvbus.dialects import DialectReader
from kvbus.errors import LogError, LogLockedError
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from sinks import blocks, schema
from sinks.answers import run
from sinks.session import Parameter, Session

CHUNK_ROWS: Final = 1024
CHUNK_BYTES: Final = 8 << 20
COLUMN_BATCHES: Final = 1 << 16
COLUMN_EVENTS: Final = 1 << 16
LOCK_WAIT_S: Final = 5.0

_BATCHES: Final = """SELECT position, source_id, epoch, seq, payload, received_ns, replayed, dialect
FROM batches WHERE position BETWEEN ? AND ? ORDER BY position"""

_COLUMNS: Final = {
    "batches": """SELECT position, source_id, epoch, seq, ts, received_ns, unknown_keys, dialect, error
        FROM batches WHERE position BETWEEN ? AND ? ORDER BY position""",
    "event_rows": """SELECT position, event, shape, hashes, parent_hash, token_count, emit_seq
        FROM event_rows WHERE position BETWEEN ? AND ? AND {wanted} ORDER BY position, event""",
    "event_extras": """SELECT position, event, cache_salt, extra
        FROM event_extras WHERE position BETWEEN ? AND ? ORDER BY position, event""",
}


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
            with closing(run(cursor, sql, list(parameters))) as reader:
                yield from (batch for batch in reader if batch.num_rows)
        except (duckdb.Error, pa.ArrowException) as error:
            raise LogError(_problem(error), next_step="Compare it with docs/log-schema.md.") from error
        finally:
            cursor.close()

    def close(self) -> None:
        self._connection.close()


def _problem(error: Exception) -> str:
    """What is wrong with a query, and what DuckDB thinks was meant, without the drawing of the place."""
    return " ".join(str(error).partition("\n\nLINE ")[0].split())


class DuckDBReader:
    """A ``LogReader``. Not for several threads at once."""

    def __init__(self, path: Path, way: Way, /) -> None:
        self.path = path
        self._way = way
        self._sources = {
            number: SourceId(source, topic, -1 if rank is None else rank, instance)
            for number, source, topic, rank, instance in self.rows(
                "SELECT source_id, source, topic_raw, rank, instance FROM sources"
            )
        }
        ((count, epochs, losses, strays),) = self.rows(
            """SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM epochs),
            (SELECT count(*) FROM losses), (SELECT count(*) FROM strays)"""
        )
        self._count = int(count)
        present = {"epochs": epochs, "losses": losses, "strays": strays}
        self._marker_tables = [name for name, count in present.items() if count]

    @property
    def is_live(self) -> bool:
        """Whether a recorder is writing the log (this reader still sees it as it was when opened)."""
        return isinstance(self._way, Session)

    def describe(self) -> str:
        """Where the rows come from, in a few words."""
        if isinstance(self._way, Session):
            return f"{self.path}, as process {self._way.pid} had written it"
        return str(self.path)

    def sources(self) -> dict[int, SourceId]:
        """The streams in the log by ``source_id``."""
        return dict(self._sources)

    def batch_count(self) -> int:
        return self._count

    def query(self, sql: str, parameters: Sequence[Parameter] = (), /) -> Iterator[pa.RecordBatch]:
        """Rows of one SELECT over the public schema, streamed; ``?`` in it are ``parameters``.

        Read it to its end before the next query: a later one ends it. Raises ``LogError`` for what is not a
        SELECT or is wrong.
        """
        return self._way.query(sql, parameters)

    def column_names(self, sql: str, /) -> list[str]:
        """The names of a SELECT's columns, without running it; raises as ``query`` does."""
        return [str(name) for name, *_ in self.rows("DESCRIBE\n" + sql)]

    def rows(self, sql: str, parameters: Sequence[Parameter] = (), /) -> list[tuple[Any, ...]]:
        """All rows of one SELECT, as tuples."""
        found: list[tuple[Any, ...]] = []
        for batch in self.query(sql, parameters):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return found

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[PositionedEntry]:
        """Entries in order, positions ``first`` … ``last``, a few MB of them in memory at a time."""
        end = self._count if last is None else min(last + 1, self._count)
        dialects: dict[int, DialectReader] = {}
        at, height = first, 64
        while at < end:
            upto = min(at + height, end)
            markers = self._markers(at, upto - 1)
            size = 0
            due = next(markers, None)
            for received in self._received(at, upto - 1, dialects):
                while due is not None and due.position <= at:
                    yield due
                    due = next(markers, None)
                yield PositionedEntry(at, received)
                at += 1
                size += len(received.payload)
            if at != upto:
                raise LogError(
                    f"{self.path} lacks position {at}", next_step="Export what is readable; report this."
                )
            height = max(1, min(CHUNK_ROWS, 2 * height, CHUNK_BYTES * height // max(size, 1)))
        if last is None or last >= self._count:
            yield from self._markers(max(at, first), self._count)

    def columns(self, *, naming: Sequence[int] | None = None, last: int | None = None) -> Iterator[Tables]:
        """The rows themselves up to position ``last``, ``COLUMN_BATCHES`` positions at a time or fewer: about
        ``COLUMN_EVENTS`` events. With ``naming``, of the events only those that name one of these hashes, or
        none at all.

        Tables as ``kvbus/columns`` builds them, less the payloads; shapes come before their first use.
        """
        shapes = self._table("SELECT * FROM event_shapes")
        wanted = "true" if naming is None else blocks.naming_filter(naming)
        end = self._count if last is None else min(last + 1, self._count)
        at, height = 0, 1024
        while at < end or at == 0:
            upto = min(at + height, end) - 1
            through = self._count if last is None and upto + 1 == self._count else upto
            tables = {"event_shapes": shapes} if at == 0 else {}
            for name, sql in _COLUMNS.items():
                tables[name] = self._table(sql.format(wanted=wanted), at, upto)
            for name in self._marker_tables:
                columns = ", ".join(("marker", "next_position", "source_id", "epoch", _MARKERS[name][0]))
                sql = f"SELECT {columns} FROM {name} WHERE next_position BETWEEN ? AND ? ORDER BY marker"
                tables[name] = self._table(sql, at, through)
            _whole(tables, at, upto, self.path)
            yield {name: table for name, table in tables.items() if table.num_rows}
            at = upto + 1
            events = tables["event_rows"].num_rows
            height = max(1, min(COLUMN_BATCHES, 4 * height, COLUMN_EVENTS * height // max(events, 1)))
            if not end:
                return

    def source_lives(self, last: int | None) -> list[SourceLife]:
        """See ``kvbus.block_log.BlockLog``, as of what follows."""
        upto = self._count - 1 if last is None else last
        return blocks.source_lives(self, upto, self._count if last is None else last)

    def block_rows(self, first: int, last: int, *, part: int, parts: int) -> BlockRows:
        return blocks.block_rows(self, first, last, part, parts)

    def sources_of(self, first: int, last: int) -> Ints:
        sql = "SELECT source_id FROM batches WHERE position BETWEEN ? AND ? ORDER BY position"
        return blocks.column(self, sql, first, last)

    def shapes(self) -> Tables:
        return {"event_shapes": self._table("SELECT * FROM event_shapes")}

    def block_count(self, first: int, last: int) -> int:
        sql = "SELECT sum(len(hashes)) FROM event_rows WHERE position BETWEEN ? AND ?"
        return blocks.one(self, sql, first, last) or 0

    def hashes_between(self, first: int, last: int, *, limit: int) -> list[int]:
        sql = f"""SELECT DISTINCT hash FROM (SELECT unnest(hashes) AS hash FROM event_rows)
            WHERE hash BETWEEN {first}::UBIGINT AND {last}::UBIGINT ORDER BY hash LIMIT {limit}"""
        return [block for (block,) in self.rows(sql)]

    def received_by(self, time_ns: int) -> int:
        later = blocks.one(self, f"SELECT min(position) FROM batches WHERE received_ns > {time_ns}")
        return self._count if later is None else later

    def _table(self, sql: str, *parameters: Parameter) -> pa.Table:
        batches = list(self._way.query(sql, parameters))
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def close(self) -> None:
        self._way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- rows back into entries --------------------------------------------------------------------------

    def _received(self, first: int, last: int, dialects: dict[int, DialectReader]) -> Iterator[Received]:
        for expected, row in enumerate(self.rows(_BATCHES, [first, last]), first):
            position, source_id, epoch, seq, payload, received_ns, replayed, dialect = row
            if position != expected:
                return
            reader = dialects.setdefault(source_id, DialectReader())
            source = self._source(source_id)
            batch = reader.read(payload)
            yield Received(source, epoch, seq, payload, received_ns, replayed, batch, dialect)

    def _markers(self, first: int, last: int) -> Iterator[PositionedEntry]:
        """What stands before the positions ``first`` … ``last``, in order."""
        found: list[tuple[int, PositionedEntry]] = []
        for table in self._marker_tables:
            for row in self._marker_rows(table, first, last):
                found.append(row)
        return (entry for _, entry in sorted(found, key=lambda pair: pair[0]))

    def _marker_rows(self, table: str, first: int, last: int) -> Iterator[tuple[int, PositionedEntry]]:
        columns, make = _MARKERS[table]
        sql = f"""SELECT marker, next_position, source_id, epoch, {columns} FROM {table}
            WHERE next_position BETWEEN ? AND ?"""
        for marker, position, source_id, epoch, *rest in self.rows(sql, [first, last]):
            yield marker, PositionedEntry(position, make(self._source(source_id), epoch, *rest))

    def _source(self, source_id: int) -> SourceId:
        try:
            return self._sources[source_id]
        except KeyError as error:
            raise schema.damaged(self.path, error) from error


_MARKERS: Final[dict[str, tuple[str, type[EpochBegan] | type[Loss] | type[Stray]]]] = {
    "epochs": ("because, incarnation, began_ns", EpochBegan),
    "losses": ("first_seq, last_seq, reason, noticed_ns", Loss),
    "strays": ("seq, payload, received_ns, reason", Stray),
}


def _whole(tables: Tables, first: int, last: int, path: Path) -> None:
    """Raise ``LogError`` unless every position from ``first`` to ``last`` has its batch."""
    batches = tables["batches"]
    if batches.num_rows != last + 1 - first or (batches.num_rows and batches["position"][0].as_py() != first):
        raise LogError(
            f"{path} lacks a position from {first} to {last}",
            next_step="Export what is readable; report this.",
        )


def open_log(path: str | os.PathLike[str], *, lock_wait_s: float = LOCK_WAIT_S) -> DuckDBReader:
    """Open the log at ``path`` for reading, whether or not a recorder is writing it.

    Raises ``LogError`` when there is none or it is something else, ``LogVersionError`` for another schema,
    and ``LogLockedError`` when a process holds it that does not answer within ``lock_wait_s`` seconds.
    """
    real = Path(os.path.realpath(path))
    _check(real)
    deadline = time.monotonic() + lock_wait_s
    while True:
        way: Way
        try:
            way = Direct(real)
        except LogLockedError as locked:
            try:
                way = Session(real)
            except LogLockedError:
                if time.monotonic() >= deadline:
                    raise locked from None
                time.sleep(0.05)  # it may be starting, or about to let go
                continue
        try:
            return _reader(real, way)
        except BaseException:
            way.close()
            raise


def _reader(path: Path, way: Way) -> DuckDBReader:
    for batch in way.query("SELECT value FROM meta WHERE key = 'schema_version'"):
        schema.check_version(batch.column(0)[0].as_py(), path)
    return DuckDBReader(path, way)


def _check(path: Path) -> None:
    if path.is_dir():
        raise LogError(f"{path} is a folder", next_step="Name the log file itself.")
    if not path.exists():
        raise LogError(
            f"there is no log at {path}", next_step="Make one with `kvbus record` or `kvbus import`."
        )
    if not os.access(path, os.R_OK):
        raise LogError(f"{path} may not be read", next_step="Read it as the user who recorded it.")
