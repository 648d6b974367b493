"""Replay sockets that are broken, lie or never end: the live stream goes on, and nothing is made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from kvbus.feed import Feed, Notice
from kvbus.log import Entry, EpochBegan, Loss, Received
from kvbus.subscriber import Subscriber
from kvbus.wire import HELLO_SEQ, end_frames, live_frames, reply_frames, seq_bytes

PATIENCE_S = 20.0
MISSING = 5
COUNT = 10
Answer = Callable[[int, int], Iterator[list[bytes]]]
"""start_seq, and how many requests came before it → the messages, without the client's identity."""


def payload(seq: int) -> bytes:
    return msgspec.msgpack.encode((1e9 + seq, [], 0))


def items(first: int = 0) -> Iterator[list[bytes]]:
    return (reply_frames(b"kv", seq, payload(seq)) for seq in range(first, COUNT))


def whole_buffer_whatever_is_asked(_start: int, _turn: int) -> Iterator[list[bytes]]:
    yield from items()
    yield end_frames(None)


def garbage_without_end(_start: int, _turn: int) -> Iterator[list[bytes]]:
    while True:
        yield [b"", b"what", b"is", b"this"]


def round_and_round(_start: int, _turn: int) -> Iterator[list[bytes]]:
    while True:
        yield from (reply_frames(b"kv", seq, payload(seq)) for seq in range(MISSING))


def the_same_for_ever(_start: int, _turn: int) -> Iterator[list[bytes]]:
    while True:
        yield reply_frames(b"kv", 1, payload(1))


def half_a_message(_start: int, _turn: int) -> Iterator[list[bytes]]:
    yield [b"", b"kv", seq_bytes(4)]


def nothing(_start: int, _turn: int) -> Iterator[list[bytes]]:
    return iter(())


def garbage_to_hello_and_truth_else(start: int, _turn: int) -> Iterator[list[bytes]]:
    if start == HELLO_SEQ:
        yield [b"", b"kvbus/1 {", b"\xff" * 8, b"no end"]
        yield [b"", b'kvbus/1 {"incarnation": 7}', b"\xff" * 8, b""]
        return
    yield from items(start)
    yield end_frames(None)


@contextmanager
def engine(answer: Answer) -> Iterator[Feed]:
    """Batches 0 … 9 without the fifth, published once a subscriber is there, and a replay socket like
    ``answer``.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (live, router)]
    stop = threading.Event()

    def play() -> None:
        talking: dict[bytes, Iterator[list[bytes]]] = {}
        turn, due = 0, [seq for seq in range(COUNT) if seq != MISSING]
        while not stop.is_set():
            if due and live.poll(0):
                for seq in due:
                    live.send_multipart(live_frames(b"kv", seq, payload(seq)))
                due = []
            if router.poll(5):
                request = router.recv_multipart()
                talking[request[0]] = answer(int.from_bytes(request[-1], "big"), turn)
                turn += 1
            for identity, messages in list(talking.items()):
                try:
                    for _ in range(64):
                        router.send_multipart([identity, *next(messages)], zmq.NOBLOCK)
                except (StopIteration, zmq.ZMQError):
                    del talking[identity]

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield Feed(f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}")
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        context.destroy(linger=0)


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (whole_buffer_whatever_is_asked, ""),
        (garbage_to_hello_and_truth_else, ""),
        (garbage_without_end, "replay_incomplete"),
        (round_and_round, "replay_incomplete"),
        (the_same_for_ever, "replay_incomplete"),
        (half_a_message, "replay_incomplete"),
        (nothing, "replay_incomplete"),
    ],
)
def test_a_replay_socket_that_misbehaves_costs_at_most_what_was_missing(answer: Answer, lost: str) -> None:
    """Whatever the replay socket says or keeps saying, what was heard is delivered, once, in one epoch."""
    with engine(answer) as feed, Subscriber([feed], replay_timeout_s=0.3) as subscriber:
        entries: list[Entry | Notice] = []
        deadline = time.monotonic() + PATIENCE_S
        wanted = COUNT - bool(lost)
        while sum(isinstance(e, Received) for e in entries) < wanted and time.monotonic() < deadline:
            entries += subscriber.poll(0.05)
        entries += subscriber.poll(0.2)
    got = [(entry.epoch, entry.seq) for entry in entries if isinstance(entry, Received)]
    assert got == [(0, seq) for seq in range(COUNT) if not (lost and seq == MISSING)]
    assert [entry.reason for entry in entries if isinstance(entry, Loss)] == [lost] * bool(lost)
    assert sum(isinstance(entry, EpochBegan) for entry in entries) == 1
