"""What a tier has said and nobody has taken yet: numbered as it is said, handed out once, bounded.

The numbers come from a counter that tiers can share, so that the order across them can be had from the
events. Taking swaps the buffer out at once, however the caller goes through what it got. Where nobody takes,
the oldest event goes when a new one finds no room: that is counted, logged once, and leaves a hole in the
numbers. Events are not made here, and what they mean is not known.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

from tiers.argument import whole_number

EVENTS_MAX: Final = 1_000_000
"""Events that wait in one buffer, some 250 MB: hours of an engine that makes a hundred a second."""

E = TypeVar("E")

log = logging.getLogger(__name__)


class Replace(Protocol[E]):
    """A copy of an event under another number: ``replace`` of dataclasses or of msgspec's structs."""

    def __call__(self, event: E, /, *, emit_seq: int) -> E: ...


class NumberedBuffer(Generic[E]):
    """The events of one tier since they were last taken. Who derives from it makes them, each with the next
    number; not ``enabled``, it keeps none.

    ``counts["events_dropped.undrained"]``: events that nobody took before ``events_max`` others waited.
    """

    def __init__(
        self, replace: Replace[E], *, whose: str, enabled: bool = True, events_max: int = EVENTS_MAX
    ) -> None:
        self.enabled = enabled
        self.events_max = whole_number("events_max", events_max, at_least=1)
        self.counts: Counter[str] = Counter()
        self._replace = replace
        self._whose = whose
        self._numbers: Iterator[int] = itertools.count()
        self._waiting: deque[E] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> list[E]:
        """Hand out what there is, oldest first, and forget it."""
        if not self._waiting:  # the case of most steps
            return []
        taken, self._waiting = self._waiting, deque()
        return list(taken)

    def number_from(self, numbers: Iterator[int]) -> None:
        """Take ``emit_seq`` from this counter from now on; events not yet taken are numbered anew."""
        self._numbers = numbers
        self._waiting = deque(self._replace(event, emit_seq=next(numbers)) for event in self._waiting)

    def _add(self, event: E) -> None:
        if len(self._waiting) >= self.events_max:
            self._drop_oldest()
        self._waiting.append(event)

    def _drop_oldest(self) -> None:
        self._waiting.popleft()
        if not self.counts:
            log.warning(
                "%s: nobody takes its events: %d events wait, and from now on the oldest are dropped",
                self._whose,
                self.events_max,
            )
        self.counts["events_dropped.undrained"] += 1

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert len(self._waiting) <= self.events_max, "more events wait than may"
