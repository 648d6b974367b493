"""Requests as a serving engine met them: when, and with which prefix blocks. Values only, no clock, no sleep.

Real traces are JSON lines, read as a stream: Mooncake's (``timestamp`` in ms, blocks of 512 tokens) and
Alibaba's Bailian (``chat_id`` and more, ``timestamp`` in s, blocks of 16). They carry no tokens: equal ids
mean a block that can be reused, and an id always has the same ids before it. ``tokens_of`` makes up tokens
for whoever needs some; ``tiers/synthetic`` makes up requests where there is no trace. A line that cannot be
read ends the reading: half a trace is another workload.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Final, cast

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from tiers.errors import TierValueError

VOCABULARY: Final = 32_000
MAX_LINE_BYTES: Final = 64 << 20
TICKS_MAX: Final = 1e15
"""Of a timestamp: thirty thousand years of milliseconds, and times since 1970 in them too."""

WholeNumber = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: ``timestamp_s`` in seconds since the trace began, ``block_ids`` of its prompt from the
    first block on, the lengths in tokens. The last block need not be full.
    """

    timestamp_s: float
    block_ids: tuple[int, ...]
    input_length: int
    output_length: int


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How the lines of a trace are meant: ``ticks_per_s`` of its timestamps, ``block_size`` in tokens."""

    name: str
    ticks_per_s: int
    block_size: int


MOONCAKE: Final = TraceFormat("mooncake", 1000, 512)
BAILIAN: Final = TraceFormat("bailian", 1, 16)


class Line(Struct, frozen=True, gc=False):
    """The keys that both formats have, and the one by which Bailian's is told. Others are passed over."""

    timestamp: Annotated[float, Meta(ge=0, le=TICKS_MAX)]
    hash_ids: tuple[WholeNumber, ...]
    input_length: WholeNumber
    output_length: WholeNumber
    chat_id: Raw | UnsetType = UNSET

    @property
    def trace_format(self) -> TraceFormat:
        return MOONCAKE if self.chat_id is UNSET else BAILIAN


def read_trace(path: str | Path, *, limit: int | None = None) -> Iterator[Request]:
    """The requests of a file, in its order, at most ``limit`` of them; a name that ends in ``.gz`` is
    unpacked on the way. The first line decides its format: one with a ``chat_id`` is Bailian's.

    Raises ``TierValueError`` for a negative limit, and while reading: for a file that cannot be opened or
    holds no request, and for a line that is no request, with its number.
    """
    if limit is not None and limit < 0:
        raise TierValueError(f"a limit of {limit} requests", next_step="Give 0 or more, or none.")
    return _requests(Path(path), limit)


def _requests(path: Path, limit: int | None) -> Iterator[Request]:
    is_empty = limit != 0
    trace_format = None
    for line in islice(_read(path), None if limit is None else min(limit, sys.maxsize)):
        is_empty = False
        trace_format = trace_format or line.trace_format
        timestamp_s = line.timestamp / trace_format.ticks_per_s
        yield Request(timestamp_s, line.hash_ids, line.input_length, line.output_length)
    if is_empty:
        raise _no_request(path)


def format_of(path: str | Path) -> TraceFormat:
    """What ``read_trace`` would take the file for. Raises ``TierValueError`` as it does."""
    for line in _read(Path(path)):
        return line.trace_format
    raise _no_request(Path(path))


def _read(path: Path) -> Iterator[Line]:
    """Each line that is not blank, decoded. What the file system and gzip complain of is translated."""
    decode = msgspec.json.Decoder(Line).decode
    try:
        with _open(path) as file:
            for number, text in enumerate(iter(partial(file.readline, MAX_LINE_BYTES), b""), start=1):
                if len(text) == MAX_LINE_BYTES:
                    raise _bad_line(path, number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
                if text.strip():
                    try:
                        line = decode(text)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        raise _bad_line(path, number, str(error)) from error
                    yield line
    except (OSError, EOFError, zlib.error) as error:
        raise TierValueError(
            f"the trace {path} cannot be read: {error}",
            next_step="Give a file of JSON lines, packed by gzip only if its name ends in .gz.",
        ) from error


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def _bad_line(path: Path, number: int, why: str) -> TierValueError:
    return TierValueError(
        f"{path}, line {number} is no request: {why}",
        next_step="A line is a JSON object with timestamp, hash_ids, input_length and output_length; "
        "cut the trace before this line, or mend it.",
    )


def _no_request(path: Path) -> TierValueError:
    return TierValueError(
        f"{path} holds no request", next_step="Give a trace with one JSON object a line, a request each."
    )


def tokens_of(block_id: int, block_size: int) -> list[int]:
    """Made-up token ids for a block of a trace, ``block_size`` of them below 32 000.

    They depend on ``block_id`` (0 ≤ id < 2**64) alone; a shorter block is the beginning of a longer one.
    From 8 tokens on two ids do not share them in practice. About 15 µs for 512.
    """
    stream = hashlib.shake_128(block_id.to_bytes(8, "big")).digest(4 * block_size)
    ids: list[int] = (np.frombuffer(stream, np.dtype("<u4")) % VOCABULARY).tolist()
    return ids
