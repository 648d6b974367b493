"""How numbers are written on the command line, and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.amounts import COUNT_MAX, count, share, short, size, size_of


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("500", 500), ("4k", 4_000), ("100m", COUNT_MAX)])
def test_counts(text: str, number: int) -> None:
    """A count is a whole number, with k for thousands and m for millions."""
    assert count(text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "1.5k", "4K", " 4", "1_000", "٣", "100000001", "101m", "9" * 99]
)
def test_what_is_no_count(text: str) -> None:
    """Anything else, and more than a hundred million, is refused in words."""
    with pytest.raises(ValueError, match="expected a number such as 500 or 4k, from 0 to 100m"):
        count(text)


@given(st.integers(0, COUNT_MAX))
def test_a_count_shown_can_be_typed(number: int) -> None:
    """The short form of a count means that count."""
    assert count(short(number)) == number


def test_sizes() -> None:
    """Sizes take binary and decimal units; what is none, or absurd, is refused in words."""
    assert [size(text) for text in ("0", "4096", "9b")] == [0, 4_096, 9]
    assert [size(text) for text in ("64KiB", "64 kib", "1.5GiB", "1EiB")] == [
        1 << 16,
        1 << 16,
        3 << 29,
        1 << 60,
    ]
    assert [size(text) for text in ("2MB", "0.3KB", "1.5g")] == [2_000_000, 300, 1_500_000_000]
    for text in ("", "-1", "3 furlongs", "2EiB", "inf", "1e400GiB"):
        with pytest.raises(ValueError, match="expected a size in bytes"):
            size(text)


def test_sizes_in_words() -> None:
    """Sizes are shown in the unit that fits."""
    assert [size_of(n) for n in (0, 1023, 1024, 3 << 20, 5 << 30, 7 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
        "7.0 TiB",
    ]


def test_shares() -> None:
    """Percent with one digit; of nothing there is no share."""
    assert (share(1, 3), share(0, 7), share(0, 0)) == ("33.3 %", "0.0 %", "")
