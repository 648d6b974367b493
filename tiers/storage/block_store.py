"""Where a storage tier's blocks lie: the protocol of a medium, and the form of a stored block. Pure.

A medium keeps whole blocks by key, nothing else: no order of use, no bound, no events; those are the tier's
(``tiers.storage.tier``). A stored block is a header and its payload:

    0      8        12          16             20               28     32    32+k          4096
    magic  version  key length  header crc-32  payload length   crc-32  key   zeros   ...   payload

Numbers are little-endian. The payload begins at 4096, so that it can be written past the page cache. A
reader refuses a version it does not know: the header may change, its length and its first 12 bytes not.
CRC-32 finds damage, not malice. Python's own does 4 GB/s, which is less than memory gives; zlib-ng's, with
the processor's help, ten times as much. Other threads run meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from zlib_ng import zlib_ng

from tiers.errors import TierError, TierValueError
from tiers.keys import OffloadKey

HEADER_BYTES: Final = 4096
MAGIC: Final = b"kvblock\n"
VERSION: Final = 1
FIELDS: Final = struct.Struct("<8sIIIQI")
"""Magic, version, key length, CRC-32 of the header (with this field 0), payload length, its CRC-32."""
MAX_KEY_BYTES: Final = HEADER_BYTES - FIELDS.size


class BlockMissingError(TierError, OSError):
    """The medium does not hold this block (any more)."""

    def __init__(self, key: OffloadKey) -> None:
        super().__init__(f"no block {key.hex()}", next_step="Count it as a miss.")


class BlockCorruptError(TierError, OSError):
    """What the medium holds is not this block, whole and unharmed. ``problem`` says in what way."""

    def __init__(self, key: OffloadKey, fault: str) -> None:
        super().__init__(f"block {key.hex()} is corrupt: {fault}", next_step="Delete it; count it as a miss.")


class BlockUnsureError(TierError, OSError):
    """A put failed, and the block may lie on the medium all the same: the answer was lost, or was no answer.

    ``errno`` is that of the cause.
    """

    def __init__(self, key: OffloadKey, cause: OSError) -> None:
        super().__init__(
            f"block {key.hex()} may have been put: {cause}", next_step="Count its bytes until it is deleted."
        )
        self.errno = cause.errno


class BlockStore(Protocol):
    """One medium. Calls block, come from several threads at once, and raise ``OSError`` (or a subclass)
    when the medium fails; libraries' own errors are translated here. Other processes may use the same
    medium at the same time.
    """

    def put(self, key: OffloadKey, data: memoryview) -> bool:
        """Keep ``data`` (bytes, one dimension) under ``key``. Atomic: after it the whole block is there, or
        nothing is. False if the block was there already: then nothing was written.

        Raises ``BlockUnsureError`` if nobody knows whether it was written, or may yet be: the tier counts its
        bytes until a ``delete`` succeeds. Any other ``OSError`` promises that nothing is there.
        """
        ...

    def get(self, key: OffloadKey, into: memoryview) -> None:
        """Fill ``into`` with the block, exactly ``len(into)`` bytes, verified. After an error ``into`` may
        hold anything. Raises ``BlockMissingError``, ``BlockCorruptError`` (also for another length): these
        two end the block's life in the tier. Any other error may pass, and the block stays; so a medium that
        is away as a whole raises another one.
        """
        ...

    def delete(self, key: OffloadKey) -> None:
        """Remove a block. One that is not there is no error; a medium that is away is one."""
        ...

    def holds(self, keys: Sequence[OffloadKey]) -> Sequence[bool | None]:
        """Whether each of ``keys`` is there now, in their order. None: this one could not be found out, and
        may be asked about again. Raises only if nothing could be found out about any.
        """
        ...

    def inventory(self) -> Iterator[tuple[OffloadKey, int]]:
        """What is there: key and payload bytes of each block once, the one used longest ago first."""
        ...

    def close(self) -> None:
        """Let go of the medium; no other call comes after it. Safe to call twice."""
        ...


def header_of(key: OffloadKey, data: memoryview) -> bytes:
    """The ``HEADER_BYTES`` bytes that stand before ``data`` (bytes, one dimension) on the medium.

    Raises ``TierValueError`` for a key of more than ``MAX_KEY_BYTES``.
    """
    if len(key) > MAX_KEY_BYTES:
        raise TierValueError(f"a key of {len(key)} bytes", next_step=f"At most {MAX_KEY_BYTES} bytes fit.")
    return sealed(len(key), data.nbytes, zlib_ng.crc32(data), key)


def sealed(key_bytes: int, payload_bytes: int, payload_crc: int, key: bytes) -> bytes:
    """A header with its own checksum in it."""
    rest = key.ljust(MAX_KEY_BYTES, b"\0")
    unsealed = zlib_ng.crc32(FIELDS.pack(MAGIC, VERSION, key_bytes, 0, payload_bytes, payload_crc))
    seal = zlib_ng.crc32(rest, unsealed)
    return FIELDS.pack(MAGIC, VERSION, key_bytes, seal, payload_bytes, payload_crc) + rest


def fault_of(key: OffloadKey, header: bytes | memoryview, *, payload: memoryview) -> str | None:
    """What is wrong with a stored block that should be ``key`` with a payload of this length. None: nothing.

    ``header`` is as read, ``payload`` (bytes, one dimension) too; a short read shows as a short header.
    """
    if len(header) != HEADER_BYTES:
        return f"a header of {len(header)} bytes"
    magic, version, key_bytes, _, payload_bytes, payload_crc = FIELDS.unpack_from(header)
    if magic != MAGIC:
        return "no block of kvbus"
    if version != VERSION:
        return f"version {version}, and only {VERSION} can be read"
    stored_key = bytes(header[FIELDS.size :])
    if sealed(key_bytes, payload_bytes, payload_crc, stored_key) != bytes(header):
        return "the header's checksum does not match"
    if stored_key[:key_bytes] != key:
        return "another block's header"
    if payload_bytes != payload.nbytes:
        return f"a payload of {payload_bytes} bytes, not {payload.nbytes}"
    if zlib_ng.crc32(payload) != payload_crc:
        return "the payload's checksum does not match"
    return None


def verify(key: OffloadKey, header: bytes | memoryview, *, payload: memoryview) -> None:
    """Raise ``BlockCorruptError`` if ``fault_of`` finds a fault."""
    if fault := fault_of(key, header, payload=payload):
        raise BlockCorruptError(key, fault)
