"""Small tellings to compare, in the pocket language of ``kvbus.testing``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from kvbus.comparison import Comparison, Pair, compare
from kvbus.telling import Telling, telling
from kvbus.testing import history
from kvbus.tolerance import tolerances


def tell(text: str, *, name: str = "log", source: str = "engine") -> Telling:
    return telling(history(text, source=source), name=name)


def versus(a: str, b: str, *ignore: str) -> Comparison:
    return compare(tell(a, name="a"), tell(b, name="b"), tolerances(ignore))


def pair(a: str, b: str, *ignore: str) -> Pair:
    """Of histories with one engine."""
    (found,) = versus(a, b, *ignore).pairs
    return found


def renamed(told: Telling, rename: Callable[[int], int]) -> Telling:
    """The same with other hashes."""
    events = [
        structs.replace(
            event,
            blocks=tuple(map(rename, event.blocks)),
            parent=None if event.parent is None else rename(event.parent),
        )
        for event in told.events
    ]
    return structs.replace(told, events=events)


def without(told: Telling, places: Sequence[int]) -> Telling:
    """The same without some of its events."""
    kept = [event for n, event in enumerate(told.events) if n not in places]
    return structs.replace(told, events=kept)
