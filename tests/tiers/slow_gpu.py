"""The GPU tier as the rules state it: a list of free slots, searched from the front; nothing kept twice.

Independent of the code under test: it shares no line with it.
"""

from __future__ import annotations

from collections.abc import Sequence

Said = tuple[str, int, tuple[bytes, ...]]
"""An event in short: ``stored``, ``removed`` or ``cleared``, the group, the hashes."""


class SlowPool:
    """``GPUBlockPool`` in slow motion. ``waiting``: events not yet taken, one for each block removed."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(num_blocks))
        self.readers = dict.fromkeys(self.queue, 0)
        self.cached: list[tuple[int, int, bytes]] = []  # slot, group and hash, cached longest ago first
        self.waiting: list[Said] = []

    def holds_block(self, slot: int) -> bool:
        return any(slot == other for other, _, _ in self.cached)

    def find_prefix(self, hashes: Sequence[bytes], group: int) -> list[int]:
        found: list[int] = []
        for wanted in hashes:
            slots = [slot for slot, *block in self.cached if block == [group, wanted]]
            if not slots:
                break
            found.append(slots[0])
        return found

    def touch(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self.queue:
                self.queue.remove(slot)
            self.readers[slot] += 1

    def allocate(self, count: int) -> list[int] | None:
        if count > len(self.queue):
            return None
        slots, self.queue = self.queue[:count], self.queue[count:]
        for slot in slots:
            for block in [block for block in self.cached if block[0] == slot]:
                self.cached.remove(block)
                self.waiting.append(("removed", block[1], (block[2],)))
            self.readers[slot] = 1
        return slots

    def cache(self, slots: Sequence[int], hashes: Sequence[bytes], group: int) -> None:
        self.cached += [(slot, group, wanted) for slot, wanted in zip(slots, hashes, strict=True)]
        if slots:
            self.waiting.append(("stored", group, tuple(hashes)))

    def free(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.readers[slot] -= 1
            if not self.readers[slot]:
                self.queue.append(slot)

    def reset(self) -> bool:
        if any(self.readers.values()):
            return False
        if self.cached:
            self.waiting.append(("cleared", 0, ()))
        self.cached = []
        return True

    def take_events(self) -> list[Said]:
        taken, self.waiting = self.waiting, []
        return taken
