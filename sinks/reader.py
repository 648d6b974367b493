"""Reading a log, as entries, as columns, or by questions; whether or not somebody is writing it.

One reader sees one unchanging state, and streams: a log need not fit in memory. Where the rows come from is
``sinks/ways``' matter, what they were ``sinks/rows``'; SQL about blocks is in ``sinks/blocks``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from kvbus.block_log import BlockRows, SourceLife
from kvbus.chunk import Ints
from kvbus.columns import Tables
from kvbus.dialects import DialectReader
from kvbus.errors import LogError
from kvbus.log import PositionedEntry, SourceId
from sinks import blocks
from sinks.question import Parameter
from sinks.rows import Rows
from sinks.ways import LOCK_WAIT_S, Way, way_to

CHUNK_ROWS: Final = 1024
CHUNK_BYTES: Final = 8 << 20
"""Batches whose entries are in memory at once, and bytes of their payloads (one batch may have more)."""
COLUMN_BATCHES: Final = 1 << 16
COLUMN_EVENTS: Final = 1 << 16
"""Batches, and about how many events, of a stretch of columns."""

_COLUMNS: Final = {
    "batches": """SELECT position, source_id, epoch, seq, ts, received_ns, unknown_keys, dialect, error
        FROM batches WHERE position BETWEEN ? AND ? ORDER BY position""",
    "event_rows": """SELECT position, event, shape, hashes, parent_hash, token_count, emit_seq
        FROM event_rows WHERE position BETWEEN ? AND ? AND {wanted} ORDER BY position, event""",
    "event_extras": """SELECT position, event, cache_salt, extra
        FROM event_extras WHERE position BETWEEN ? AND ? ORDER BY position, event""",
}


class DuckDBReader:
    """A ``LogReader``. Not for several threads at once."""

    def __init__(self, path: Path, way: Way, /) -> None:
        self.path = path
        self._way = way
        self._rows = Rows(self, path)

    def sources(self) -> dict[int, SourceId]:
        """The streams in the log by ``source_id``."""
        return dict(self._rows.sources)

    def batch_count(self) -> int:
        return self._rows.count

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
        count = self._rows.count
        end = count if last is None else min(last + 1, count)
        dialects: dict[int, DialectReader] = {}
        at, height = first, 64
        while at < end:
            upto = min(at + height, end)
            marks = self._rows.marks(at, upto - 1)
            size = 0
            due = next(marks, None)
            for received in self._rows.received(at, upto - 1, dialects):
                while due is not None and due.position <= at:
                    yield due
                    due = next(marks, None)
                yield PositionedEntry(at, received)
                at += 1
                size += len(received.payload)
            if at != upto:
                raise LogError(
                    f"{self.path} lacks position {at}", next_step="Export what is readable; report this."
                )
            height = max(1, min(CHUNK_ROWS, 2 * height, CHUNK_BYTES * height // max(size, 1)))
        if last is None or last >= count:
            yield from self._rows.marks(max(at, first), count)

    def columns(self, *, naming: Sequence[int] | None = None, last: int | None = None) -> Iterator[Tables]:
        """The rows themselves up to position ``last``, at most ``COLUMN_BATCHES`` positions and about
        ``COLUMN_EVENTS`` events at a time. With ``naming``, of the events only those that name one of these
        hashes, or none at all.

        Tables as ``kvbus/columns`` builds them, less the payloads; shapes come before their first use.
        """
        shapes = self._table("SELECT * FROM event_shapes")
        wanted = "true" if naming is None else blocks.naming_filter(naming)
        count = self._rows.count
        end = count if last is None else min(last + 1, count)
        at, height = 0, 1024
        while True:
            upto = min(at + height, end) - 1
            through = count if last is None and upto + 1 == count else upto
            tables = {"event_shapes": shapes} if at == 0 else {}
            for name, sql in _COLUMNS.items():
                tables[name] = self._table(sql.format(wanted=wanted), at, upto)
            for name, sql in self._rows.mark_queries.items():
                tables[name] = self._table(sql, at, through)
            _whole(tables, at, upto, self.path)
            yield {name: table for name, table in tables.items() if table.num_rows}
            at = upto + 1
            events = tables["event_rows"].num_rows
            height = max(1, min(COLUMN_BATCHES, 4 * height, COLUMN_EVENTS * height // max(events, 1)))
            if at >= end:
                return

    def source_lives(self, last: int | None) -> list[SourceLife]:
        """See ``kvbus.block_log.BlockLog``, as of what follows."""
        count = self._rows.count
        upto, through = (count - 1, count) if last is None else (last, last)
        return blocks.source_lives(self, upto, through)

    def block_rows(self, first: int, last: int, *, part: int, parts: int) -> BlockRows:
        return blocks.block_rows(self, first, last, part=part, parts=parts)

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
        return self._rows.count if later is None else later

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
    way = way_to(real, lock_wait_s=lock_wait_s)
    try:
        return DuckDBReader(real, way)
    except BaseException:
        way.close()
        raise
