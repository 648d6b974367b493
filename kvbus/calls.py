"""What blocks are called where people read: by first sight, ``b1``, ``b2`` … Hashes say nothing to anybody,
and differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvbus.telling import Told, mentioned


class Calls:
    """What blocks are called: ``b1``, ``b2`` … by first sight, unless somebody has named them."""

    def __init__(self, named: Mapping[int, str] | None = None) -> None:
        self._names = dict(named or {})
        self._next = 1

    def name(self, block: int) -> str:
        known = self._names.get(block)
        if known is None:
            known = self._names[block] = f"b{self._next}"
            self._next += 1
        return known

    def meet(self, event: Told) -> None:
        """Name the blocks of an event that are new: the parent first, as it was there before."""
        for block in mentioned(event):
            self.name(block)


def spelled(blocks: Sequence[str]) -> str:
    """Names with commas between; a run of numbers as ``b3..b9``. ``named`` reads it."""
    return ",".join(_runs(blocks))


def _runs(names: Sequence[str]) -> Iterator[str]:
    first = 0
    for at in range(1, len(names) + 1):
        if (
            at < len(names)
            and _number(names[at - 1]) > 0
            and _number(names[at]) == _number(names[at - 1]) + 1
        ):
            continue
        if at - first > 2:
            yield f"{names[first]}..{names[at - 1]}"
        else:
            yield from names[first:at]
        first = at


def _number(name: str) -> int:
    digits = name.removeprefix("b")
    return int(digits) if name != digits and digits.isascii() and digits.isdigit() else -1
