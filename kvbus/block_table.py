"""What is remembered of blocks from chunk to chunk: one row a block of a shelf, sorted by shelf and hash.

A row stays while the block is resident or its removal is not long ago. Who decides that is
``kvbus/holdings``; nothing is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvbus.chunk import Bools, Hashes, Ints
from kvbus.moves import NEVER

SPOT: Final = np.dtype([("position", "<u8"), ("seq", "<u8"), ("event", "<u4")])
"""Where an event stands, as ``shelves.Spot``."""

_FACTS: Final = np.dtype(
    [
        ("content", "<u8"),
        ("taken_row", "<i8"),
        ("put", SPOT),
        ("taken", SPOT),
        ("told", SPOT),
        ("count", "<i4"),
    ]
)

Facts = npt.NDArray[Any]
"""Of a block: ``count`` copies; where one was ``put`` there, one ``taken``, its content ``told`` last;
``content`` as a digest (0: not known), ``taken_row`` as a block row of the log (``NEVER``: not known).
"""


class BlockTable:
    """The rows; ``len`` of it is how many there are."""

    def __init__(self) -> None:
        self._shelf = np.zeros(0, np.int64)
        self._hash = np.zeros(0, np.uint64)
        self._facts = np.zeros(0, _FACTS)

    def __len__(self) -> int:
        return len(self._hash)

    def find(self, shelf: Ints, hashes: Hashes) -> Ints:
        """Rows of the table, -1 where it has none; the arguments are sorted by shelf."""
        found = np.full(len(shelf), -1, np.int64)
        if not len(shelf):
            return found
        numbers, firsts = np.unique(shelf, return_index=True)
        lasts = np.append(firsts[1:], len(shelf))
        for number, first, last in zip(numbers, firsts, lasts, strict=True):
            low, high = self._part(number)
            if low == high:
                continue
            part, wanted = self._hash[low:high], hashes[first:last]
            at = np.minimum(np.searchsorted(part, wanted), len(part) - 1)
            found[first:last] = np.where(part[at] == wanted, at + low, -1)
        return found

    def facts(self, rows: Ints) -> Facts:
        """A copy of what rows say; -1 gives a block of which nothing is known."""
        facts = np.zeros(len(rows), _FACTS)
        facts["taken_row"] = NEVER
        whole(facts)[rows >= 0] = whole(self._facts)[rows[rows >= 0]]
        return facts

    def update(self, rows: Ints, facts: Facts) -> None:
        """Say other facts in some rows."""
        whole(self._facts)[rows] = whole(facts)

    def insert(self, shelf: Ints, hashes: Hashes, facts: Facts, *, oldest: int) -> None:
        """New rows, sorted as the table is; those of blocks taken out before block row ``oldest`` leave."""
        into = np.searchsorted(self._shelf, shelf)
        for number in np.unique(shelf).tolist():
            mine = shelf == number
            low, high = self._part(number)
            into[mine] = low + np.searchsorted(self._hash[low:high], hashes[mine])
        stays = (self._facts["count"] > 0) | (self._facts["taken_row"] >= oldest)
        into = np.append(0, np.cumsum(stays))[into]
        self._shelf = np.insert(self._shelf[stays], into, shelf)
        self._hash = np.insert(self._hash[stays], into, hashes)
        self._facts = np.insert(whole(self._facts)[stays], into, whole(facts)).view(_FACTS)

    def drop(self, shelves: Sequence[int]) -> None:
        """Forget all blocks of some shelves."""
        stays = ~np.isin(self._shelf, shelves)
        self._shelf, self._hash = self._shelf[stays], self._hash[stays]
        self._facts = whole(self._facts)[stays].view(_FACTS)

    def held(self, shelf: int) -> tuple[Hashes, Ints]:
        """The blocks of which a shelf has copies, by rising hash, and how many copies of each."""
        low, high = self._part(shelf)
        counts = self._facts["count"][low:high]
        there: Bools = counts > 0
        return self._hash[low:high][there], counts[there].astype(np.int64)

    def check_integrity(self) -> None:
        """Raise AssertionError where the table contradicts itself."""
        assert len(self._shelf) == len(self._hash) == len(self._facts)
        same = self._shelf[1:] == self._shelf[:-1]
        assert (self._shelf[1:] >= self._shelf[:-1]).all()
        assert (self._hash[1:][same] > self._hash[:-1][same]).all()
        assert (self._facts["count"] >= 0).all()

    @property
    def shelves(self) -> set[int]:
        """The shelves that have a row."""
        return set(np.unique(self._shelf).tolist())

    def _part(self, shelf: int) -> tuple[int, int]:
        """Where the rows of a shelf begin and end."""
        low, high = np.searchsorted(self._shelf, [shelf, shelf + 1]).tolist()
        return low, high


def whole(rows: Facts) -> Facts:
    """Rows of several fields as bytes: numpy copies those ten times faster."""
    return rows.view(np.dtype((np.void, rows.dtype.itemsize)))
