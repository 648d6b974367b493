"""Which slots of a tier are free, and in what order they are given out. Pure; knows no keys.

Never-used slots first, ascending; then those given back, the last one first: its memory was touched last.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiers.errors import TierContractError, TierValueError


class Slots:
    """Slots 0 … ``num_slots`` - 1."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 0:
            raise TierValueError(f"{num_slots} slots", next_step="Give the number of blocks, 0 or more.")
        self.num_slots = num_slots
        self._next_unused = 0
        self._given_back: list[int] = []

    @property
    def free(self) -> int:
        return self.num_slots - self._next_unused + len(self._given_back)

    @property
    def taken(self) -> int:
        return self._next_unused - len(self._given_back)

    def take(self, count: int) -> list[int]:
        """``count`` slots. ``TierContractError`` if there are fewer: look at ``free`` first."""
        if count > self.free:
            raise TierContractError(
                f"{count} slots wanted, {self.free} free", next_step="Give some back before taking more."
            )
        unused = min(count, self.num_slots - self._next_unused)
        slots = list(range(self._next_unused, self._next_unused + unused))
        self._next_unused += unused
        if again := count - unused:
            slots += self._given_back[: -again - 1 : -1]
            del self._given_back[-again:]
        return slots

    def give_back(self, slots: Iterable[int]) -> None:
        """Slots that ``take`` gave out, in the order in which they became free."""
        self._given_back += slots

    def reset(self) -> None:
        """All free again, and as if never used."""
        self._next_unused = 0
        self._given_back.clear()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        given_back = set(self._given_back)
        assert len(given_back) == len(self._given_back), "a slot was given back twice"
        assert all(0 <= slot < self._next_unused for slot in given_back), "given back, but never taken"
        assert 0 <= self._next_unused <= self.num_slots, "more slots than there are"

    def is_free(self, slot: int) -> bool:
        """Whether nobody holds this slot. Walks the free list: for checks, not for work."""
        return slot >= self._next_unused or slot in self._given_back
