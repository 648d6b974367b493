"""Captures: what a subscriber received from an engine, frame by frame, in a ``.frames`` file.

    record   received_ns u64 BE | frame count u8 | frame, frame …
    frame    length u32 BE | bytes

Frames are kept as they came, so a file holds live messages ``[topic, seq, payload]`` and a replay's
``["", topic, seq, payload]`` alike; what they mean is not decided here. There is no header and no
checksum: what does not add up is a ``CaptureError`` that names the byte where its record begins. Reading
and writing hold one record at a time, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from msgspec import Struct

from kvbus.errors import CaptureError

HEAD_BYTES: Final = 9
FRAMES_MAX: Final = 255
NS_MAX: Final = (1 << 63) - 1
"""The latest time of receipt, in the year 2262; a later one means that the file is not a capture."""

FRAME_BYTES_MAX: Final = 256 << 20
"""No engine comes near: a longer frame means that the file is not a capture."""


class Record(Struct, frozen=True, gc=False):
    """One message as it came. ``received_ns``: the receiver's wall clock, nanoseconds since 1970."""

    received_ns: int
    frames: list[bytes]


def read_capture(path: Path) -> Iterator[Record]:
    """The records of the file at ``path``, in order, one at a time.

    Raises ``CaptureError`` when the file cannot be opened, or at the first record that is torn or cannot be
    one; the records before it have been handed out by then.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        yield from read_records(file, name=str(path))


def read_records(file: BinaryIO, *, name: str) -> Iterator[Record]:
    """The records of an open file; ``name`` is what an error calls it. Raises ``CaptureError``."""
    at = 0
    while head := _read(file, HEAD_BYTES):
        if len(head) < HEAD_BYTES or (count := head[8]) == 0:
            raise _damaged(name, at, f"its head is {head.hex()}")
        if (received_ns := int.from_bytes(head[:8], "big")) > NS_MAX:
            raise _damaged(name, at, f"its time is {received_ns}")
        frames = []
        size = HEAD_BYTES
        for index in range(count):
            prefix = _read(file, 4)
            length = int.from_bytes(prefix, "big")
            if len(prefix) < 4 or length > FRAME_BYTES_MAX:
                raise _damaged(
                    name, at, f"frame {index} of {count} has the length field {prefix.hex() or 'missing'}"
                )
            frame = _read(file, length)
            if len(frame) < length:
                raise _damaged(
                    name, at, f"frame {index} of {count} ends after {len(frame)} of {length} bytes"
                )
            frames.append(frame)
            size += 4 + length
        yield Record(received_ns, frames)
        at += size


def is_capture_head(head: bytes) -> bool:
    """Whether ``head``, the first bytes of a file (16 or more), can begin a capture of KV-cache events.

    A record's frame count is small and its first frame, a topic or an empty delimiter, is short: text
    never looks so.
    """
    return len(head) >= HEAD_BYTES + 4 and 0 < head[8] < 9 and head[9:11] == b"\0\0"


class CaptureWriter:
    """Owns a new ``.frames`` file; used as a context manager. An existing file is not touched. ``name`` is
    what errors call it (None: its path).

    Raises ``CaptureError`` when the file cannot be made or exists already.
    """

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        self._name = str(path) if name is None else name
        try:
            self._file = path.open("xb")
        except FileExistsError as error:
            raise CaptureError(
                f"{self._name} exists already", next_step="Choose another name or remove it."
            ) from error
        except OSError as error:
            raise CaptureError(
                f"cannot write {self._name}: {error.strerror}", next_step="Choose another place."
            ) from error

    def write(self, received_ns: int, frames: Sequence[bytes]) -> None:
        """Append one message. Raises ``CaptureError`` for what the format cannot hold, or a full disk."""
        if not 0 < len(frames) <= FRAMES_MAX or any(len(frame) > FRAME_BYTES_MAX for frame in frames):
            longest = max(map(len, frames), default=0)
            raise CaptureError(
                f"a message of {len(frames)} frames, the longest {longest} bytes, cannot be kept",
                next_step=f"A record holds 1 to {FRAMES_MAX} frames of at most {FRAME_BYTES_MAX} bytes.",
            )
        if not 0 <= received_ns <= NS_MAX:
            raise CaptureError(
                f"a message received at {received_ns} ns cannot be kept: no such time",
                next_step=f"Times are 0 to {NS_MAX} nanoseconds since 1970.",
            )
        parts = [received_ns.to_bytes(8, "big"), bytes((len(frames),))]
        for frame in frames:
            parts += (len(frame).to_bytes(4, "big"), frame)
        try:
            self._file.write(b"".join(parts))
        except OSError as error:
            raise self._cannot_write(error) from error

    def close(self) -> None:
        """Write out what is buffered and let go. Raises ``CaptureError``. Safe to call twice."""
        try:
            self._file.close()
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> CaptureError:
        return CaptureError(
            f"cannot write {self._name}: {error.strerror}", next_step="Make room or choose another place."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unreadable(path: Path, error: OSError) -> CaptureError:
    """The error for a file that cannot be opened or read."""
    return CaptureError(
        f"cannot read {path}: {error.strerror}", next_step="Check the name and its permissions."
    )


def _read(file: BinaryIO, size: int) -> bytes:
    """``size`` bytes, fewer only at the end; a claimed length costs memory only as far as bytes are there."""
    if size <= 1 << 20:
        return file.read(size)
    parts = []
    while size > 0 and (part := file.read(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _damaged(name: str, at: int, why: str) -> CaptureError:
    return CaptureError(
        f"{name}: the record at byte {at} is torn or not a record: {why}",
        next_step=f"Cut the file to its first {at} bytes to keep what came before, or capture again.",
    )
