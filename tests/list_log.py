"""A ``LogReader`` on a list of entries, as the pocket language gives them: no columns, no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvbus.log import PositionedEntry, Received
from sinks.duckdb import DuckDBLog, DuckDBReader, open_log


class ListLog:
    def __init__(self, entries: Sequence[PositionedEntry]) -> None:
        self._entries = list(entries)

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[PositionedEntry]:
        end = self.batch_count() if last is None or last >= self.batch_count() else last
        return (at for at in self._entries if first <= at.position <= end)

    def batch_count(self) -> int:
        return sum(isinstance(at.entry, Received) for at in self._entries)

    def close(self) -> None:
        pass


def in_order(texts: Sequence[str]) -> str:
    """Histories one after the other, without numbers that go back: no file takes those."""
    return " | ".join(texts).replace("seq(2) ", "")


def in_a_file(entries: Sequence[PositionedEntry], path: Path) -> DuckDBReader:
    """The same log as a DuckDB file, opened."""
    with DuckDBLog(path, answer_readers=False) as log:
        log.write([at.entry for at in entries])
    return open_log(path)
