"""From ``publish`` to a line of ``kvbus tail``, at a steady rate: three processes, a socket and a pipe.

The clock starts when a batch is handed to the publisher and stops when the last line about it can be read
from the pipe.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Final

from bench.figures import Figure, Section, percentile
from bench.source import Source
from bench.stream import Stream

RATE: Final = 1000.0
WARM_BATCHES: Final = 500
"""The first ones are not counted: they pay for imports and connections."""
LINE = re.compile(rb"#(\d+) ")


def latency(stream: Stream, *, batches: int) -> Section:
    with Source(batches=batches, rate=RATE) as source:
        told = source.addresses
        tail = subprocess.Popen(
            [sys.executable, "-m", "cli.entry", "tail", told.endpoint, "--replay", told.replay, "--quiet"],
            stdout=subprocess.PIPE,
        )
        try:
            seen = arrivals(tail, last_seq=batches - 1)
            sent = source.sent_ns()
        finally:
            tail.terminate()
            tail.communicate(timeout=10)
    delays = [(seen[seq] - sent[seq]) / 1e6 for seq in range(WARM_BATCHES, batches)]
    return Section(
        "publish to a line of tail",
        f"{batches} batches at {RATE:.0f}/s, {stream.events / len(stream.batches):.0f} events (lines) each",
        (
            Figure("p50", percentile(delays, 0.50), "ms"),
            Figure("p99", percentile(delays, 0.99), "ms", reach="≤ 10 ms"),
            Figure("max", max(delays), "ms"),
        ),
    )


def arrivals(tail: subprocess.Popen[bytes], *, last_seq: int) -> dict[int, int]:
    """For each seq when its last line could be read. Reading must not wait for parsing: that comes after."""
    assert tail.stdout is not None
    chunks: list[tuple[int, bytes]] = []
    wanted = b"#%d " % last_seq
    held = b""
    deadline = time.monotonic() + 120
    while wanted not in held and time.monotonic() < deadline:
        chunk = os.read(tail.stdout.fileno(), 1 << 20)
        chunks.append((time.monotonic_ns(), chunk))
        if not chunk:
            break
        held = held[-64:] + chunk
    return last_seen(chunks)


def last_seen(chunks: Iterable[tuple[int, bytes]]) -> dict[int, int]:
    seen: dict[int, int] = {}
    rest = b""
    for at_ns, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if found := LINE.search(line):
                seen[int(found[1])] = at_ns
    return seen
