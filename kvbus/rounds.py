"""One drain of an engine as it comes out of its aggregator: a ``Round``.

Its entries are in the contract's order, by tier. One counter for all tiers of a composing manager gives the
order in time back, where somebody wants that. Nothing is merged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kvbus.events import Event, EventBatch
from kvbus.log import Entry, Received


class Round(Struct, frozen=True):
    """One drain as far as it has come: the tiers' entries in configured order. ``ts`` in seconds.

    ``absent``: tiers that were no longer waited for. ``skipped_by``: tiers that have gone on and left no
    share of it, as one does whose publisher died and came back.
    """

    ts: float
    entries: list[Entry]
    absent: tuple[str, ...] = ()
    skipped_by: tuple[str, ...] = ()


def emitted(entries: Sequence[Entry]) -> Iterator[tuple[Received, int, Event]]:
    """The events of a round in the order in which they were made (``emit_seq``), each with its batch and
    index. Events without a number stay behind the one before them in their batch.
    """
    keyed: list[tuple[int, int, Received, int, Event]] = []
    for entry in entries:
        if not isinstance(entry, Received) or not isinstance(entry.batch, EventBatch):
            continue
        last = -1
        for index, event in enumerate(entry.batch.events):
            number = getattr(event, "emit_seq", None)
            last = last if number is None else number
            keyed.append((last, len(keyed), entry, index, event))
    for _, _, received, index, event in sorted(keyed, key=lambda item: item[:2]):
        yield received, index, event
