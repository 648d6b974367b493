"""What is being asked about blocks that a tier does not know, and what was answered. Pure.

On a medium shared with other processes a block may be there although it is not in the books. Finding out
takes a call that blocks, so the question waits until the end of the step, goes out with the others in
batches, and the request sees RETRY meanwhile. A "no" holds for the life of the request, also for a block
whose load failed: asking again at every step would never end. What could not be found out is asked again, a
few times, and is a "no" then. A "yes" is the tier's to remember.
Who asks the medium, and how, is decided elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tiers.errors import TierValueError
from tiers.keys import OffloadKey

MAX_OPEN_QUESTIONS: Final = 65_536
KEYS_A_BATCH: Final = 1_024
MAX_TRIES: Final = 3
"""How often one block is asked about before those who wait are told no."""


@dataclass
class Question:
    """About one block. ``batch`` is None until it is sent, and when it is to be sent again after ``tries``;
    ``asked_at`` in the clock's seconds.
    """

    asked_at: float
    batch: int | None = None
    tries: int = 0
    req_ids: set[str] = field(default_factory=set)


@dataclass
class Asker:
    """One request: what it waits to hear of, and what it takes for missing."""

    asked: set[OffloadKey] = field(default_factory=set)
    missing: set[OffloadKey] = field(default_factory=set)


class AsyncLookup:
    """At most ``max_open`` questions at a time, ``keys_a_batch`` in one batch."""

    def __init__(self, *, max_open: int = MAX_OPEN_QUESTIONS, keys_a_batch: int = KEYS_A_BATCH) -> None:
        if max_open < 1 or keys_a_batch < 1:
            raise TierValueError(
                f"max_open {max_open}, keys_a_batch {keys_a_batch}", next_step="Give at least 1 of each."
            )
        self.max_open = max_open
        self.keys_a_batch = keys_a_batch
        self._open: dict[OffloadKey, Question] = {}
        self._unsent: list[OffloadKey] = []
        self._askers: dict[str, Asker] = {}
        self._next_batch = 0
        self._counts: Counter[str] = Counter()
        self._delay_seconds = 0.0

    def begin(self, req_id: str) -> None:
        """First sight of a request."""
        self._askers.setdefault(req_id, Asker())

    def forget(self, req_id: str) -> None:
        """The request is over. Questions nobody else waits for need no answer."""
        asker = self._askers.pop(req_id, None)
        for key in asker.asked if asker else ():
            self._open[key].req_ids.discard(req_id)
            if not self._open[key].req_ids:
                del self._open[key]

    def is_missing(self, key: OffloadKey, req_id: str) -> bool:
        """Whether this request was told no, or could not load the block."""
        asker = self._askers.get(req_id)
        return asker is not None and key in asker.missing

    def mark_miss(self, keys: Iterable[OffloadKey], req_id: str) -> None:
        """For this request, if it is still alive, these blocks are not there, whatever comes."""
        if (asker := self._askers.get(req_id)) is not None:
            asker.missing.update(keys)

    def ask(self, key: OffloadKey, req_id: str, *, now: float) -> bool:
        """Wait for an answer. False if there are too many questions: count it as a miss for now."""
        question = self._open.get(key)
        if question is None:
            if len(self._open) >= self.max_open:
                self._counts["lookups_dropped.full"] += 1
                return False
            question = self._open[key] = Question(now)
            self._unsent.append(key)
        question.req_ids.add(req_id)
        self._askers.setdefault(req_id, Asker()).asked.add(key)
        return True

    def withdraw(self, key: OffloadKey) -> None:
        """The tier begins to store the block itself: an answer on its way would tell of times gone by."""
        if key in self._open:
            self._close(key)

    def _close(self, key: OffloadKey) -> Question:
        question = self._open.pop(key)
        for req_id in question.req_ids:
            self._askers[req_id].asked.discard(key)
        return question

    def flush(self) -> list[tuple[int, list[OffloadKey]]]:
        """The batches to send now: a number, and keys not asked about before, in the order they came."""
        unsent, self._unsent = self._unsent, []
        waiting = [key for key in dict.fromkeys(unsent) if self._is_unsent(key)]
        batches = []
        for start in range(0, len(waiting), self.keys_a_batch):
            batch = waiting[start : start + self.keys_a_batch]
            for key in batch:
                self._open[key].batch = self._next_batch
            batches.append((self._next_batch, batch))
            self._next_batch += 1
        return batches

    def _is_unsent(self, key: OffloadKey) -> bool:
        question = self._open.get(key)
        return question is not None and question.batch is None

    def answered(
        self, batch: int, found: Mapping[OffloadKey, bool | None], *, now: float
    ) -> dict[OffloadKey, set[str]]:
        """Take the answers to a batch; None: could not be found out. Blocks that are there, each with the
        requests that waited for it.
        """
        waiting = {}
        for key, is_there in found.items():
            question = self._open.get(key)
            if question is None or question.batch != batch or self._put_again(key, question, is_there):
                continue
            self._close(key)
            self._delay_seconds += now - question.asked_at
            self._counts["lookup_async_delays"] += 1
            if is_there:
                waiting[key] = question.req_ids
            else:
                for req_id in question.req_ids:
                    self.mark_miss((key,), req_id)
        return waiting

    def _put_again(self, key: OffloadKey, question: Question, is_there: bool | None) -> bool:
        """Whether this question goes out with the next batch once more."""
        question.tries += 1
        if is_there is not None or question.tries >= MAX_TRIES:
            return False
        question.batch = None
        self._unsent.append(key)
        return True

    def get_stats(self) -> Mapping[str, float]:
        """``lookup_async_delay_seconds`` is a sum over ``lookup_async_delays`` answers."""
        return {
            **self._counts,
            "lookup_async_delay_seconds": self._delay_seconds,
            "lookups_open": len(self._open),
        }

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert len(self._open) <= self.max_open, "too many questions"
        assert all(question.req_ids for question in self._open.values()), "a question nobody asked"
        asked = {(req_id, key) for req_id, asker in self._askers.items() for key in asker.asked}
        waits = {(req_id, key) for key, question in self._open.items() for req_id in question.req_ids}
        assert asked == waits, "a request waits for no question, or a question for no request"
        unsent = {key for key, question in self._open.items() if question.batch is None}
        assert unsent <= set(self._unsent), "a question that is never sent"
