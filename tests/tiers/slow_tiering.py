"""The composing manager and a memory tier as the rules state them: lists, in slow motion."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tiers.model import Said, SlowCPU
from tiers import OffloadKey

Job = tuple[int, list[OffloadKey], bool, int]
"""(number, keys, is it a promotion, due in step)."""


class SlowMemory:
    def __init__(self, capacity: int, delay: int) -> None:
        self.capacity, self.delay = capacity, delay
        self.queue: list[OffloadKey] = []  # not read by anybody, least recently used first
        self.read: list[OffloadKey] = []  # once for each reader
        self.jobs: list[Job] = []
        self.finished: list[tuple[int, list[OffloadKey]]] = []
        self.step = 0
        self.waiting: list[Said] = []

    def has(self, key: OffloadKey) -> bool:
        return key in self.queue or key in self.read

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.queue:
                self.queue.remove(key)
                self.queue.append(key)

    def submit(self, number: int, keys: list[OffloadKey], promotion: bool) -> None:
        if promotion:
            for key in keys:
                if self.has(key):
                    if key in self.queue:
                        self.queue.remove(key)
                    self.read.append(key)
        self.jobs.append((number, keys, promotion, self.step + self.delay))
        self.work()

    def work(self, everything: bool = False) -> None:
        while self.jobs and (everything or self.jobs[0][3] <= self.step):
            number, keys, promotion, _ = self.jobs.pop(0)
            self.finished.append((number, self.load(keys) if promotion else self.store(keys)))

    def load(self, keys: list[OffloadKey]) -> list[OffloadKey]:
        found = [key for key in keys if key in self.read]
        for key in found:
            self.read.remove(key)
            if key not in self.read:
                self.queue.append(key)
        self.touch(found)
        return found

    def store(self, keys: list[OffloadKey]) -> list[OffloadKey]:
        todo, used, victims, landed = list(keys), list[OffloadKey](), list[OffloadKey](), list[OffloadKey]()
        while todo:
            key = todo.pop(0)
            if not self.has(key):
                idle = [one for one in self.queue if one not in used]
                if self.held() >= self.capacity and idle:
                    self.queue.remove(idle[0])
                    victims.append(idle[0])
                    if idle[0] in todo:
                        todo.remove(idle[0])
                        todo.append(idle[0])
                if self.held() >= self.capacity:
                    continue
                self.queue.append(key)
                landed.append(key)
            used.append(key)
        self.touch([key for key in keys if key in used])
        if victims:
            self.waiting.append(("removed", tuple(victims), "evicted"))
        if landed:
            self.waiting.append(("stored", tuple(landed), None))
        return landed

    def held(self) -> int:
        return len(self.queue) + len(set(self.read))

    def schedule_end(self) -> None:
        self.step += 1
        self.work()

    def take_events(self) -> list[Said]:
        taken, self.waiting = self.waiting, []
        return taken


class SlowTiering:
    def __init__(self, primary: SlowCPU, tiers: list[SlowMemory]) -> None:
        self.primary, self.tiers = primary, tiers
        self.jobs: dict[int, tuple[int, list[OffloadKey], bool]] = {}
        self.staged: list[tuple[int, str, OffloadKey]] = []
        self.next_job = 0
        self.polled = False

    def poll(self, dropping: bool = False) -> None:
        if self.polled and not dropping:
            return
        self.polled = True
        for tier in self.tiers:
            finished, tier.finished = tier.finished, []
            for number, found in finished:
                _, keys, promotion = self.jobs.pop(number)
                if promotion:
                    self.primary.complete_store([k for k in keys if k in found and not dropping], True)
                    self.primary.complete_store([k for k in keys if k not in found or dropping], False)
                else:
                    self.primary.complete_load(keys)

    def submit(self, idx: int, keys: list[OffloadKey], promotion: bool) -> None:
        self.jobs[self.next_job] = (idx, keys, promotion)
        self.tiers[idx].submit(self.next_job, keys, promotion)
        self.next_job += 1

    def lookup(self, key: OffloadKey, request: str) -> str:
        self.poll()
        found = self.primary.lookup(key)
        if found != "MISS":
            return found
        for idx, tier in enumerate(self.tiers):
            if tier.has(key):
                if self.primary.prepare_store([key]) is None:
                    return "MISS"
                self.staged.append((idx, request, key))
                return "HIT_PENDING"
        return "MISS"

    def prepare_store(
        self, keys: Sequence[OffloadKey]
    ) -> tuple[list[OffloadKey], list[int], list[OffloadKey]] | None:
        self.poll()
        return self.primary.prepare_store(keys)

    def complete_store(self, keys: list[OffloadKey], success: bool) -> None:
        pending = [key for key in keys if self.primary.refs.get(key) == -1]
        self.primary.complete_store(keys, success)
        if success and pending:
            for idx in range(len(self.tiers)):
                self.primary.prepare_load(pending)
                self.submit(idx, pending, False)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        self.primary.touch(keys)
        for tier in self.tiers:
            tier.touch(keys)

    def schedule_end(self) -> None:
        self.poll()
        self.polled = False
        batches: dict[tuple[int, str], list[OffloadKey]] = {}
        for idx, request, key in self.staged:
            batches.setdefault((idx, request), []).append(key)
        self.staged = []
        for (idx, _), keys in sorted(batches.items(), key=lambda batch: batch[0][0]):
            self.submit(idx, keys, True)
        for tier in self.tiers:
            tier.schedule_end()

    def reset(self) -> None:
        for tier in self.tiers:
            tier.work(everything=True)
        self.poll(dropping=True)
        self.staged = []
        self.primary.reset()
        self.polled = False

    def take_events(self) -> list[Said]:
        return self.primary.take_events() + [said for tier in self.tiers for said in tier.take_events()]
