"""Telling msgpack values apart without reading them, on every kind of value that msgpack has."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import DecodeError, Raw

from kvbus.unread import EVENTS_MAX, elements_of, is_map, is_one_value

DEEP = b"\x91" * 50_000 + b"\xc0"
ONE_OF_EACH = [
    *[bytes([lead]) for lead in (0x00, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xC3, 0xE0, 0xFF)],
    *[b"\x82\x01\x02\x03\x04", b"\x8f" + b"\x01" * 30, b"\x93\x01\x02\x03", b"\x9f" + b"\x01" * 15],
    *[b"\xa3abc", b"\xbf" + b"a" * 31],
    *[b"\xc4\x02ab", b"\xc5\x01\x00" + b"a" * 256, b"\xc6\x00\x01\x00\x00" + b"a" * 65536],
    *[b"\xc7\x03\x05abc", b"\xc8\x00\x03\x05abc", b"\xc9\x00\x00\x00\x03\x05abc"],
    *[b"\xca" + b"a" * 4, b"\xcb" + b"a" * 8],
    *[bytes([lead]) + b"a" * size for lead, size in zip(range(0xCC, 0xD4), [1, 2, 4, 8] * 2, strict=True)],
    *[
        bytes([lead]) + b"\x05" + b"a" * size
        for lead, size in zip(range(0xD4, 0xD9), (1, 2, 4, 8, 16), strict=True)
    ],
    *[b"\xd9\x02ab", b"\xda\x01\x00" + b"a" * 256, b"\xdb\x00\x01\x00\x00" + b"a" * 65536],
    *[b"\xdc\x01\x00" + b"\x01" * 256, b"\xdd\x00\x01\x00\x00" + b"\x01" * 65536],
    *[b"\xde\x00\x02" + b"\xa1a\x01\xa1b\x02", b"\xdf\x00\x00\x00\x02" + b"\xa1a\x01\xa1b\x02"],
    *[DEEP, b"\x81\xa1a" * 50_000 + b"\xc0"],
]


@pytest.mark.parametrize("value", ONE_OF_EACH, ids=lambda value: f"{value[0]:02x}-{len(value)}")
def test_the_end_of_every_kind_of_value_is_found(value: bytes) -> None:
    """A value is one value; cut short, or with a byte more, it is not."""
    assert is_one_value(value)
    assert not is_one_value(value + b"\xc0")
    assert not is_one_value(value[:-1])


@pytest.mark.parametrize("value", ONE_OF_EACH, ids=lambda value: f"{value[0]:02x}-{len(value)}")
def test_what_nests_too_deep_for_msgspec_does_not_hide_the_rest(value: bytes) -> None:
    """Around an element that msgspec cannot get past, every other is found exactly."""
    assert elements_of(msgspec.msgpack.encode([Raw(value), Raw(DEEP), Raw(value)])) == [
        Raw(value),
        Raw(DEEP),
        Raw(value),
    ]


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_the_walk_agrees_with_msgspec_about_what_is_a_value(data: bytes) -> None:
    """On any bytes, the walk and the decoder call the same ones whole."""
    try:
        msgspec.msgpack.decode(data, type=Raw)
    except DecodeError:
        assert not is_one_value(data)
    else:
        assert is_one_value(data)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 65_535, 65_536])
def test_elements_under_every_header(size: int) -> None:
    """Arrays are cut up right under each width of header, by msgspec and by the walk."""
    assert len(elements_of(msgspec.msgpack.encode([0] * size))) == size
    deep = msgspec.msgpack.encode([Raw(DEEP), *[0] * size])
    assert [bytes(one) for one in elements_of(deep)] == [DEEP, *[b"\x00"] * size]


def test_an_array_that_claims_too_much_is_refused_by_its_header() -> None:
    """The limit on elements is checked before anything is made for them."""
    with pytest.raises(DecodeError, match=f"more than the {EVENTS_MAX} that kvbus reads"):
        elements_of(b"\xdd" + (EVENTS_MAX + 1).to_bytes(4, "big"))


def test_maps_are_told_by_their_first_byte() -> None:
    """All three map headers are maps, their neighbours are not."""
    assert [lead for lead in range(256) if is_map(bytes([lead]))] == [*range(0x80, 0x90), 0xDE, 0xDF]
