"""Arguments from a configuration: what is taken, and what is refused by name."""

from __future__ import annotations

import pytest

from tiers.argument import seconds, text, whole_number, yes_or_no
from tiers.errors import TierValueError


def test_what_fits_is_given_back() -> None:
    """Nothing is converted, but a whole number of seconds becomes a float."""
    assert whole_number("n", 3, at_least=3) == 3
    assert yes_or_no("b", False) is False
    assert seconds("s", 2) == 2.0
    assert text("t", "ü") == "ü"
    assert text("t", "", may_be_empty=True) == ""


@pytest.mark.parametrize("wrong", [2, -1, 3.0, "3", True, None, [3]])
def test_numbers_are_whole_and_large_enough(wrong: object) -> None:
    """Text is no number, True is not 1, and 3.0 is not 3."""
    with pytest.raises(TierValueError, match="max_blocks"):
        whole_number("max_blocks", wrong, at_least=3)


def test_a_number_may_have_an_upper_bound() -> None:
    """It is said with the lower one."""
    assert whole_number("threads", 8, at_least=1, at_most=8) == 8
    with pytest.raises(TierValueError, match="Give a whole number, from 1 to 8"):
        whole_number("threads", 9, at_least=1, at_most=8)


@pytest.mark.parametrize("wrong", [0, 1, "false", "", None])
def test_yes_and_no_are_not_guessed(wrong: object) -> None:
    """The text "false" would be true if it were tried."""
    with pytest.raises(TierValueError, match="fsync"):
        yes_or_no("fsync", wrong)


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), float("nan"), "5", True, None])
def test_seconds_are_a_finite_time(wrong: object) -> None:
    """No time at all, and for ever, are no limits."""
    with pytest.raises(TierValueError, match="read_timeout_s"):
        seconds("read_timeout_s", wrong)


@pytest.mark.parametrize("wrong", ["", 3, None, b"x", "\ud800"])
def test_text_can_be_written(wrong: object) -> None:
    """Half of a surrogate pair has no UTF-8."""
    with pytest.raises(TierValueError, match="bucket"):
        text("bucket", wrong)
