"""Names by small numbers, and columns of such numbers: what numpy's own functions do slowly for any number.

Numbers are handed out by first sight, so nothing that is told may depend on them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


Name = TypeVar("Name", bound=Hashable)


class Names(Generic[Name]):
    """Names by number, in order of first sight."""

    def __init__(self) -> None:
        self._numbers: dict[Name, int] = {}
        self.names: list[Name] = []

    def number(self, name: Name) -> int:
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = len(self.names)
            self.names.append(name)
        return known


def distinct(codes: Numbers) -> Numbers:
    """The distinct ones of some small numbers, -1 and up, rising."""
    there: Numbers = np.flatnonzero(np.bincount(codes + 1)) - 1
    return there


def numbered(codes: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct numbers, rising, and which of them each is."""
    top = int(codes.max(initial=-1)) + 1
    if top > 1 << 22:
        found, which = np.unique(codes, return_inverse=True)
        return found, which
    there = np.bincount(codes, minlength=top) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def first_sights(codes: Numbers) -> list[tuple[int, int]]:
    """Each distinct one of some small numbers with the row it is first seen in, by row."""
    found = distinct(codes)
    if not len(found):
        return []
    firsts = np.full(int(found[-1]) + 2, -1, np.int64)
    firsts[codes[::-1] + 1] = np.arange(len(codes) - 1, -1, -1)
    return sorted(zip(found.tolist(), firsts[found + 1].tolist(), strict=True), key=lambda pair: pair[1])
