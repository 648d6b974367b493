"""Arguments that come from a configuration, where a number may have been written as text.

What cannot be used is refused by name when it is given, not by a library when it is first needed. Nothing is
converted: ``"8"`` is not 8, and ``True`` is not 1.
"""

from __future__ import annotations

import math

from tiers.errors import TierValueError


def whole_number(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """``value``, if it is an ``int`` within these bounds; otherwise ``TierValueError``."""
    most = math.inf if at_most is None else at_most
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= most:
        bounds = f"{at_least} or more" if at_most is None else f"from {at_least} to {at_most}"
        raise TierValueError(f"{name} {value!r}", next_step=f"Give a whole number, {bounds}.")
    return value


def yes_or_no(name: str, value: object) -> bool:
    """``value``, if it is a ``bool``; otherwise ``TierValueError``."""
    if not isinstance(value, bool):
        raise TierValueError(f"{name} {value!r}", next_step="Give true or false, without quotes.")
    return value


def seconds(name: str, value: object) -> float:
    """``value``, if it is a finite number above 0; otherwise ``TierValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TierValueError(f"{name} {value!r}", next_step="Give a number of seconds above 0.")
    return float(value)


def text(name: str, value: object, *, may_be_empty: bool = False) -> str:
    """``value``, if it is text that UTF-8 can say; otherwise ``TierValueError``."""
    if not isinstance(value, str) or not (value or may_be_empty) or not is_utf8(value):
        raise TierValueError(f"{name} {value!r}", next_step="Give text, in valid Unicode.")
    return value


def is_utf8(value: str) -> bool:
    """Whether this text has no half of a surrogate pair in it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
