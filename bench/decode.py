"""How fast payloads become events, against msgspec's own generic decoder on the same bytes.

The generic decoder builds lists and dicts of everything, token ids too. Ours knows the shapes, builds
structs, and leaves token ids as they are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from bench.figures import Section, rate
from bench.stream import Stream
from kvbus.dialects import DialectReader


def decode(stream: Stream, *, rounds: int, passes: int = 4) -> Section:
    payloads = [batch.payload for batch in stream.batches]
    ours: list[float] = []
    generic: list[float] = []
    for _ in range(rounds):
        generic.append(passes * stream.events / generic_pass(payloads, passes))
        ours.append(passes * stream.events / our_pass(payloads, passes))
    return Section(
        "decode",
        f"{passes} passes a round, {rounds} rounds",
        (
            rate("msgspec generic decoder", "events/s", generic),
            rate("DialectReader", "events/s", ours, against="generic decoder", base=generic, reach="≥ 1.5×"),
        ),
    )


def our_pass(payloads: Sequence[bytes], passes: int) -> float:
    reader = DialectReader()
    began = time.perf_counter()
    for _ in range(passes):
        for payload in payloads:
            reader.read(payload)
    return time.perf_counter() - began


def generic_pass(payloads: Sequence[bytes], passes: int) -> float:
    read = msgspec.msgpack.Decoder().decode
    began = time.perf_counter()
    for _ in range(passes):
        for payload in payloads:
            read(payload)
    return time.perf_counter() - began
