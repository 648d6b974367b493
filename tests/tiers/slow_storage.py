"""The storage tier as its rules state it: lists, searched from the front, every block of size one.

Independent of the code under test. It is told what the medium did, in the order in which the tier learnt of
it, and says what must have been announced and reported by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.tiers.model import Said
from tiers import OffloadKey

Ended = tuple[int, bool, tuple[OffloadKey, ...] | None]
"""A result in short: job, success, what arrived of a load that failed in part."""


@dataclass
class SlowJob:
    number: int
    keys: list[OffloadKey]
    is_load: bool
    request: str
    open: int
    failed: set[OffloadKey] = field(default_factory=set)
    pinned: list[tuple[OffloadKey, int]] = field(default_factory=list)
    reasons: dict[OffloadKey, str] = field(default_factory=dict)


class SlowStorage:
    def __init__(self, bound: int, *, shared: bool) -> None:
        self.bound = bound
        self.shared = shared
        self.queue: list[OffloadKey] = []  # resident, the least recently used first
        self.life: dict[OffloadKey, int] = {}
        self.lives = 0
        self.landing: dict[OffloadKey, SlowJob] = {}
        self.roomless: set[OffloadKey] = set()  # landing, and their victims not yet deleted
        self.leaving: list[OffloadKey] = []
        self.stuck: list[OffloadKey] = []
        self.tried: list[OffloadKey] = []  # of the stuck ones, those being deleted again
        self.put_off: dict[OffloadKey, tuple[int, float]] = {}  # failures so far, and when it is tried again
        self.in_a_row = 0
        self.next_eviction = 0.0
        self.braked = 0
        self.now = 0.0
        self.jobs: list[SlowJob] = []
        self.waiting: list[tuple[OffloadKey, SlowJob, OffloadKey]] = []  # until the first one is deleted
        self.joined: list[tuple[OffloadKey, SlowJob]] = []
        self.questions: dict[OffloadKey, list[str]] = {}
        self.sent: dict[OffloadKey, int] = {}
        self.tries: dict[OffloadKey, int] = {}
        self.batches = 0
        self.missing: dict[str, set[OffloadKey]] = {}
        self.victims: dict[OffloadKey, list[OffloadKey]] = {}
        self.said: list[Said] = []
        self.results: list[Ended] = []

    def say(self, kind: str, keys: Sequence[OffloadKey], reason: str | None = None) -> None:
        if keys:
            self.said.append(("removed" if kind == "removed" else "stored", tuple(keys), reason))

    # Order of use

    def is_pinned(self, key: OffloadKey) -> bool:
        return any((key, self.life[key]) in job.pinned for job in self.jobs)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.queue and not self.is_pinned(key):
                self.queue.remove(key)
                self.queue.append(key)

    def admit(self, key: OffloadKey) -> None:
        self.queue.append(key)
        self.lives += 1
        self.life[key] = self.lives

    def pin(self, job: SlowJob, key: OffloadKey) -> None:
        job.pinned.append((key, self.life[key]))

    # Room

    def booked(self) -> int:
        return len(self.queue) + len(self.landing) + len(self.stuck)

    def used(self) -> int:
        return self.booked() + len(self.leaving) - len(self.roomless)

    def make_room(self, count: int) -> list[OffloadKey] | None:
        if count <= 0:
            return []
        if self.in_a_row >= 2:
            if self.now < self.next_eviction:
                return None
            self.brake()
        idle = [key for key in self.queue if not self.is_pinned(key)]
        if len(idle) < count:
            return None
        for key in idle[:count]:
            self.queue.remove(key)
            self.leaving.append(key)
        return idle[:count]

    def brake(self) -> None:
        self.next_eviction = self.now + min(60.0, 2.0**self.braked)
        self.braked += 1

    # What is stuck

    def strand(self, key: OffloadKey) -> None:
        self.stuck.append(key)
        self.later(key)

    def later(self, key: OffloadKey) -> None:
        failures, _ = self.put_off.get(key, (0, 0.0))
        self.put_off[key] = (failures + 1, self.now + min(60.0, 2.0**failures))

    def retry(self) -> None:
        self.tried += [
            key for key in self.stuck if key not in self.tried and self.put_off[key][1] <= self.now
        ]

    # Stores

    def submit_store(self, number: int, keys: list[OffloadKey], request: str) -> None:
        job = SlowJob(number, keys, False, request, len(set(keys)))
        self.jobs.append(job)
        self.place([(job, key) for key in dict.fromkeys(keys)])
        self.end([job])

    def place(self, blocks: list[tuple[SlowJob, OffloadKey]]) -> None:
        evicted: list[OffloadKey] = []
        over: list[SlowJob] = []
        for job, key in blocks:
            if key in self.queue:
                self.pin(job, key)
                self.done(job, over)
            elif key in self.landing:
                self.joined.append((key, job))
            elif first := [entry[0] for entry in self.waiting if entry[2] == key]:
                self.waiting.append((first[0], job, key))
            elif key in self.stuck:
                self.tried += [key] if key not in self.tried else []
                self.waiting.append((key, job, key))
            elif key in self.leaving:
                self.waiting.append((key, job, key))
            elif self.booked() < self.bound <= self.used():
                self.waiting.append((self.leaving[0], job, key))
            else:
                self.land(job, key, evicted, over)
        self.say("removed", evicted, "evicted")
        self.end(over)

    def land(self, job: SlowJob, key: OffloadKey, evicted: list[OffloadKey], over: list[SlowJob]) -> None:
        count = 0
        if self.booked() >= self.bound:
            count = 1 - min(self.bound - self.booked(), max(0, self.bound - self.used()))
        victims = self.make_room(count)
        if victims is None:
            job.failed.add(key)
            self.done(job, over)
            return
        evicted += victims
        self.landing[key] = job
        self.victims[key] = victims
        if victims:
            self.roomless.add(key)
        self.questions.pop(key, None)

    def done(self, job: SlowJob, over: list[SlowJob]) -> None:
        job.open -= 1
        if not job.open:
            over.append(job)

    def wrote(self, blocks: list[tuple[OffloadKey, list[tuple[OffloadKey, bool]], str]]) -> None:
        """Of one job: block, its victims and whether each was deleted, and what became of the block:
        ``"there"``, ``"failed"``, ``"unsure"``, or ``"untried"`` for want of room.
        """
        over: list[SlowJob] = []
        again: list[tuple[SlowJob, OffloadKey]] = []
        for key, deleted, fate in blocks:
            assert [victim for victim, _ in deleted] == self.victims.pop(key)
            job = self.landing[key]
            for victim, is_gone in deleted:
                self.gone(victim, is_gone)
            self.roomless.discard(key)
            if fate == "there":
                self.done(job, over)
                continue
            del self.landing[key]
            if fate == "unsure":
                self.strand(key)
            for one in [job, *(other for name, other in self.joined if name == key)]:
                if fate == "untried":
                    again.append((one, key))
                else:
                    one.failed.add(key)
                    self.done(one, over)
            self.joined = [pair for pair in self.joined if pair[0] != key]
        self.end(over)
        self.place(again)
        self.resume([pair for _, deleted, _ in blocks for pair in deleted])

    def gone(self, key: OffloadKey, is_gone: bool) -> None:
        if is_gone:
            (self.tried if key in self.tried else self.leaving).remove(key)
            self.stuck = [other for other in self.stuck if other != key]
            self.put_off.pop(key, None)
            self.in_a_row = self.braked = 0
        elif key in self.tried:
            self.tried.remove(key)
            self.later(key)
        else:
            self.leaving.remove(key)
            self.in_a_row += 1
            if self.in_a_row >= 2:
                self.brake()
            self.strand(key)

    def deleted(self, outcomes: list[tuple[OffloadKey, bool]]) -> None:
        for key, is_gone in outcomes:
            self.gone(key, is_gone)
        self.resume(outcomes)

    def resume(self, outcomes: list[tuple[OffloadKey, bool]]) -> None:
        again: list[tuple[SlowJob, OffloadKey]] = []
        over: list[SlowJob] = []
        for first, is_gone in outcomes:
            for _, job, key in [entry for entry in self.waiting if entry[0] == first]:
                if is_gone or key != first:
                    again.append((job, key))
                else:
                    job.failed.add(key)
                    self.done(job, over)
            self.waiting = [entry for entry in self.waiting if entry[0] != first]
        self.place(again)
        self.end(over)

    def end(self, over: list[SlowJob]) -> None:
        over = list(over)
        while over:
            job = over.pop(0)
            if job.open or job not in self.jobs:
                continue
            landed = [key for key in dict.fromkeys(job.keys) if self.landing.get(key) is job]
            for key in landed:
                del self.landing[key]
                self.admit(key)
            self.say("stored", landed)
            for key in landed:
                for other in [other for name, other in self.joined if name == key]:
                    self.pin(other, key)
                    self.done(other, over)
                self.joined = [pair for pair in self.joined if pair[0] != key]
            self.report(job)

    def report(self, job: SlowJob) -> None:
        self.jobs.remove(job)
        for pin in job.pinned:
            key, life = pin
            job.pinned = job.pinned[1:]
            if self.life.get(key) == life and key in self.queue and not self.was_kept(pin, job):
                self.queue.remove(key)
                self.queue.append(key)
        arrived = [key for key in dict.fromkeys(job.keys) if key not in job.failed]
        self.touch(arrived)
        partial = tuple(arrived) if job.failed and job.is_load else None
        self.results.append((job.number, not job.failed, partial))

    def was_kept(self, pin: tuple[OffloadKey, int], job: SlowJob) -> bool:
        return pin in job.pinned or any(pin in other.pinned for other in self.jobs)

    # Loads

    def submit_load(self, number: int, keys: list[OffloadKey], request: str) -> None:
        job = SlowJob(number, keys, True, request, len(keys))
        self.jobs.append(job)
        for key in keys:
            if key in self.queue:
                self.pin(job, key)
            else:
                job.failed.add(key)
                job.open -= 1
        self.end_load(job)

    def read(self, number: int, outcomes: list[tuple[OffloadKey, str | None]]) -> None:
        (job,) = [job for job in self.jobs if job.number == number]
        for key, reason in outcomes:
            job.open -= 1
            if reason:
                job.failed.add(key)
                job.reasons[key] = reason
        self.end_load(job)

    def end_load(self, job: SlowJob) -> None:
        if job.open:
            return
        for reason, said in (("corrupt", "corrupt"), ("missing", "deleted")):
            taken: list[OffloadKey] = []
            for key, life in job.pinned:
                if job.reasons.get(key) == reason and key in self.queue and self.life[key] == life:
                    self.queue.remove(key)
                    taken.append(key)
            self.say("removed", taken, said)
            self.leaving += taken if reason == "corrupt" else []
        if job.request in self.missing:
            self.missing[job.request] |= job.failed
        self.report(job)

    # Requests and questions

    def begin(self, request: str) -> None:
        self.missing.setdefault(request, set())

    def finish(self, request: str) -> None:
        self.missing.pop(request, None)
        for key, asking in list(self.questions.items()):
            self.questions[key] = [one for one in asking if one != request]
            if not self.questions[key]:
                del self.questions[key]

    def lookup(self, key: OffloadKey, request: str) -> str:
        if key in self.missing.get(request, ()):
            return "MISS"
        if key in self.queue:
            return "HIT"
        if not self.shared or key in [*self.landing, *self.leaving, *self.stuck]:
            return "MISS"
        self.begin(request)
        if key not in self.questions:
            self.questions[key] = []
            self.sent.pop(key, None)
            self.tries.pop(key, None)
        if request not in self.questions[key]:
            self.questions[key].append(request)
        return "RETRY"

    def flush(self) -> None:
        unsent = [key for key in self.questions if key not in self.sent]
        for key in unsent:
            self.sent[key] = self.batches
        self.batches += bool(unsent)

    def answered(self, batch: int, found: dict[OffloadKey, bool | None]) -> None:
        taker = SlowJob(-1, [], True, "", 1)
        self.jobs.append(taker)
        adopted: list[OffloadKey] = []
        evicted: list[OffloadKey] = []
        heard: list[tuple[OffloadKey, list[str]]] = []
        for key, is_there in found.items():
            if key not in self.questions or self.sent.get(key) != batch:
                continue
            self.tries[key] = self.tries.get(key, 0) + 1
            if is_there is None and self.tries[key] < 3:
                del self.sent[key]
            else:
                heard.append((key, self.questions.pop(key)))
        for key, asking in heard:
            victims = self.make_room(1 - (self.bound - self.booked())) if found[key] else None
            if victims is None:
                for request in asking:
                    self.missing[request].add(key)
                continue
            evicted += victims
            self.admit(key)
            self.pin(taker, key)
            adopted.append(key)
        self.jobs.remove(taker)
        self.say("removed", evicted, "evicted")
        self.say("stored", adopted)
        self.touch(adopted)
