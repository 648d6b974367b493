"""Which slot comes next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers import Slots, TierContractError, TierValueError


def test_unused_ascending_then_last_given_back_first() -> None:
    """Never-used slots come in ascending order, then those given back, the last one first."""
    slots = Slots(5)
    assert slots.take(3) == [0, 1, 2]
    slots.give_back([1, 0])
    assert slots.take(4) == [3, 4, 0, 1]
    slots.give_back([3, 0, 1])
    assert slots.take(3) == [1, 0, 3]
    slots.check_integrity()


def test_no_more_than_there_are() -> None:
    """Taking too many is refused and takes none."""
    slots = Slots(2)
    with pytest.raises(TierContractError, match="3 slots wanted, 2 free"):
        slots.take(3)
    assert slots.take(2) == [0, 1]


def test_a_negative_number_of_slots() -> None:
    """A tier cannot have fewer than no slots."""
    with pytest.raises(TierValueError):
        Slots(-1)


@pytest.mark.parametrize("wrong", [[0, 0], [2], [-1]])
def test_check_sees_what_was_given_back_wrongly(wrong: list[int]) -> None:
    """A slot given back twice, or never taken, does not pass the check."""
    slots = Slots(3)
    slots.take(2)
    slots.give_back(wrong)
    with pytest.raises(AssertionError):
        slots.check_integrity()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=40))
def test_taken_and_free_add_up(steps: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back, a slot has one holder, and all slots are accounted for."""
    slots, held = Slots(7), list[int]()
    for take, count in steps:
        if take:
            held += slots.take(min(count, slots.free))
        else:
            slots.give_back(held[:count])
            del held[:count]
        assert sorted(set(held)) == sorted(held)
        assert (slots.taken, slots.free) == (len(held), 7 - len(held))
        assert [slots.is_free(slot) for slot in range(7)] == [slot not in held for slot in range(7)]
        slots.check_integrity()
    slots.reset()
    assert slots.take(7) == list(range(7))
