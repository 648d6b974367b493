"""Which block can be found in which slot: hashes to slots and back, for all KV groups. Pure.

Equal blocks may lie in several slots: each is an entry of its own, the oldest is found first. The same hash
in two groups is two blocks. Who reads a slot, and whose turn it is to leave, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tiers.errors import TierValueError


class PrefixIndex:
    """For slots 0 … ``num_slots`` - 1 and groups 0 … ``num_groups`` - 1. ``hash_in[slot]`` is None where no
    block can be found; read it, do not write it.
    """

    def __init__(self, num_slots: int, num_groups: int) -> None:
        self.hash_in: list[bytes | None] = [None] * num_slots
        self._group_in = [0] * num_slots
        # Of each group: the slot where a hash is found, and its other slots, oldest first, if there are any.
        self._slot_of: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._copies: list[dict[bytes, list[int]]] = [{} for _ in range(num_groups)]
        self._size = 0

    def __len__(self) -> int:
        """Slots that hold a block, every copy counted."""
        return self._size

    def find(self, block_hashes: Sequence[bytes], *, group_idx: int) -> list[int]:
        """The slots of the longest prefix of ``block_hashes`` that is here."""
        slot_of = self._slot_of[group_idx].get
        slots: list[int] = []
        for block_hash in block_hashes:
            slot = slot_of(block_hash)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def add(self, slots: Sequence[int], block_hashes: Sequence[bytes], *, group_idx: int) -> None:
        """Blocks can be found in these slots, which held none, from now on."""
        hash_in, group_in = self.hash_in, self._group_in
        slot_of, copies = self._slot_of[group_idx], self._copies[group_idx]
        for slot, block_hash in zip(slots, block_hashes, strict=True):
            hash_in[slot] = block_hash
            group_in[slot] = group_idx
            if slot_of.setdefault(block_hash, slot) != slot:
                copies.setdefault(block_hash, []).append(slot)
        self._size += len(slots)

    def forget(self, slots: Sequence[int]) -> Iterator[tuple[int, list[bytes]]]:
        """The blocks in these slots can no longer be found. Gives each run of one group: the group, and the
        hashes in the order of the slots; slots without a block are passed over. Nothing is forgotten before
        it is given.
        """
        hash_in = self.hash_in
        holding = [slot for slot in slots if hash_in[slot] is not None]
        for group_idx, run in groupby(holding, self._group_in.__getitem__):
            yield group_idx, [self._forget_one(slot, group_idx) for slot in run]

    def _forget_one(self, slot: int, group_idx: int) -> bytes:
        block_hash = self.hash_in[slot]
        assert block_hash is not None
        self.hash_in[slot] = None
        self._size -= 1
        slot_of, copies = self._slot_of[group_idx], self._copies[group_idx]
        if block_hash not in copies:
            del slot_of[block_hash]
            return block_hash
        others = copies[block_hash]
        if slot_of[block_hash] == slot:
            slot_of[block_hash] = others.pop(0)
        else:
            others.remove(slot)
        if not others:
            del copies[block_hash]
        return block_hash

    def clear(self) -> None:
        for slot_of, copies in zip(self._slot_of, self._copies, strict=True):
            slot_of.clear()
            copies.clear()
        self.hash_in = [None] * len(self.hash_in)
        self._size = 0

    def check_group(self, group_idx: int) -> None:
        """``TierValueError`` for a group that is not here."""
        if not 0 <= group_idx < len(self._slot_of):
            raise TierValueError(
                f"KV group {group_idx} of {len(self._slot_of)}",
                next_step="Give a block size for each KV group when the tier is made.",
            )

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        found: dict[int, tuple[int, bytes]] = {}
        for group_idx, (slot_of, copies) in enumerate(zip(self._slot_of, self._copies, strict=True)):
            assert all(copies.values()), "an empty list of copies"
            assert copies.keys() <= slot_of.keys(), "copies of a block that is not found"
            for block_hash, slot in slot_of.items():
                for one in (slot, *copies.get(block_hash, ())):
                    assert one not in found, "a slot is found twice"
                    found[one] = (group_idx, block_hash)
        holding = {
            slot: (self._group_in[slot], block_hash)
            for slot, block_hash in enumerate(self.hash_in)
            if block_hash is not None
        }
        assert found == holding, "hashes to slots and slots to hashes do not agree"
        assert len(holding) == self._size, "blocks miscounted"
