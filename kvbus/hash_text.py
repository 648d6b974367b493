"""A block's hash as people write it: decimal, hexadecimal, signed, or only how it begins.

Digits alone can be a decimal number or the beginning of a hexadecimal one: both readings are given, and the
log decides which of them it knows. Nothing is opened here.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kvbus.errors import ConfigError
from kvbus.events import canonical_hash

HEX_DIGITS: Final = 16
"""Of a whole hash."""

_HEX = re.compile(r"(0x)?(?P<digits>[0-9a-f]{1,16})")
_DECIMAL = re.compile(r"-?[0-9]{1,20}")


class HashRange(NamedTuple):
    """Hashes from ``first`` to ``last``, both included."""

    first: int
    last: int


def readings(text: str) -> list[HashRange]:
    """What ``text`` can mean: at most a number and a beginning, each once. Raises ``ConfigError``.

    ``-5`` is signed (two's complement), ``0x61`` the beginning of a hexadecimal hash, ``61`` either that or a
    decimal number; 16 hexadecimal digits, as ``tail`` prints them, are a whole hash.
    """
    word = text.strip().lower()
    found = [*_decimal(word), *_beginning(word)]
    if not found:
        raise ConfigError(
            f"{text!r} is not a block hash or the beginning of one",
            next_step="Give up to 16 hexadecimal digits, with or without 0x, or a 64-bit number in decimal.",
        )
    return list(dict.fromkeys(found))


def _decimal(word: str) -> list[HashRange]:
    if not _DECIMAL.fullmatch(word):
        return []
    try:
        value = canonical_hash(int(word))
    except ValueError:
        return []
    return [HashRange(value, value)]


def _beginning(word: str) -> list[HashRange]:
    match = _HEX.fullmatch(word)
    if match is None:
        return []
    open_bits = 4 * (HEX_DIGITS - len(match["digits"]))
    first = int(match["digits"], 16) << open_bits
    return [HashRange(first, first | ((1 << open_bits) - 1))]
