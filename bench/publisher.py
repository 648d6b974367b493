"""``kvbus.Publisher`` against vLLM's own ``ZmqEventPublisher`` (its released module), one after the other,
same batches.

What an engine pays for a call, and how fast a subscriber in another process has it all. Each publisher is
given its own event objects, made beforehand from the same payloads: vLLM's with token lists, ours with
token ids as raw msgpack (which ``kvbus.events.tokens`` makes from a list; its price is a line of its own).

    python -m bench.publisher --subscribe ENDPOINT --count N        # the other process
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, Final

import msgspec
import zmq

from bench.figures import Figure, Section, percentile, rate
from bench.stream import Stream, load
from kvbus.dialects import DialectReader
from kvbus.events import BlockStored, EventBatch, tokens
from kvbus.publisher import Publisher
from scripts.peers import load_kv_events

PACE: Final = 1000.0
"""Batches a second in the paced run: a busy engine's steps."""
SETTLE_S: Final = 0.3

Publish = Callable[[Any], None]


class Run:
    """One run. ``calls_us``: how long each call took; ``rate``: first call to last receipt, batches/s."""

    def __init__(self, calls_us: list[float], rate: float) -> None:
        self.calls_us = calls_us
        self.rate = rate


def publisher(stream: Stream, *, rounds: int, batches: int = 30_000) -> Section:
    title = "publisher"
    try:
        vllm = load_kv_events()
    except FileNotFoundError as missing:
        return Section(title, str(missing))
    theirs = [msgspec.msgpack.decode(b.payload, type=vllm.KVEventBatch) for b in stream.batches]
    ours = [_events(b.payload) for b in stream.batches]
    burst: dict[str, list[Run]] = {"vLLM": [], "kvbus": []}
    paced: dict[str, list[Run]] = {"vLLM": [], "kvbus": []}
    for _ in range(rounds):
        for runs, count, pace in ((burst, batches, None), (paced, int(PACE) * 3, PACE)):
            with _vllm(vllm) as (publish, endpoint):
                runs["vLLM"].append(measure(publish, theirs, endpoint, count=count, pace=pace))
            with _kvbus() as (publish, endpoint):
                runs["kvbus"].append(measure(publish, ours, endpoint, count=count, pace=pace))
    theirs_rates = [run.rate for run in burst["vLLM"]]
    our_rates = [run.rate for run in burst["kvbus"]]
    return Section(
        title,
        f"{batches} batches a burst, {stream.events / len(stream.batches):.0f} events each, {rounds} rounds",
        (
            rate("vLLM 0.33 to one subscriber", "batches/s", theirs_rates),
            rate(
                "kvbus to a subscriber",
                "batches/s",
                our_rates,
                against="vLLM",
                base=theirs_rates,
                reach="≥ 1.2×",
            ),
            *_calls("in a burst", burst),
            *_calls(f"at {PACE:.0f}/s", paced),
            _price_of_tokens(ours),
        ),
    )


def measure(
    publish: Publish, batches: Sequence[Any], endpoint: str, *, count: int, pace: float | None
) -> Run:
    """Publish ``count`` batches, over and over, to a subscriber of another process."""
    command = [sys.executable, "-m", "bench.publisher", "--subscribe", endpoint, "--count", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()  # it has connected
        time.sleep(SETTLE_S)
        gc.collect()
        calls_us, began = _publish_all(publish, islice(cycle(batches), count), pace=pace)
        last_ns = int(reader.stdout.readline())
    return Run(calls_us, count / ((last_ns - began) / 1e9))


def _publish_all(publish: Publish, batches: Iterator[Any], *, pace: float | None) -> tuple[list[float], int]:
    clock = time.monotonic_ns
    calls_us = []
    began = clock()
    for number, batch in enumerate(batches):
        if pace:
            time.sleep(max(0.0, number / pace - (clock() - began) / 1e9))
        before = clock()
        publish(batch)
        calls_us.append((clock() - before) / 1e3)
    return calls_us, began


def subscribe(endpoint: str, count: int) -> None:
    """Say that we are there, receive ``count`` messages in order, say when the last came (monotonic ns)."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.set_hwm(0)
        sub.subscribe(b"")
        sub.connect(endpoint)
        print(flush=True)
        for number in range(count):
            _topic, seq, _payload = sub.recv_multipart()
            if int.from_bytes(seq, "big") != number:
                sys.exit(f"{int.from_bytes(seq, 'big')} came where {number} was due")
        print(time.monotonic_ns(), flush=True)


@contextmanager
def _vllm(module: Any) -> Iterator[tuple[Publish, str]]:
    bus = module.ZmqEventPublisher(0, endpoint="tcp://*:0", topic="kv")
    try:
        yield bus.publish, bus.get_publisher_config().endpoint
    finally:
        bus.shutdown()


@contextmanager
def _kvbus() -> Iterator[tuple[Publish, str]]:
    with Publisher("tcp://127.0.0.1:*", topic="kv") as bus:
        yield bus.publish, bus.endpoint


def _events(payload: bytes) -> Sequence[Any]:
    batch = DialectReader().read(payload)
    assert isinstance(batch, EventBatch)
    return batch.events


def _calls(when: str, runs: dict[str, list[Run]]) -> Iterator[Figure]:
    for share in (0.50, 0.99):
        base = [percentile(run.calls_us, share) for run in runs["vLLM"]]
        mine = [percentile(run.calls_us, share) for run in runs["kvbus"]]
        name = f"p{share * 100:.0f} of a call {when}"
        yield rate(f"vLLM {name}", "µs", base)
        yield rate(f"kvbus {name}", "µs", mine, against="vLLM", base=base, reach="≤ 1×")


def _price_of_tokens(ours: Sequence[Sequence[Any]]) -> Figure:
    lists = [
        msgspec.msgpack.decode(e.token_ids) for events in ours for e in events if isinstance(e, BlockStored)
    ]
    began = time.perf_counter()
    for ids in lists:
        tokens(ids)
    return Figure("kvbus token lists to raw, a batch", (time.perf_counter() - began) / len(ours) * 1e6, "µs")


def main() -> None:
    parser = argparse.ArgumentParser(description="kvbus.Publisher against vLLM's")
    parser.add_argument("--subscribe")
    parser.add_argument("--count", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.subscribe:
        subscribe(args.subscribe, args.count)
        return
    section = publisher(load(), rounds=args.rounds, batches=args.count)
    print(section.title, section.note, sep=": ")
    for f in section.figures:
        ratio = "" if f.ratio is None else f"{f.ratio:6.2f}x {f.against} (reach {f.reach})"
        print(f"{f.what:36} {f.value:10.2f} {f.unit:10} {ratio}")


if __name__ == "__main__":
    main()
