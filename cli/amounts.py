"""How counts, sizes and shares are written and shown: one way for all of ``kvbus run``. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

COUNT_MAX: Final = 100_000_000
"""Blocks, mostly: the books of so many take gigabytes. What is larger on a disk is bounded in bytes."""

SIZE_MAX: Final = 1 << 60
UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000}
SIZE: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?(?:([kmgtpe])(i?))?b?", re.ASCII | re.IGNORECASE)


def count(text: str) -> int:
    """``500``, ``4k`` is 4 000, ``1m`` 1 000 000. Raises ``ValueError`` that says what is expected."""
    match = re.fullmatch(r"([0-9]{1,12})([km]?)", text)
    number = None if match is None else int(match[1]) * UNITS[match[2]]
    if number is None or number > COUNT_MAX:
        raise ValueError(f"expected a number such as 500 or 4k, from 0 to {short(COUNT_MAX)}")
    return number


def short(number: int) -> str:
    """A count as ``count`` takes it, with a unit if it is a whole number of them."""
    for unit, size in (("m", 1_000_000), ("k", 1_000)):
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def size(text: str) -> int:
    """``4096``, ``64KiB``, ``1.5GiB``, ``2MB``: in bytes; letters of either case. Raises ``ValueError`` that
    says what is expected.
    """
    match = SIZE.fullmatch(text)
    num_bytes = -1
    if match is not None:
        step = 1024 if match[3] else 1000
        power = "kmgtpe".index(match[2].lower()) + 1 if match[2] else 0
        num_bytes = int(Decimal(match[1]) * step**power)
    if not 0 <= num_bytes <= SIZE_MAX:
        raise ValueError("expected a size in bytes such as 4096, 64KiB or 2GiB, up to 1EiB")
    return num_bytes


def size_of(num_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves a number of at least one."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def share(part: int, whole: int) -> str:
    """In percent; nothing where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else ""
