"""The CPU tier as the rules state it: lists, searched from the front, nothing kept twice, nothing fast.

Independent of the code under test: it shares no line with it and imports only the names of its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tiers import OffloadKey

Said = tuple[Literal["stored", "removed"], tuple[OffloadKey, ...], str | None]
"""An event in short: kind, keys, reason."""


class SlowLRU:
    def __init__(self) -> None:
        self.queue: list[OffloadKey] = []

    def insert(self, key: OffloadKey) -> None: ...

    def freed(self, keys: Sequence[OffloadKey]) -> None:
        self.queue += keys

    def pinned(self, key: OffloadKey) -> None:
        self.queue.remove(key)

    def dropped(self, key: OffloadKey) -> None: ...

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.queue:
                self.queue.remove(key)
                self.queue.append(key)

    def evict(self, n: int, protected: Sequence[OffloadKey]) -> list[OffloadKey] | None:
        victims = [key for key in self.queue if key not in protected][:n]
        if len(victims) < n:
            return None
        self.queue = [key for key in self.queue if key not in victims]
        return victims

    def clear(self) -> None:
        self.queue = []


class SlowARC:
    def __init__(self, capacity: int, refs: dict[OffloadKey, int]) -> None:
        self.capacity = capacity
        self.refs = refs  # the tier's own: -1 being written, n readers
        self.clear()

    def clear(self) -> None:
        self.t1: list[OffloadKey] = []
        self.t2: list[OffloadKey] = []
        self.b1: list[OffloadKey] = []
        self.b2: list[OffloadKey] = []
        self.target = 0.0

    def insert(self, key: OffloadKey) -> None:
        self.t1.append(key)
        for ghosts in (self.b1, self.b2):
            if key in ghosts:
                ghosts.remove(key)

    def freed(self, keys: Sequence[OffloadKey]) -> None: ...

    def pinned(self, key: OffloadKey) -> None: ...

    def dropped(self, key: OffloadKey) -> None:
        (self.t1 if key in self.t1 else self.t2).remove(key)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.t1:
                self.t1.remove(key)
                (self.t2 if self.refs[key] >= 0 else self.t1).append(key)
            elif key in self.t2:
                self.t2.remove(key)
                self.t2.append(key)
            elif key in self.b1:
                self.target = min(self.capacity, self.target + max(1.0, len(self.b2) / len(self.b1)))
                self.b1.remove(key)
                self.b1.append(key)
            elif key in self.b2:
                self.target = max(0.0, self.target - max(1.0, len(self.b1) / len(self.b2)))
                self.b2.remove(key)
                self.b2.append(key)

    def evict(self, n: int, protected: Sequence[OffloadKey]) -> list[OffloadKey] | None:
        t1, t2 = list(self.t1), list(self.t2)
        victims: list[OffloadKey] = []
        for _ in range(n):
            from_t1 = [key for key in t1 if self.refs[key] == 0 and key not in protected]
            from_t2 = [key for key in t2 if self.refs[key] == 0 and key not in protected]
            choice = from_t1 + from_t2 if len(t1) >= int(self.target) else from_t2 + from_t1
            if not choice:
                return None
            victims.append(choice[0])
            (t1 if choice[0] in t1 else t2).remove(choice[0])
        self.b1 = (self.b1 + [key for key in victims if key in self.t1])[-self.capacity :]
        self.b2 = (self.b2 + [key for key in victims if key in self.t2])[-self.capacity :]
        self.t1, self.t2 = t1, t2
        return victims


class SlowCPU:
    """``CPUOffloadingManager`` in slow motion. ``waiting``: events not yet taken."""

    def __init__(self, capacity: int, policy: str, *, threshold: int = 1, tracked: int = 64_000) -> None:
        self.capacity, self.threshold, self.tracked = capacity, threshold, tracked
        self.refs: dict[OffloadKey, int] = {}
        self.slot: dict[OffloadKey, int] = {}
        self.policy = SlowLRU() if policy == "lru" else SlowARC(capacity, self.refs)
        self.asked: list[OffloadKey] = []
        self.waiting: list[Said] = []
        self.reset_slots()

    def reset_slots(self) -> None:
        self.unused = list(range(self.capacity))
        self.given_back: list[int] = []

    def lookup(self, key: OffloadKey) -> str:
        # Every lookup of a key is in the list, oldest first; the key asked for longest ago is forgotten.
        self.asked.append(key)
        distinct = list(dict.fromkeys(reversed(self.asked)))
        if len(distinct) > self.tracked:
            self.asked = [asked for asked in self.asked if asked != distinct[-1]]
        if key not in self.refs:
            return "MISS"
        return "HIT_PENDING" if self.refs[key] == -1 else "HIT"

    def prepare_load(self, keys: Sequence[OffloadKey]) -> list[int]:
        for key in keys:
            if self.refs[key] == 0:
                self.policy.pinned(key)
            self.refs[key] += 1
        return [self.slot[key] for key in keys]

    def complete_load(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            self.refs[key] -= 1
            if self.refs[key] == 0:
                self.policy.freed([key])

    def prepare_store(
        self, keys: Sequence[OffloadKey]
    ) -> tuple[list[OffloadKey], list[int], list[OffloadKey]] | None:
        wanted: list[OffloadKey] = []
        for key in keys:
            often = self.threshold < 2 or self.asked.count(key) >= self.threshold
            if key not in wanted and often:
                wanted.append(key)
        new = [key for key in wanted if key not in self.refs]
        need = len(new) - len(self.unused) - len(self.given_back)
        evicted: list[OffloadKey] = []
        if need > 0:
            victims = self.policy.evict(need, wanted)
            if victims is None:
                return None
            evicted = victims
            for key in evicted:
                self.given_back.append(self.slot.pop(key))
                del self.refs[key]
            self.waiting.append(("removed", tuple(evicted), "evicted"))
        for key in new:
            self.slot[key] = self.unused.pop(0) if self.unused else self.given_back.pop()
            self.refs[key] = -1
            self.policy.insert(key)
        return new, [self.slot[key] for key in new], evicted

    def complete_store(self, keys: Sequence[OffloadKey], success: bool) -> None:
        arrived = []
        for key in keys:
            if self.refs.get(key) == -1 and key not in arrived:
                arrived.append(key)
        for key in arrived:
            if success:
                self.refs[key] = 0
            else:
                self.policy.dropped(key)
                del self.refs[key]
                self.given_back.append(self.slot.pop(key))
        if success and arrived:
            self.policy.freed(arrived)
            self.waiting.append(("stored", tuple(arrived), None))

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        self.policy.touch(keys)

    def reset(self) -> None:
        readable = tuple(key for key, readers in self.refs.items() if readers >= 0)
        if readable:
            self.waiting.append(("removed", readable, "reset"))
        self.refs.clear()
        self.slot.clear()
        self.asked = []
        self.policy.clear()
        self.reset_slots()

    def take_events(self) -> list[Said]:
        taken, self.waiting = self.waiting, []
        return taken
