"""The form of a stored block: whatever is changed in it is found."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.words import k
from tiers import OffloadKey
from tiers.errors import TierError, TierValueError
from tiers.storage.block_store import (
    FIELDS,
    HEADER_BYTES,
    MAX_KEY_BYTES,
    BlockCorruptError,
    BlockMissingError,
    BlockUnsureError,
    fault_of,
    header_of,
    verify,
)

KEYS = st.binary(min_size=4, max_size=40).map(OffloadKey)
PAYLOADS = st.binary(max_size=200)


@given(KEYS, PAYLOADS)
def test_a_block_as_written_has_no_fault(key: OffloadKey, data: bytes) -> None:
    """A header fits its own block, and is as long as a page, so that the payload is aligned."""
    header = header_of(key, memoryview(data))
    assert len(header) == HEADER_BYTES == 4096
    assert fault_of(key, header, payload=memoryview(data)) is None
    verify(key, header, payload=memoryview(data))


@given(KEYS, PAYLOADS, st.data())
def test_any_flipped_bit_is_found(key: OffloadKey, data: bytes, where: st.DataObject) -> None:
    """One bit changed anywhere, in header, padding or payload, is a fault."""
    whole = bytearray(header_of(key, memoryview(data)) + data)
    bit = where.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert fault_of(key, bytes(whole[:HEADER_BYTES]), payload=memoryview(whole)[HEADER_BYTES:])


@given(KEYS, KEYS, PAYLOADS)
def test_a_block_is_its_own(key: OffloadKey, other: OffloadKey, data: bytes) -> None:
    """A block found under another block's name is a fault, also when one name begins with the other."""
    header = header_of(key, memoryview(data))
    assert (fault_of(other, header, payload=memoryview(data)) is None) == (key == other)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"", "a header of 0 bytes"),
        (bytes(HEADER_BYTES), "no block of kvbus"),
        (FIELDS.pack(b"kvblock\n", 2, 0, 0, 0, 0).ljust(HEADER_BYTES, b"\0"), "version 2"),
        (FIELDS.pack(b"kvblock\n", 1, 0, 0, 0, 0).ljust(HEADER_BYTES, b"\0"), "the header's checksum"),
    ],
)
def test_faults_have_names(header: bytes, fault: str) -> None:
    """A torn, foreign, newer or damaged header is told apart."""
    found = fault_of(k("a"), header, payload=memoryview(b""))
    assert found is not None
    assert found.startswith(fault)


def test_lengths_must_agree() -> None:
    """A payload shorter or longer than stored is a fault before its checksum is looked at."""
    header = header_of(k("a"), memoryview(b"12345"))
    for payload in (b"1234", b"123456"):
        with pytest.raises(BlockCorruptError, match=f"5 bytes, not {len(payload)}"):
            verify(k("a"), header, payload=memoryview(payload))


def test_errors_are_the_systems_and_ours() -> None:
    """A missing and a corrupt block are OSErrors, as a medium's are, and TierErrors with a next step."""
    for error in (BlockMissingError(k("a")), BlockCorruptError(k("a"), "torn")):
        assert isinstance(error, OSError)
        assert isinstance(error, TierError)
        assert k("a").hex() in str(error)
        assert error.next_step


def test_an_unsure_error_is_counted_by_its_cause() -> None:
    """A put of which nobody knows what became is an OSError with the number of what failed."""
    error = BlockUnsureError(k("a"), TimeoutError(errno.ETIMEDOUT, "no answer"))
    assert isinstance(error, OSError)
    assert error.errno == errno.ETIMEDOUT
    assert k("a").hex() in str(error)
    assert error.next_step


def test_a_key_has_a_longest_length() -> None:
    """What does not fit into the header is refused."""
    header_of(OffloadKey(bytes(MAX_KEY_BYTES)), memoryview(b""))
    with pytest.raises(TierValueError):
        header_of(OffloadKey(bytes(MAX_KEY_BYTES + 1)), memoryview(b""))
