"""Hashes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.errors import ConfigError
from kvbus.hash_text import HashRange, readings


def one(block: int) -> HashRange:
    return HashRange(block, block)


@given(st.integers(0, 2**64 - 1))
def test_every_spelling_of_a_hash_means_it(block: int) -> None:
    """Decimal, 16 hexadecimal digits with and without 0x, upper case, and signed: each can mean the block."""
    signed = block - (block >> 63 << 64)
    for text in (str(block), f"{block:016x}", f"0x{block:016X}", str(signed)):
        assert one(block) in readings(text)
    assert readings(f"0x{block:016x}") == [one(block)]


def test_a_beginning_is_a_range() -> None:
    """Fewer than 16 digits stand for every hash that begins so."""
    assert readings("0x9d3f") == [HashRange(0x9D3F << 48, (0x9D40 << 48) - 1)]
    assert readings("9d3f") == readings("0x9D3F")


def test_digits_alone_can_be_a_number_or_a_beginning() -> None:
    """61 is sixty-one and all that begins with 61; a number too long for hexadecimal is a number."""
    assert readings("61") == [one(61), HashRange(0x61 << 56, (0x62 << 56) - 1)]
    assert readings("11906379838216735232") == [one(11906379838216735232)]
    assert readings("-1") == [one(2**64 - 1)]


@pytest.mark.parametrize(
    "text", ["", "0x", "xyz", "0x" + "f" * 17, str(2**64), str(-(2**63) - 1), "--1", "1.5"]
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    """The error says how hashes are written."""
    with pytest.raises(ConfigError, match="16 hexadecimal digits"):
        readings(text)
