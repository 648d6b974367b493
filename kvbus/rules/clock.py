"""T8, L2: publishers' clocks, lag, and silence. Wall clocks are not to be trusted, so these are warnings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from kvbus.chunk import Chunk, Chunks, Floats, Ints, distinct
from kvbus.findings import Findings, Group
from kvbus.rules.words import named
from kvbus.verdict import Witness

LAG_MAX_S: Final = 60.0
"""A batch that is heard so long after its own time, or before it, is late (or the clocks differ)."""

SILENCE_MAX_S: Final = 60.0
"""A source that says nothing for so long, while others speak, is silent."""


class Clock:
    """T8 and L2. Remembers the last batch of each source: epoch, ``ts``, when it was heard, its row, and
    which.
    """

    def __init__(self, names: Chunks, findings: Findings, *, declared: Iterable[str]) -> None:
        self._names = names
        self._findings = findings
        self._last: dict[int, tuple[int, float, int, int, Witness]] = {}
        self._declared = list(declared)
        self._heard: set[str] = set()
        self._first: Witness | None = None
        self._batches = 0

    def look(self, chunk: Chunk) -> None:
        self._heard.update(str(self._names.media.names[n]) for n in distinct(chunk.medium).tolist() if n >= 0)
        if not len(chunk.seq):
            return
        if self._first is None:
            self._first = self._names.witness(chunk, 0)
        order = np.argsort(chunk.source, kind="stable")
        numbers, firsts = np.unique(chunk.source[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            self._source(chunk, number, rows)
        self._lag(chunk)
        self._batches += len(chunk.seq)

    def conclude(self, findings: Findings) -> None:
        """Add what holds if nothing more comes: tiers that were declared and never heard."""
        for medium in self._declared:
            if medium not in self._heard and self._first is not None:
                because = f"{medium} was declared, and no event of it was heard"
                findings.add(Group("silence.tier", -1, medium), (0, 0), because, [self._first])

    def _source(self, chunk: Chunk, number: int, rows: Ints) -> None:
        rows = rows[~np.isnan(chunk.ts[rows])]
        if not len(rows):
            return
        ts: Floats = chunk.ts[rows]
        epoch, heard = chunk.epoch[rows], chunk.received_ns[rows]
        last = self._last.get(number)
        back = (ts[1:] < ts[:-1]) & (epoch[1:] == epoch[:-1])
        pairs = [
            (self._names.witness(chunk, int(rows[at])), int(rows[at + 1]))
            for at in np.flatnonzero(back).tolist()
        ]
        if last is not None and last[0] == int(epoch[0]) and ts[0] < last[1]:
            pairs.insert(0, (last[4], int(rows[0])))
        for before, row in pairs:
            here = self._names.witness(chunk, row)
            because = f"{named(self._names.sources[number])}: the clock goes back from batch to batch"
            order = int(chunk.position[row]), -1
            self._findings.add(Group("clock.back", number), order, because, [before, here])
        gaps = np.flatnonzero((np.diff(heard) > SILENCE_MAX_S * 1e9) & (np.diff(rows) > 1)).tolist()
        quiet = [(self._names.witness(chunk, int(rows[at])), int(rows[at + 1])) for at in gaps]
        if (
            last is not None
            and int(heard[0]) - last[2] > SILENCE_MAX_S * 1e9
            and self._batches + rows[0] - last[3] > 1
        ):
            quiet.insert(0, (last[4], int(rows[0])))
        for before, row in quiet:
            here = self._names.witness(chunk, row)
            who = named(self._names.sources[number])
            because = f"{who}: silent for over {SILENCE_MAX_S:.0f} s while others spoke"
            order = int(chunk.position[row]), -1
            self._findings.add(Group("silence.source", number), order, because, [before, here])
        end = int(rows[-1])
        place = self._batches + end, self._names.witness(chunk, end)
        self._last[number] = int(epoch[-1]), float(ts[-1]), int(heard[-1]), *place

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
