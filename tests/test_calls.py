"""``kvbus/calls.py``: names of blocks for people."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbus.baseline import named
from kvbus.calls import Calls, spelled
from tests.tellings import tell


def test_blocks_are_called_by_first_sight() -> None:
    """The parent comes before its children; who has a name keeps it; a block is called the same for ever."""
    (event,) = tell("+p>x,y").events
    parent, x, y = event.parent or 0, *event.blocks
    calls = Calls({x: "prompt"})
    calls.meet(event)
    assert [calls.name(block) for block in (parent, x, y, parent)] == ["b1", "prompt", "b2", "b1"]


def test_runs_are_short() -> None:
    """Three and more in a row become a range; a name that is no number is left alone."""
    assert spelled(["b1", "b2", "b3", "b5", "b6", "x", "b7"]) == "b1..b3,b5,b6,x,b7"
    assert spelled([]) == ""


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**50), min_size=1))
def test_what_is_spelled_can_be_read(numbers: list[int]) -> None:
    """Any series of blocks comes back from its spelling."""
    assert named(spelled([f"b{number}" for number in numbers])) == tuple(numbers)
