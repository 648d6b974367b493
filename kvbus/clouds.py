"""When counts are certain: from an epoch's first batch until something was missed that could bear on them.

What was missed clouds every tier of its source; AllBlocksCleared makes the GPU certain again, a new epoch
everything. A later store does not (see ``docs/rules.md``): it proves the block resident, but a copy stored in
the hole may exist beside it. Of each source the present cloud is kept, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import CLEARED, Bools, Chunk, Ints
from kvbus.rules.transport import Missed

CERTAIN: Final = -1


class _Cloud(NamedTuple):
    """Why the counts of a source's epoch are uncertain, of its GPU and of its other tiers; None: certain."""

    epoch: int
    gpu: str | None
    other: str | None


class Sky(NamedTuple):
    """The clouds over one chunk: for each source, from which event row which cloud holds, and before which
    rows something was ``missed``.
    """

    whys: list[str]
    changes: dict[int, tuple[Ints, Ints]]
    missed: dict[int, Ints]

    def doubts(self, chunk: Chunk, event: Ints, gpu: Bools) -> Ints:
        """For ``event`` rows, on the GPU or not: the number of why in ``whys``, or ``CERTAIN``."""
        found = np.full(len(event), CERTAIN, np.int64)
        source, epoch = chunk.source[chunk.batch[event]], chunk.epoch[chunk.batch[event]]
        for number, (rows, states) in self.changes.items():
            mine = np.flatnonzero(source == number)
            at = np.searchsorted(rows, event[mine], side="right") - 1
            state = states[at]
            doubt = np.where(gpu[mine], state[:, 1], state[:, 2])
            found[mine] = np.where((at >= 0) & (state[:, 0] == epoch[mine]), doubt, CERTAIN)
        return found

    def missed_last(self) -> Iterator[tuple[int, int, str]]:
        """Of each source that ever missed something: the epoch it last did in, and why."""
        for number, (_, states) in self.changes.items():
            epoch, _, other = states[-1].tolist()
            yield number, epoch, self.whys[other]


class Clouds:
    """The present cloud of each source."""

    def __init__(self) -> None:
        self._clouds: dict[int, _Cloud] = {}

    def over(self, chunk: Chunk, missed: Sequence[Missed]) -> Sky:
        """The clouds of the next chunk; ``missed`` as the log has it."""
        changes = [(miss.row, 0, miss.source, miss.epoch, miss.why) for miss in missed]
        sources = {change[2] for change in changes} | self._clouds.keys()
        for row in np.flatnonzero(chunk.kind == CLEARED).tolist() if sources else []:
            batch = chunk.batch[row]
            changes.append((row, 1, int(chunk.source[batch]), int(chunk.epoch[batch]), ""))
        whys: list[str] = []
        told: dict[int, list[tuple[int, int, int, int]]] = {}
        for number in sources:
            self._tell(-1, number, whys, told)
        for row, is_miss, number, epoch, why in sorted(changes, key=lambda change: change[:2]):
            old = self._clouds.get(number)
            if is_miss == 0:
                self._clouds[number] = _Cloud(epoch, why, why)
            elif old is not None and old.epoch == epoch:
                self._clouds[number] = old._replace(gpu=None)
            else:
                continue
            self._tell(row, number, whys, told)
        rows_missed: dict[int, list[int]] = {}
        for miss in missed:
            rows_missed.setdefault(miss.source, []).append(miss.row)
        gaps = {number: np.array(rows, np.int64) for number, rows in rows_missed.items()}
        return Sky(whys, {number: _arrays(rows) for number, rows in told.items()}, gaps)

    def _tell(
        self, row: int, number: int, whys: list[str], told: dict[int, list[tuple[int, int, int, int]]]
    ) -> None:
        cloud = self._clouds.get(number)
        if cloud is None:
            return
        gpu, other = _numbered(cloud.gpu, whys), _numbered(cloud.other, whys)
        told.setdefault(number, []).append((row, cloud.epoch, gpu, other))


def _numbered(why: str | None, whys: list[str]) -> int:
    if why is None:
        return CERTAIN
    if not whys or whys[-1] != why:
        whys.append(why)
    return len(whys) - 1


def _arrays(rows: list[tuple[int, int, int, int]]) -> tuple[Ints, Ints]:
    table = np.array(rows, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1:]
