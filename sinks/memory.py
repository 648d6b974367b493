"""A log that is a list: for tests, for a look at a stream, for whatever ends with the process.

It keeps the contract of every sink; durable, for it, is what was flushed. Give the entries of one to the next
to go on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from kvbus.errors import LogError
from kvbus.log import Entry, PositionedEntry, Received, SourceId, Standing
from sinks.ledger import Ledger, Standings


class MemoryLog:
    """A ``Sink`` and a ``LogReader`` over ``durable``, which it owns."""

    def __init__(self, durable: Iterable[Entry] = (), /) -> None:
        self.durable = list(durable)
        self._written: list[Entry] = []
        standings = Standings()
        for entry in self.durable:
            standings.add(entry)
        self._standings = standings.result()
        self._ledger = Ledger(standings.next_seqs)
        self._closed = False

    def standings(self) -> Mapping[SourceId, Standing]:
        """Where each source stood at the beginning."""
        return self._standings

    def write(self, entries: Sequence[Entry], /) -> None:
        if self._closed:
            raise LogError("this log is closed", next_step="Make another from its entries.")
        self._ledger.admit(entries)
        self._written += entries

    def flush(self) -> None:
        self.durable += self._written
        self._written.clear()

    def batch_count(self) -> int:
        return sum(isinstance(entry, Received) for entry in self.durable)

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[PositionedEntry]:
        """What was flushed, in order."""
        position = 0
        for entry in list(self.durable):
            if last is not None and position > last:
                return
            if position >= first:
                yield PositionedEntry(position, entry)
            position += isinstance(entry, Received)

    def close(self) -> None:
        self.flush()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
