"""How much: blocks and bytes at once, since a bound may be on either.

Values only. Two amounts are compared side by side: one that has fewer blocks and more bytes does not fit.
"""

from __future__ import annotations

import sys
from typing import Final

from msgspec import Struct

from tiers.argument import whole_number


class Amount(Struct, frozen=True, gc=False):
    """So many blocks of so many payload bytes together."""

    blocks: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.blocks + other.blocks, self.bytes + other.bytes)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.blocks - other.blocks, self.bytes - other.bytes)

    def fits(self, room: Amount) -> bool:
        return self.blocks <= room.blocks and self.bytes <= room.bytes

    def holds(self, block_bytes: int) -> int | None:
        """How many blocks of this size; None: any number."""
        most = min(
            self.blocks, sys.maxsize if self.bytes == sys.maxsize else self.bytes // max(1, block_bytes)
        )
        return None if most == sys.maxsize else most

    def at_least(self, other: Amount) -> Amount:
        return Amount(max(self.blocks, other.blocks), max(self.bytes, other.bytes))

    def at_most(self, other: Amount) -> Amount:
        return Amount(min(self.blocks, other.blocks), min(self.bytes, other.bytes))


NOTHING: Final = Amount()


def bound_of(*, max_blocks: int | None, max_bytes: int | None) -> Amount:
    """What fits under these limits; None: no limit. Raises ``TierValueError`` for limits that are none."""
    return Amount(
        sys.maxsize if max_blocks is None else whole_number("max_blocks", max_blocks, at_least=0),
        sys.maxsize if max_bytes is None else whole_number("max_bytes", max_bytes, at_least=0),
    )
