"""What a tier says of its own blocks, and the buffer in which it says it.

An event is made when the tier's own state changes, and only then; nobody else makes one for it. Blocks are
named by their keys, which others describe. Nothing here knows where events go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tiers.keys import OffloadKey
from tiers.medium import Locality, Medium
from tiers.numbered_buffer import EVENTS_MAX, NumberedBuffer

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


class EventBuffer(NumberedBuffer[OffloadingEvent]):
    """The events of one tier, all with what is the same in each of them. Not enabled, it keeps nothing;
    never more than ``events_max`` events. Raises ``TierValueError`` for a bound below 1.
    """

    def __init__(
        self,
        medium: Medium,
        *,
        enabled: bool = True,
        locality: Locality | None = None,
        ownership: str | None = None,
        removal_expected: bool = False,
        events_max: int = EVENTS_MAX,
    ) -> None:
        super().__init__(replace, whose=ownership or medium.value, enabled=enabled, events_max=events_max)
        self.medium = medium
        self.locality = locality
        self.ownership = ownership
        self.removal_expected = removal_expected

    def stored(self, keys: Sequence[OffloadKey]) -> None:
        """These blocks became readable, in this order. No keys, no event."""
        self._say(keys, removed=False, reason=None)

    def removed(self, keys: Sequence[OffloadKey], reason: Reason) -> None:
        """These blocks are no longer there. No keys, no event."""
        self._say(keys, removed=True, reason=reason)

    def _say(self, keys: Sequence[OffloadKey], *, removed: bool, reason: Reason | None) -> None:
        if not keys or not self.enabled:
            return
        self._add(
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
