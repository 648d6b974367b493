"""The bytes between a publisher and its readers, frame by frame. No sockets: lists of frames in, values out.

Live, from a PUB socket (vLLM, SGLang, TensorRT-LLM, Mooncake, kvbus)::

    ┌───────────────┬─────────────────────┬─────────────────────┐
    │ topic  (utf8) │ seq  (8 B, BE, u64) │ payload  (msgpack)  │
    └───────────────┴─────────────────────┴─────────────────────┘

Asking for a replay, DEALER or REQ to ROUTER; the ROUTER sees the client's identity in front. The reply is
one message a batch, then the end marker. Until vLLM 0.25 and SGLang 0.5.21 the reply has no topic frame, so
readers take the *last two* frames as seq and payload, whatever stands before::

    ask    │ "" │ start_seq (8 B) │
    item   │ "" │ topic │ seq (8 B)   │ payload │          old: │ "" │ seq (8 B)   │ payload │
    end    │ "" │ info  │ 2**64 - 1   │ ""      │          old: │ "" │ 2**64 - 1   │ ""      │

``info`` is empty in every engine. A kvbus publisher writes ``kvbus/1 `` and a JSON object there: which
process this is and which numbers it still has, so that "too old" and "restarted" differ from "nothing lost".
Readers that do not know it skip it as they skip a topic. *Hello* is an ordinary request whose start_seq is
2**64 - 2: no batch is that late, so every publisher answers with its end marker alone.

How this may grow: new keys in ``info`` are ignored by old readers; a change of meaning is ``kvbus/2 ``, which
reads as no info. The two highest numbers are never a batch's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

END_SEQ: Final = 2**64 - 1
"""The number of the end marker (vLLM ``ZmqEventPublisher.END_SEQ``: -1, signed)."""

HELLO_SEQ: Final = 2**64 - 2
"""As start_seq of a replay request: tell me who you are, send no batch."""

MESSAGE_BYTES_MAX: Final = 128 << 20
"""A larger frame ends its connection, and no publisher of ours sends one: the largest batches of real engines
are some megabytes."""

INFO_MARK: Final = b"kvbus/1 "
DELIMITED: Final = (b"",)
"""The envelope that REQ sockets write and DEALER clients imitate."""

_pack_seq = struct.Struct(">Q").pack


class Live(Struct, frozen=True, gc=False):
    """One message of a live stream."""

    topic: bytes
    seq: int
    payload: bytes


Capacity = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[int, Meta(ge=1, le=1 << 62)]],
    Meta(max_length=16),
]
"""How many distinct blocks fit into each of a few media."""


class PublisherInfo(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a kvbus publisher says about itself.

    ``incarnation`` is 32 hex digits, new with every process (or restart of a forwarded stream). Every number
    in ``first_seq`` … ``next_seq - 1`` is in a replay, or was given up before it was ever sent.
    ``first_seq`` None: nothing before ``next_seq`` can be had. ``capacity``: how many distinct blocks fit
    into a medium, as its events count them; of a medium that is not there nothing is said.
    """

    incarnation: Annotated[str, Meta(min_length=1, max_length=64)]
    first_seq: Annotated[int, Meta(ge=0)] | None
    next_seq: Annotated[int, Meta(ge=0)]
    capacity: Capacity = {}

    def too_old(self, start_seq: int) -> bool:
        """Whether batches from ``start_seq`` on existed that a replay no longer has."""
        return start_seq < (self.next_seq if self.first_seq is None else self.first_seq)


class ReplayItem(Struct, frozen=True, gc=False):
    """One replayed batch. ``topic`` is b"" and ``topic_said`` false where the framing has no place for it."""

    topic: bytes
    seq: int
    payload: bytes
    topic_said: bool = True


class ReplayEnd(Struct, frozen=True, gc=False):
    """The end marker: all that the publisher had has been sent. ``info`` is None from anything but kvbus."""

    info: PublisherInfo | None


class ReplayRequest(Struct, frozen=True, gc=False):
    """What a client asks of a ROUTER. ``route`` leads each reply: identity, then the envelope as it came.

    ``one_reply``: the client is a REQ socket, which takes a single message and would find the others stale.
    """

    route: tuple[bytes, ...]
    start_seq: int
    one_reply: bool = False


class Malformed(Struct, frozen=True, gc=False):
    """Frames that are none of the above, kept, and why."""

    why: str
    frames: list[bytes]


