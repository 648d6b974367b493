"""T8, L2: publishers' clocks, lag, and silence. Wall clocks are not to be trusted, so these are warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import Bools, Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.findings import EVENT_MAX, Findings, Group
from kvbus.names import distinct
from kvbus.rules.stream import by_source
from kvbus.rules.words import named
from kvbus.verdict import Witness

LAG_MAX_S: Final = 60.0
"""A batch that is heard so long after its own time, or before it, is late (or the clocks differ)."""

SILENCE_MAX_S: Final = 60.0
"""A source that says nothing for so long, while others speak, is silent."""


class _Heard(NamedTuple):
    """A batch: its epoch, its ``ts`` (s), when it was heard, and its number in the log."""

    epoch: int
    ts: float
    heard_ns: int
    number: int
    here: Witness


class Clock:
    """T8 and L2. Remembers the last batch of each source and of all, and the last that says its time."""

    def __init__(self, names: Chunks, findings: Findings, *, declared: Iterable[str]) -> None:
        self._names = names
        self._findings = findings
        self._last: dict[int, _Heard] = {}
        self._timed: dict[int, _Heard] = {}
        self._declared = list(declared)
        self._heard: set[str] = set()
        self._first: Witness | None = None
        self._end: _Heard | None = None
        self._batches = 0

    def look(self, chunk: Chunk) -> None:
        self._heard.update(self._names.media.names[n] for n in distinct(chunk.medium).tolist() if n >= 0)
        if not len(chunk.seq):
            return
        if self._first is None:
            self._first = self._names.witness(chunk, 0)
        for number, rows in by_source(chunk).items():
            self._silences(chunk, number, rows)
            timed = rows[~np.isnan(chunk.ts[rows])]
            if len(timed):
                self._turns_back(chunk, number, timed)
        self._lag(chunk)
        self._end = self._heard_at(chunk, len(chunk.seq) - 1)
        self._batches += len(chunk.seq)

    def conclude(self, findings: Findings) -> None:
        """Add what holds if nothing more comes: tiers that were declared and never heard, and sources that
        were heard long before the last batch of the log.
        """
        for medium in self._declared:
            if medium not in self._heard and self._first is not None:
                because = f"{medium} was declared, and no event of it was heard"
                findings.add(Group("silence.tier", -1, medium), (0, 0), because, [self._first])
        if self._end is not None:
            self._gone(self._end, findings)

    def _gone(self, end: _Heard, findings: Findings) -> None:
        """Sources whose last batch was heard long before ``end``, the last of all."""
        for number, last in self._last.items():
            if end.heard_ns - last.heard_ns > SILENCE_MAX_S * 1e9:
                who = named(self._names.sources[number])
                because = f"{who}: silent for the last {SILENCE_MAX_S:.0f} s and more, while others spoke"
                order = last.here.position or 0, EVENT_MAX
                findings.add(Group("silence.gone", number), order, because, [last.here, end.here])

    def _silences(self, chunk: Chunk, number: int, rows: Ints) -> None:
        """Long times between two batches of a source, which have those of others between them."""
        heard, last = chunk.received_ns[rows], self._last.get(number)
        long = (np.diff(heard) > SILENCE_MAX_S * 1e9) & (np.diff(rows) > 1)
        who = named(self._names.sources[number])
        because = f"{who}: silent for over {SILENCE_MAX_S:.0f} s while others spoke"
        for before, after in self._pairs(chunk, rows, long, last):
            if after.heard_ns - before.heard_ns > SILENCE_MAX_S * 1e9 and after.number - before.number > 1:
                self._tell("silence.source", number, because, before, after)
        self._last[number] = self._heard_at(chunk, int(rows[-1]))

    def _turns_back(self, chunk: Chunk, number: int, rows: Ints) -> None:
        """Batches that were made before the one in front of them, by their own clock."""
        ts, epoch, last = chunk.ts[rows], chunk.epoch[rows], self._timed.get(number)
        back = (ts[1:] < ts[:-1]) & (epoch[1:] == epoch[:-1])
        because = f"{named(self._names.sources[number])}: the clock goes back from batch to batch"
        for before, after in self._pairs(chunk, rows, back, last):
            if after.epoch == before.epoch and after.ts < before.ts:
                self._tell("clock.back", number, because, before, after)
        self._timed[number] = self._heard_at(chunk, int(rows[-1]))

    def _pairs(
        self, chunk: Chunk, rows: Ints, odd: Bools, last: _Heard | None
    ) -> Iterator[tuple[_Heard, _Heard]]:
        """A source's last batch and its first here, then its batches here whose step to the next is odd."""
        if last is not None:
            yield last, self._heard_at(chunk, int(rows[0]))
        for at in np.flatnonzero(odd).tolist():
            yield self._heard_at(chunk, int(rows[at])), self._heard_at(chunk, int(rows[at + 1]))

    def _heard_at(self, chunk: Chunk, row: int) -> _Heard:
        times = float(chunk.ts[row]), int(chunk.received_ns[row])
        here = self._names.witness(chunk, row)
        return _Heard(int(chunk.epoch[row]), *times, self._batches + row, here)

    def _tell(self, kind: str, number: int, because: str, before: _Heard, after: _Heard) -> None:
        order = after.here.position or 0, -1
        self._findings.add(Group(kind, number), order, because, [before.here, after.here])

    def _lag(self, chunk: Chunk) -> None:
        lag = chunk.received_ns / 1e9 - chunk.ts
        late = np.flatnonzero(np.abs(lag) > LAG_MAX_S)
        for number in distinct(chunk.source[late]).tolist():
            mine = late[chunk.source[late] == number]
            who = named(self._names.sources[number])
            because = f"{who}: batches are heard over {LAG_MAX_S:.0f} s from their own time"
            here, order = self._names.witness(chunk, int(mine[0])), (int(chunk.position[mine[0]]), -1)
            group = Group("clock.lag", number)
            self._findings.add(group, order, because, [here], count=len(mine))
