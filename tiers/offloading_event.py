"""What a tier says of its own blocks, and the buffer in which it says it.

An event is made when the tier's own state changes, and only then; nobody else makes one for it. Taking
swaps the buffer out at once, so each event is handed out exactly once, however the caller goes through
them. Nothing here knows where events go.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tiers.keys import OffloadKey
from tiers.medium import Locality, Medium

Reason = Literal["evicted", "reset", "corrupt", "deleted"]


@dataclass(frozen=True, slots=True)
class OffloadingEvent:
    """Blocks became readable in a tier, or (``removed``) are no longer there. Fields as in vLLM.

    ``ownership`` is a secondary tier's id, None for the primary. ``removal_expected``: the tier will also
    say when it gives these blocks up.

    ``emit_seq`` and ``reason`` are ours and take no part in ``==``: two events are equal when vLLM's fields
    say the same. ``emit_seq`` is taken from one counter per composing manager, when the event is made;
    ``reason`` is why blocks were removed.
    """

    keys: list[OffloadKey]
    medium: Medium
    removed: bool
    locality: Locality | None = None
    ownership: str | None = None
    removal_expected: bool = False
    emit_seq: int | None = field(default=None, compare=False)
    reason: Reason | None = field(default=None, compare=False)


class EventBuffer:
    """The events of one tier since they were last taken. Not enabled, it keeps nothing."""

    def __init__(
        self,
        medium: Medium,
        *,
        enabled: bool = True,
        locality: Locality | None = None,
        ownership: str | None = None,
        removal_expected: bool = False,
    ) -> None:
        self.medium = medium
        self.enabled = enabled
        self.locality = locality
        self.ownership = ownership
        self.removal_expected = removal_expected
        self._numbers: Iterator[int] = itertools.count()
        self._waiting: list[OffloadingEvent] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def stored(self, keys: Sequence[OffloadKey]) -> None:
        """These blocks became readable, in this order. No keys, no event."""
        self._say(keys, removed=False, reason=None)

    def removed(self, keys: Sequence[OffloadKey], reason: Reason) -> None:
        """These blocks are no longer there. No keys, no event."""
        self._say(keys, removed=True, reason=reason)

    def take(self) -> list[OffloadingEvent]:
        """Hand out what there is, oldest first, and forget it."""
        taken, self._waiting = self._waiting, []
        return taken

    def number_from(self, numbers: Iterator[int]) -> None:
        """Take ``emit_seq`` from this counter from now on; events not yet taken are numbered anew."""
        self._numbers = numbers
        self._waiting = [replace(event, emit_seq=next(numbers)) for event in self._waiting]

    def _say(self, keys: Sequence[OffloadKey], *, removed: bool, reason: Reason | None) -> None:
        if not keys or not self.enabled:
            return
        self._waiting.append(
            OffloadingEvent(
                list(keys),
                self.medium,
                removed,
                self.locality,
                self.ownership,
                self.removal_expected and not removed,
                next(self._numbers),
                reason,
            )
        )
