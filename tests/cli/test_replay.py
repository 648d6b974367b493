"""``kvbus replay``: a log printed, and published again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from kvbus.capture import CaptureWriter
from kvbus.feed import Feed
from kvbus.log import Received
from kvbus.subscriber import Subscriber
from tests.cli.processes import TIMEOUT_S, Kvbus, Message, Running, messages

Start = Callable[..., Running]


def addresses(sockets: Path) -> tuple[str, str]:
    return f"ipc://{sockets}/pub", f"ipc://{sockets}/rep"


def test_a_log_published_again_is_the_same_log(
    log: Path, said: list[Message], sockets: Path, start: Start, kvbus: Kvbus, tmp_path: Path
) -> None:
    """replay --to into record: the second log's payloads, topics and seqs are the first's."""
    live, again = addresses(sockets)
    recorder = start("record", live, "--replay", again, "-o", "second.duckdb", "-n", str(len(said)))
    player = start("replay", log, "--to", live, "--replay-endpoint", again)
    code, out, err = player.finish()
    assert (code, out) == (0, ""), err
    assert f"published {len(said)} batches" in err
    assert recorder.finish()[0] == 0
    assert kvbus("export", "second.duckdb", "-o", "second.frames").returncode == 0
    assert messages(tmp_path / "second.frames") == said


def test_a_subscriber_that_only_listens_gets_all_of_it(
    log: Path, said: list[Message], sockets: Path, start: Start
) -> None:
    """It begins when a subscriber has come, outruns no slow one, and is not gone before the last byte is."""
    live, _ = addresses(sockets)
    player = start("replay", log, "--to", live)
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.rcvtimeo = TIMEOUT_S * 1000
        subscriber.rcvhwm = 10
        subscriber.subscribe(b"")
        subscriber.connect(live)
        heard = []
        for number in range(len(said)):
            topic, seq, payload = subscriber.recv_multipart()
            heard.append((topic, int.from_bytes(seq, "big"), payload))
            if number % 100 == 0:
                time.sleep(0.05)
    assert heard == said
    assert player.finish()[0] == 0


def test_a_part_of_a_log_keeps_its_numbers(
    log: Path, said: list[Message], sockets: Path, start: Start
) -> None:
    """--from and --until choose positions; what is left out is a hole, not renumbered."""
    live, _ = addresses(sockets)
    player = start("replay", log, "--to", live, "--from", "100", "--until", "103")
    with Subscriber([Feed(live)], origin=None) as subscriber:
        heard: list[int] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(heard) < 3 and time.monotonic() < deadline:
            heard += [item.seq for item in subscriber.poll(0.1) if isinstance(item, Received)]
    assert heard == [said[position][1] for position in (100, 101, 102)]
    assert player.finish()[0] == 0


def test_it_waits_for_a_subscriber_unless_told_not_to(
    log: Path, sockets: Path, start: Start, kvbus: Kvbus
) -> None:
    """--no-wait publishes to nobody and leaves; else the replay waits, and Ctrl-C ends that with 0."""
    live, _ = addresses(sockets)
    done = kvbus("replay", log, "--to", live, "--no-wait")
    assert done.returncode == 0, done.stderr
    waiting = start("replay", log, "--to", live)
    assert waiting.process.stderr is not None
    assert "→" in waiting.process.stderr.readline()
    time.sleep(0.5)
    assert waiting.process.poll() is None
    assert waiting.stop()[0] == 0


def test_each_stream_gets_an_address_of_its_own(captures: Path, sockets: Path, kvbus: Kvbus) -> None:
    """A log of two engines is published on two addresses, told on stderr, or on one with --source."""
    for name in ("sglang0523_radix", "vllm011_gpu_int"):
        assert kvbus("import", captures / f"{name}.frames", "-o", "two.duckdb").returncode == 0
    live, _ = addresses(sockets)
    done = kvbus("replay", "two.duckdb", "--to", live, "--no-wait", "-n", "1")
    assert done.returncode == 0, done.stderr
    assert f"sglang0523_radix kv@local@tiny r0 → {live}\n" in done.stderr
    assert f"vllm011_gpu_int kv@local@tiny r0 → {live}_dp1\n" in done.stderr
    one = kvbus("replay", "two.duckdb", "--to", live, "--no-wait", "-n", "1", "--source", "vllm011_gpu_int")
    assert one.stderr.count("→") == 1
    none = kvbus("replay", "two.duckdb", "--to", live, "--no-wait", "--source", "nobody")
    assert none.returncode == 2
    assert "sglang0523_radix, vllm011_gpu_int" in none.stderr


def test_speed_keeps_the_times_between_receipts(said: list[Message], kvbus: Kvbus, tmp_path: Path) -> None:
    """At --speed 1 a log whose batches came a second apart takes that second."""
    with CaptureWriter(tmp_path / "slow.frames") as writer:
        for number, (topic, seq, payload) in enumerate(said[:2]):
            writer.write(number * 1_000_000_000, [topic, seq.to_bytes(8, "big"), payload])
    assert kvbus("import", "slow.frames", "-o", "slow.duckdb").returncode == 0
    began = time.monotonic()
    done = kvbus("replay", "slow.duckdb", "--speed", "1", "--format", "%s")
    assert time.monotonic() - began >= 1
    assert sorted(set(done.stdout.split())) == ["0", "1"]


def test_printing_is_what_tail_prints(log: Path, said: list[Message], kvbus: Kvbus) -> None:
    """Every event of the log is a line, in position order; --count ends it early."""
    lines = kvbus("replay", log, "--format", "%s %i").stdout.splitlines()
    numbers = [tuple(map(int, line.split())) for line in lines]
    assert numbers == sorted(numbers)
    assert {seq for seq, _ in numbers} == {message[1] for message in said}
    assert kvbus("replay", log, "--format", "%s %i", "-n", "7").stdout.splitlines() == lines[:7]
    objects = [json.loads(line) for line in kvbus("replay", log, "--json").stdout.splitlines()]
    assert [(line["seq"], line["event"]) for line in objects if "event" in line] == numbers