def seq_bytes(seq: int) -> bytes:
    """A sequence number as its frame. Raises ``ValueError`` outside 0 … 2**64 - 1."""
    try:
        return _pack_seq(seq)
    except struct.error as error:
        raise ValueError(f"{seq} is not a sequence number: it must fit 8 unsigned bytes") from error


def live_frames(topic: bytes, seq: int, payload: bytes) -> list[bytes]:
    """One batch as a PUB socket sends it."""
    return [topic, seq_bytes(seq), payload]


def read_live(frames: Sequence[bytes]) -> Live | Malformed:
    """What a SUB socket received: exactly three frames, the second of 8 bytes."""
    if len(frames) != 3:
        return Malformed(f"{len(frames)} frames where topic, seq and payload were due", list(frames))
    seq = _read_seq(frames[1])
    if seq is None or seq >= HELLO_SEQ:
        return Malformed(_bad_seq(frames[1]), list(frames))
    return Live(frames[0], seq, frames[2])


def replay_request(start_seq: int) -> list[bytes]:
    """What a DEALER sends to ask for every batch from ``start_seq`` on. A REQ sends the last frame alone."""
    return [b"", seq_bytes(start_seq)]


def hello_request() -> list[bytes]:
    """What a DEALER sends to ask who is there; the answer is an end marker alone."""
    return replay_request(HELLO_SEQ)


def read_request(frames: Sequence[bytes], *, one_reply: bool = False) -> ReplayRequest | Malformed:
    """What a ROUTER received: identity, envelope (``""``, nothing, or a proxy's hops, ``""``), start_seq."""
    if len(frames) < 2:
        return Malformed(f"{len(frames)} frames where identity and start_seq were due", list(frames))
    if len(frames) > 2 and frames[-2] != b"":
        return Malformed("no empty frame before start_seq", list(frames))
    start_seq = _read_seq(frames[-1])
    if start_seq is None:
        return Malformed(_bad_seq(frames[-1]), list(frames))
    return ReplayRequest(tuple(frames[:-1]), start_seq, one_reply)


def reply_frames(
    topic: bytes, seq: int, payload: bytes, *, route: Sequence[bytes] = DELIMITED, topic_frame: bool = True
) -> list[bytes]:
    """One replayed batch behind ``route``; without ``topic_frame`` in the framing until vLLM 0.25."""
    if topic_frame:
        return [*route, topic, seq_bytes(seq), payload]
    return [*route, seq_bytes(seq), payload]


def end_frames(
    info: PublisherInfo | None, *, route: Sequence[bytes] = DELIMITED, topic_frame: bool = True
) -> list[bytes]:
    """The end marker behind ``route``; without ``topic_frame`` there is no place for ``info``."""
    said = b"" if info is None else INFO_MARK + msgspec.json.encode(info)
    return reply_frames(said, END_SEQ, b"", route=route, topic_frame=topic_frame)


def read_reply(frames: Sequence[bytes]) -> ReplayItem | ReplayEnd | Malformed:
    """What a DEALER or REQ received from a replay socket, of either framing."""
    if len(frames) < 2:
        return Malformed(f"{len(frames)} frames where seq and payload were due", list(frames))
    seq, payload = _read_seq(frames[-2]), frames[-1]
    before = frames[-3] if len(frames) > 2 else b""
    if seq == END_SEQ and not payload:
        return ReplayEnd(_read_info(before))
    if seq is None or seq >= HELLO_SEQ:
        return Malformed(_bad_seq(frames[-2]), list(frames))
    # Three frames that begin empty are the old framing of a DEALER (or an empty topic given to a REQ).
    return ReplayItem(before, seq, payload, topic_said=len(frames) > 3 or before != b"")


def _read_seq(frame: bytes) -> int | None:
    return int.from_bytes(frame, "big") if len(frame) == 8 else None


def _bad_seq(frame: bytes) -> str:
    if len(frame) != 8:
        return f"a sequence number of {len(frame)} bytes, not 8"
    return f"the number {int.from_bytes(frame, 'big')}, which is reserved"


def _read_info(said: bytes) -> PublisherInfo | None:
    # What cannot be read is no info, as from an engine: an end marker stays an end marker.
    if not said.startswith(INFO_MARK):
        return None
    try:
        info = msgspec.json.decode(said[len(INFO_MARK) :], type=PublisherInfo)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # msgspec takes no bounds above 2**63.
    in_range = (info.first_seq or 0) <= info.next_seq <= HELLO_SEQ
    return info if in_range else None
