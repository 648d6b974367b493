"""``kvbus/tolerance.py``: when events count as the same."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvbus.comparison import compare
from kvbus.errors import ConfigError
from kvbus.telling import Telling, Told, Voice, Where
from kvbus.tolerance import TOLERANCES, tolerances
from tests.tellings import versus


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("reorder-within-batch", "+a +b | -a", "+b +a | -a"),
        ("reorder-within-batch", "g:+a c:+b", "c:+b g:+a"),
        ("reorder-within-event", "+a,b,c | -a | -c", "+c,b,a | -a | -c"),
        ("batching", "+a +b | -a", "+a | +b -a"),
        ("interleaving", "@e/cpu c:+a | @e/fs s:+a | @e/cpu c:-a", "@e/cpu c:+a | c:-a | @e/fs s:+a"),
        ("parents", "+a | +a>b", "+a | +b"),
        ("tokens", "+a | +b~", "+a | +b"),
        ("groups", "g/1:+a", "g/2:+a"),
        ("reasons", "+a | -a!evicted", "+a | -a!reset"),
        ("restarts", "+a | restart +b", "+a | +b"),
        ("losses", "+a | lost(3) +b", "+a | +b"),
    ],
)
def test_each_tolerance_ignores_what_it_says(name: str, a: str, b: str) -> None:
    """Two histories that differ in one thing are different, and the same where that is ignored. (The first
    pair of each is the same, or not, by first sight: see the next test.)
    """
    assert versus(a, b, name).same
    if (name, a) != ("reorder-within-batch", "+a +b | -a"):
        assert not versus(a, b).same or name == "reorder-within-event"


def test_owners_can_be_ignored() -> None:
    """Which tier an event says it is from counts, unless it is ignored."""
    event = Told(0, 0, "stored", Where(), "STORAGE", blocks=(1,), owner="fs")
    a = Telling("a", [Voice("e")], [event])
    b = structs.replace(a, events=[structs.replace(event, owner="s3")])
    assert not compare(a, b).same
    assert compare(a, b, tolerances(["owners"])).same


def test_names_decide_nothing() -> None:
    """By first sight these differ in the second batch; without order in the first they are the same."""
    assert not versus("+a +b | -a", "+b +a | -a").same
    assert versus("+a +b | -a", "+x +y | -x").same
    assert versus("+a +b | -b", "+x +y | -x", "reorder-within-batch").same


def test_tolerance_does_not_blind() -> None:
    """What is ignored hides nothing else: a block that leaves twice, another batch, another medium."""
    for b in ("+b +a | -a | -a", "+a | +b -a | -b", "+a c:+b | -a | -b"):
        assert not versus("+a +b | -a | -b", b, "reorder-within-batch").same


def test_names_of_tolerances() -> None:
    """With commas or repeated; one that is none, and two that leave no order, are refused."""
    assert tolerances(["batching,tokens", "losses"]) == {"batching", "tokens", "losses"}
    for wrong in (["time"], ["batching", "reorder-within-batch"]):
        with pytest.raises(ConfigError):
            tolerances(wrong)
    assert all(name in TOLERANCES for name in tolerances([",".join(TOLERANCES.keys() - {"batching"})]))


# -- against a reference that tries everything -----------------------------------------------------------

Small = list[list[tuple[str, int]]]
"""Batches of (what, block): three blocks, single events."""
SMALL = st.lists(
    st.lists(st.tuples(st.sampled_from(["stored", "removed"]), st.integers(1, 3)), min_size=1, max_size=3),
    max_size=3,
)


def of_small(small: Small) -> Telling:
    events = [
        Told(0, batch, what, Where(), "CPU", blocks=(block,))
        for batch, members in enumerate(small)
        for what, block in members
    ]
    return Telling("x", [Voice("e")], events)


def by_trying(a: Small, b: Small) -> bool:
    """Whether some order inside A's batches and some naming of its blocks give B."""
    wanted = [member for batch in b for member in batch]
    if [len(batch) for batch in a] != [len(batch) for batch in b]:
        return False
    for orders in product(*(permutations(batch) for batch in a)):
        for names in permutations((1, 2, 3)):
            if [(what, names[block - 1]) for batch in orders for what, block in batch] == wanted:
                return True
    return False


@settings(deadline=None, max_examples=300)
@given(SMALL, SMALL, st.randoms(use_true_random=False))
def test_without_order_in_batches_as_if_everything_was_tried(a: Small, b: Small, random: object) -> None:
    """The answer is that of a search through all orders and all namings, of like and unlike histories."""
    del random
    shuffled = [batch[::-1] for batch in a]
    for other in (b, shuffled):
        found = compare(of_small(a), of_small(other), {"reorder-within-batch"}).same
        assert found == by_trying(a, other)
