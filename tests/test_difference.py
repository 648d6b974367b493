"""``kvbus/difference.py``: what is missing, extra, reordered, rebatched."""

from __future__ import annotations

import pytest

from kvbus.difference import Difference
from kvbus.testing import block
from tests.tellings import pair, versus


def counts(a: str, b: str, *ignore: str) -> tuple[int, int, int, int]:
    found = pair(a, b, *ignore).difference
    assert isinstance(found, Difference)
    return found.missing_count, found.extra_count, found.reordered, found.rebatched


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("+a | +b | +c | -a", "+a | +c | -a", (1, 0, 0, 0)),
        ("+a | +c | -a", "+a | +b | +c | -a", (0, 1, 0, 0)),
        ("+a | +b | -a | -b | +c", "+a | +b | -b | -a | +c", (0, 0, 1, 0)),
        ("+a +b | -a", "+a | +b | -a", (0, 0, 0, 1)),
        ("+a | c:+a | -a", "+a | s:+a | -a", (1, 1, 0, 0)),
        ("+a | -a!evicted", "+a | -a!reset", (1, 1, 0, 0)),
        ("clear | +a | clear | clear", "clear | clear | +a | clear", (0, 0, 1, 0)),
    ],
)
def test_the_fewest_differences_are_counted(a: str, b: str, expected: tuple[int, int, int, int]) -> None:
    """One thing that is changed is one thing that is told."""
    assert counts(a, b) == expected


def test_a_block_moved_to_another_batch_without_order_in_batches() -> None:
    """Inside batches nothing is reordered; across them it is."""
    assert counts("+a +b | +c | -a -b", "+b | +a +c | -b -a", "reorder-within-batch")[:3] == (0, 0, 0)
    assert counts("+a +b | -a | -b | +c", "+a | -b | -a +b | +c", "reorder-within-batch")[2] > 0


def test_without_hashes_blocks_are_known_by_what_they_stand_behind() -> None:
    """A chain that is missing from a baseline's other side does not make strangers of the chains after it."""
    a = "+r | +r>x | +x>y | +r>a,b | +b>c | -c"
    b = a.replace(" +r>x | +x>y |", "")
    found = versus(a, b.translate(str.maketrans("abc", "def"))).pairs[0].difference
    assert found is not None
    assert (found.missing_count, found.extra_count, found.reordered) == (2, 0, 0)


def test_examples_are_bounded_and_all_are_counted() -> None:
    """Twenty of each kind are kept, in order."""
    found = pair(" | ".join(f"+x{n}" for n in range(50)), "-z").difference
    assert found is not None
    assert (found.missing_count, len(found.missing), found.extra_count) == (50, 20, 1)
    assert [event.blocks for event in found.missing] == [(block(f"x{n}"),) for n in range(20)]
