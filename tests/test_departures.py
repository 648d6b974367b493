"""What was the case when each block left its tier."""

from __future__ import annotations

import pytest

from kvbus.chunks import Chunks
from kvbus.departures import Departures
from kvbus.testing import history


def facts(text: str) -> list[str]:
    """Of each removal: copies before and after, and which of the rest is so."""
    names = Chunks()
    found = Departures(names).look(names.of_entries(history(text)))
    flags = ("below", "empties", "doubtful", "blind")
    return [
        " ".join([f"{before}>{after}", *(flag for flag in flags if getattr(found, flag)[n])])
        for n, (before, after) in enumerate(zip(found.before.tolist(), found.after.tolist(), strict=True))
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g:+a | g:-a", ["1>0"]),
        ("g:+a,a | g:-a | g:-a | g:-a", ["2>1", "1>0", "0>0"]),
        ("g:+a | g:-a c:+a", ["1>0 below"]),
        ("g:+a | c:+a c:-a g:-a", ["1>0", "1>0"]),
        ("c:+a,b | c:-a c:-b", ["1>0 empties", "1>0 empties"]),
        ("c:+a,b | c:-a,b c:+d", ["1>0", "1>0"]),
        ("g:+a c:+b | lost(1) g:-a", ["1>0 doubtful blind"]),
        ("lost(1) g:+a | clear | g:+a | g:-a", ["1>0"]),
    ],
)
def test_the_facts_of_each_departure(text: str, expected: list[str]) -> None:
    """Copies are counted, the tiers below asked when the batch is over, and holes make both uncertain."""
    assert facts(text) == expected


def test_a_clear_took_what_its_tier_held() -> None:
    """A shelf a group, with the clear that ended it; other media keep theirs."""
    names = Chunks()
    departures = Departures(names)
    departures.look(names.of_entries(history("g:+a,b g/1:+a c:+a | clear")))
    taken = {names.places.names[shelf.place]: (clear.position, n) for shelf, clear, n in departures.cleared()}
    assert {(place.medium, place.group): told for place, told in taken.items()} == {
        ("GPU", None): (1, 2),
        ("GPU", 1): (1, 1),
    }
