"""The publisher of a measurement, in a process of its own: plays a stream through ``kvbus.Publisher``.

    python -m bench.source --batches N [--rate BATCHES_PER_S]

It says its addresses on a first line of JSON, waits for a subscriber, sends everything, says on a second
line when each batch was handed over (monotonic ns, a clock that all processes share), keeps answering
replays, and leaves when its standard input is closed. ``Source`` is that process, seen from outside.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct

from bench.stream import Stream, load
from kvbus.publisher import Publisher

SETTLE_S: Final = 0.3
"""A subscription reaches one socket before it reaches the others a subscriber may have."""


class Addresses(Struct, frozen=True):
    endpoint: str
    replay: str


class Source:
    """Owns a publishing process; used as a context manager, which ends it."""

    def __init__(self, *, batches: int, rate: float | None = None) -> None:
        command = [sys.executable, "-m", "bench.source", "--batches", str(batches)]
        command += ["--rate", str(rate)] if rate else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addresses = msgspec.json.decode(self._line(), type=Addresses)

    def sent_ns(self) -> list[int]:
        """When each batch was handed to the publisher; waits until all were."""
        return msgspec.json.decode(self._line(), type=list[int])

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the publishing process has ended early: no measurement")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--rate", type=float)
    args = parser.parse_args()
    stream = load()
    here = "tcp://127.0.0.1:*"
    # Room for all: what is measured is the other side, not what a publisher does when nobody keeps up.
    with Publisher(
        here,
        replay_endpoint=here,
        buffer_steps=args.batches,
        hwm=args.batches + 1,
        max_queue_size=args.batches + 1,
    ) as bus:
        say(Addresses(bus.endpoint, bus.replay_endpoint or ""))
        if not bus.wait_for_subscriber(30):
            sys.exit("no subscriber came")
        time.sleep(SETTLE_S)
        say(send(bus, stream, batches=args.batches, rate=args.rate))
        sys.stdin.read()


def send(bus: Publisher, stream: Stream, *, batches: int, rate: float | None) -> list[int]:
    """When each batch was handed over. A pace is kept against the clock, not against the batch before."""
    sent = []
    began = time.monotonic()
    for batch in stream.repeated(batches):
        if rate:
            pause = began + batch.seq / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
        sent.append(time.monotonic_ns())
        bus.forward(batch.topic, batch.seq, payload=batch.payload)
    return sent


def say(what: object) -> None:
    print(msgspec.json.encode(what).decode(), flush=True)


if __name__ == "__main__":
    main()
