"""Msgpack values, told apart without being read: what kind, which elements, where the end is.

msgspec cuts an array into raw elements as long as nothing in it nests deeper than it recurses. Where it does,
a walk that counts instead of recursing finds the same cuts, so that one hostile element does not hide the
others. Knows nothing of events.
"""

from __future__ import annotations

from typing import Final

from msgspec import DecodeError, Raw
from msgspec.msgpack import Decoder

from kvbus.events import token_count

EVENTS_MAX: Final = 1 << 17
"""Most events of one batch that are read one by one."""
DEEP_BYTES_MAX: Final = 1 << 20
"""Longest payload that is cut up in Python, when one of its events nests deeper than msgspec goes."""
LIST: Final = Decoder(list[Raw])

_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},
    **{0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17},
}
"""Bytes after the lead byte, for values of one size."""
_SIZED: Final = {
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},
    **{0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},
}
"""Width of the length after the lead byte, and bytes that it does not count."""
_NESTING: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Width of the count after the lead byte, and values an entry."""


def is_map(data: bytes | Raw) -> bool:
    lead = memoryview(data)[0]
    return 0x80 <= lead <= 0x8F or lead in (0xDE, 0xDF)


def elements_of(data: bytes | Raw) -> list[Raw]:
    """The elements of an array, unread. One that nests without end does not hide the others."""
    if (count := token_count(Raw(data))) > EVENTS_MAX:
        raise DecodeError(f"an array of {count} elements, more than the {EVENTS_MAX} that kvbus reads")
    try:
        return LIST.decode(data)
    except RecursionError:
        if len(memoryview(data)) > DEEP_BYTES_MAX:
            raise
    whole = bytes(data)
    at = {0xDC: 3, 0xDD: 5}.get(whole[0], 1)
    elements = []
    for _ in range(count):
        end = _end(whole, at)
        elements.append(Raw(whole[at:end]))
        at = end
    if at != len(whole):
        raise DecodeError(f"trailing bytes from byte {at} on")
    return elements


def is_one_value(raw: bytes) -> bool:
    """Whether ``raw`` is exactly one msgpack value, however deep."""
    try:
        return _end(raw, 0) == len(raw)
    except DecodeError:
        return False


def _end(data: bytes, at: int) -> int:
    """Where the value at ``at`` ends. A count instead of recursion: depth costs nothing."""
    pending = 1
    while pending:
        if at >= len(data):
            raise DecodeError("Input data was truncated")
        lead = data[at]
        at += 1
        pending -= 1
        if lead <= 0x7F or lead >= 0xE0:
            continue
        if lead <= 0x8F:
            pending += 2 * (lead & 0x0F)
        elif lead <= 0x9F:
            pending += lead & 0x0F
        elif lead <= 0xBF:
            at += lead & 0x1F
        elif lead in _FIXED:
            at += _FIXED[lead]
        elif lead in _SIZED:
            width, more = _SIZED[lead]
            at += width + more + int.from_bytes(data[at : at + width], "big")
        elif lead in _NESTING:
            width, values = _NESTING[lead]
            pending += values * int.from_bytes(data[at : at + width], "big")
            at += width
        else:
            raise DecodeError(f"invalid opcode (byte {at - 1})")
    if at > len(data):
        raise DecodeError("Input data was truncated")
    return at
