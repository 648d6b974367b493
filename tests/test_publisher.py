"""The publisher on real sockets, read with plain pyzmq as other people's consumers do."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kvbus.dialects import DialectReader
from kvbus.errors import ConfigError, EndpointError, KvbusError
from kvbus.events import BlockRemoved, BlockStored, Event, EventBatch, tokens
from kvbus.publisher import Publisher
from kvbus.wire import (
    HELLO_SEQ,
    PublisherInfo,
    ReplayEnd,
    ReplayItem,
    hello_request,
    read_reply,
    replay_request,
    seq_bytes,
)
from tests.sockets import PATIENCE_MS, KeepingContext, Sockets, connect, live, replayed

TCP = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[Sockets]:
    made = KeepingContext()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def bus() -> Iterator[Publisher]:
    with Publisher(TCP, replay_endpoint=TCP, topic="kv") as made:
        yield made


def stored(number: int) -> list[Event]:
    return [BlockStored([number], token_ids=tokens([1, 2]), block_size=2, medium="GPU")]


def unencodable() -> list[Event]:
    return [BlockStored([2**64])]


def hash_of(payload: bytes) -> int:
    batch = DialectReader().read(payload)
    assert isinstance(batch, EventBatch)
    assert isinstance(batch.events[0], BlockStored)
    return batch.events[0].block_hashes[0]


def subscriber(context: Sockets, bus: Publisher) -> zmq.Socket[bytes]:
    made = connect(context, zmq.SUB, bus.endpoint)
    assert bus.wait_for_subscriber(20)
    return made


def dealer(context: Sockets, bus: Publisher, *, receives: int = 0) -> zmq.Socket[bytes]:
    assert bus.replay_endpoint is not None
    return connect(context, zmq.DEALER, bus.replay_endpoint, receives=receives)


def replay(
    context: Sockets, bus: Publisher, start_seq: int = 0
) -> tuple[list[ReplayItem], PublisherInfo | None]:
    client = dealer(context, bus)
    client.send_multipart(replay_request(start_seq))
    return replayed(client)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)


def publish(bus: Publisher, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        bus.publish(stored(number))


def sent(bus: Publisher, count: int) -> None:
    until(lambda: bus.counts().published >= count)


# ---- live --------------------------------------------------------------------------------------------------


def test_batches_arrive_in_order_under_their_numbers(context: Sockets, bus: Publisher) -> None:
    """A subscriber receives topic, number from 0 without a hole, and the batch with time and rank."""
    sub = subscriber(context, bus)
    before = time.time()
    publish(bus, 1000)
    bus.publish([BlockRemoved([7], medium="GPU")], ts=12.5)
    got = [live(sub) for _ in range(1001)]
    assert [one.seq for one in got] == list(range(1001))
    assert {one.topic for one in got} == {b"kv"}
    assert [hash_of(one.payload) for one in got[:-1]] == list(range(1000))
    first, last = (DialectReader().read(got[n].payload) for n in (0, -1))
    assert isinstance(first, EventBatch)
    assert isinstance(last, EventBatch)
    assert before <= first.ts <= time.time()
    assert (last.ts, last.data_parallel_rank) == (12.5, 0)
    assert last.events == [BlockRemoved([7], medium="GPU")]


def test_an_idle_publisher_loses_no_first_message(context: Sockets, bus: Publisher) -> None:
    """A subscriber that came while nothing was published gets the very next batch."""
    for number in range(5):
        sub = connect(context, zmq.SUB, bus.endpoint)
        time.sleep(0.15)  # the subscription is on its way; nobody waits for it on the publisher's side
        bus.publish(stored(number))
        assert live(sub).seq == number
        sub.close(0)


def test_waiting_for_a_subscriber(context: Sockets, bus: Publisher) -> None:
    """It is False in time when none comes, True soon after one has, and stays so."""
    began = time.monotonic()
    assert bus.wait_for_subscriber(0.05) is False
    assert time.monotonic() - began < 5
    sub = context.socket(zmq.SUB)
    sub.subscribe(b"other topic")
    threading.Timer(0.1, sub.connect, (bus.endpoint,)).start()
    assert bus.wait_for_subscriber(20) is True
    assert bus.wait_for_subscriber(0) is True


def test_subscribers_choose_by_topic(context: Sockets) -> None:
    """The topic frame is the configured topic, and filters by prefix as ZeroMQ does."""
    with Publisher(TCP, topic="kv@pod@model") as bus:
        other, mine = context.socket(zmq.SUB), context.socket(zmq.SUB)
        for sub, topic in ((other, b"kv@else"), (mine, b"kv@pod")):
            sub.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
            sub.subscribe(topic)
            sub.connect(bus.endpoint)
        time.sleep(0.3)
        bus.publish(stored(1))
        assert live(mine).topic == b"kv@pod@model"
        assert not other.poll(50)


def test_a_connecting_publisher_reaches_a_bound_subscriber(context: Sockets) -> None:
    """Without a star the publisher connects, and several share one bound subscriber."""
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    sub.subscribe(b"")
    endpoint = f"tcp://127.0.0.1:{sub.bind_to_random_port('tcp://127.0.0.1')}"
    with Publisher(endpoint, topic="a") as one, Publisher(endpoint, topic="b") as two:
        assert one.endpoint == two.endpoint == endpoint
        for bus in (one, two):
            deadline = time.monotonic() + 20
            while not bus.wait_for_subscriber(0.01):
                sub.poll(0)  # a bound SUB greets those who connect only when it looks at its socket
                assert time.monotonic() < deadline
            bus.publish(stored(1))
        assert {live(sub).topic for _ in range(2)} == {b"a", b"b"}


# ---- addresses ---------------------------------------------------------------------------------------------


def test_port_zero_is_bound_and_reported(context: Sockets) -> None:
    """``:0`` takes a free port, for every rank, and the publisher says which."""
    with Publisher("tcp://*:0", replay_endpoint="tcp://*:0", data_parallel_rank=3) as bus:
        assert bus.replay_endpoint is not None
        ports = [int(endpoint.rpartition(":")[2]) for endpoint in (bus.endpoint, bus.replay_endpoint)]
        assert all(ports)
        sub = connect(context, zmq.SUB, f"tcp://127.0.0.1:{ports[0]}")
        assert bus.wait_for_subscriber(20)
        bus.publish(stored(1))
        batch = DialectReader().read(live(sub).payload)
        assert isinstance(batch, EventBatch)
        assert batch.data_parallel_rank == 3


def test_ipc_files_go_with_their_publisher(tmp_path: Path) -> None:
    """A publisher that was closed leaves no file behind, under a relative name either."""
    with contextlib.chdir(tmp_path):
        bus = Publisher("ipc://live", replay_endpoint=f"ipc://{tmp_path}/replay")
        assert {path.name for path in tmp_path.iterdir()} == {"live", "replay"}
    bus.close(0)
    assert list(tmp_path.iterdir()) == []


def test_an_ipc_address_is_not_taken_from_who_answers_there(tmp_path: Path) -> None:
    """It is refused as a tcp port would be; nothing is disturbed, and nothing of the refused one stays."""
    taken = f"ipc://{tmp_path}/live"
    with Publisher(f"ipc://{tmp_path}/other", replay_endpoint=taken) as bus:
        with pytest.raises(EndpointError, match="somebody answers there"):
            Publisher(f"ipc://{tmp_path}/free", replay_endpoint=taken)
        assert {path.name for path in tmp_path.iterdir()} == {"other", "live"}
        assert bus.replay_endpoint == taken
    Publisher(taken).close(0)


def test_an_ipc_file_of_the_dead_is_replaced(tmp_path: Path) -> None:
    """Where nobody answers, a file is no reason to refuse."""
    path = tmp_path / "live"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    Publisher(f"ipc://{path}").close(0)
    assert not path.exists()


def test_the_file_of_a_successor_stays(tmp_path: Path) -> None:
    """What somebody else has bound since is not ours to remove."""
    path = tmp_path / "live"
    bus = Publisher(f"ipc://{path}")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        bus.close(0)
        assert path.exists()


def test_ranks_share_one_ipc_setting(context: Sockets, tmp_path: Path) -> None:
    """Every rank publishes and replays at an ipc address of its own, made from one setting."""
    live_at, replay_at = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    for rank, suffix in ((0, ""), (1, "_dp1")):
        with Publisher(live_at, replay_endpoint=replay_at, data_parallel_rank=rank) as bus:
            assert bus.endpoint == live_at + suffix
            assert bus.replay_endpoint == replay_at + suffix
            sub = subscriber(context, bus)
            bus.publish(stored(rank))
            assert hash_of(live(sub).payload) == rank
            assert len(replay(context, bus)[0]) == 1


def test_inproc_uses_the_shared_context() -> None:
    """An inproc publisher is reachable through pyzmq's own shared context, as vLLM's is."""
    with Publisher(
        "inproc://kv-test", replay_endpoint="inproc://kv-test-replay", data_parallel_rank=1
    ) as bus:
        assert bus.endpoint == "inproc://kv-test_dp1"
        shared: Sockets = zmq.Context.instance()
        sub, client = subscriber(shared, bus), dealer(shared, bus)
        bus.publish(stored(9))
        assert hash_of(live(sub).payload) == 9
        client.send_multipart(replay_request(0))
        assert [item.seq for item in replayed(client)[0]] == [0]
        sub.close(0)
        client.close(0)


def test_a_taken_address_is_an_error_of_the_call(bus: Publisher) -> None:
    """Binding what another holds raises at once, says which address, and leaves nothing behind."""
    threads = threading.active_count()
    with pytest.raises(EndpointError, match="in use"):
        Publisher(bus.endpoint.replace("127.0.0.1", "*"), replay_endpoint=TCP)
    with pytest.raises(EndpointError, match="in use"):
        Publisher(TCP, replay_endpoint=bus.replay_endpoint)
    assert threading.active_count() == threads


@pytest.mark.parametrize("limit", ["buffer_steps", "buffer_bytes", "hwm", "max_queue_size", "replays_max"])
def test_senseless_limits_are_refused(limit: str) -> None:
    """A negative limit is refused by name."""
    kwargs: dict[str, Any] = {limit: -1}
    with pytest.raises(ConfigError, match=limit):
        Publisher(TCP, **kwargs)


# ---- losses are visible ------------------------------------------------------------------------------------


class Gate:
    """An event list that holds up the sender while it is being encoded, so that the queue behind it fills."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Event]:
        self.reached.set()
        assert self.opened.wait(20)
        return iter(stored(0))


def held(bus: Publisher) -> Gate:
    gate = Gate()
    bus.publish(gate)  # type: ignore[arg-type]
    assert gate.reached.wait(20)
    return gate


def test_a_full_queue_makes_a_hole_in_its_place(context: Sockets, caplog: pytest.LogCaptureFixture) -> None:
    """Of batches published into a full queue exactly those without room lack, under their numbers."""
    with Publisher(TCP, replay_endpoint=TCP, max_queue_size=3) as bus:
        sub = subscriber(context, bus)
        until(lambda: bus.counts().waiting == 0)
        gate = held(bus)
        began = time.monotonic()
        publish(bus, 8, first=1)  # 1 … 3 find room, 4 … 8 do not
        assert time.monotonic() - began < 10  # it did not wait for the gate
        gate.opened.set()
        until(lambda: bus.counts().waiting == 0)
        publish(bus, 2, first=9)
        got = [live(sub) for _ in range(6)]
        assert [one.seq for one in got] == [0, 1, 2, 3, 9, 10]
        assert [hash_of(one.payload) for one in got] == [0, 1, 2, 3, 9, 10]
        until(lambda: bus.counts().published == 6)  # counted when it was sent, so it can be heard before
        assert bus.counts().dropped == {"queue_full": 5, "unencodable": 0, "too_large": 0, "at_close": 0}
        # The replay lacks them too, and says that this is not for lack of memory.
        items, info = replay(context, bus)
        assert [item.seq for item in items] == [0, 1, 2, 3, 9, 10]
        assert info is not None
        assert not info.too_old(0)
        assert info.next_seq == 11
    assert "queue was full" in caplog.text


def test_what_cannot_be_encoded_leaves_a_hole_and_an_empty_batch(
    context: Sockets, bus: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that has no encoding is logged and counted; readers see that something is missing, and when."""
    sub = subscriber(context, bus)
    bus.publish(stored(1), ts=1.0)
    bus.publish(unencodable(), ts=2.0)
    bus.publish([object()], ts=3.0)  # type: ignore[list-item]
    bus.publish(stored(2), ts=float("nan"))  # not even its time can be sent
    bus.publish(stored(2), ts=4.0)
    got = [live(sub) for _ in range(4)]
    read = [DialectReader().read(one.payload) for one in got]
    told = [(batch.ts, len(batch.events)) for batch in read if isinstance(batch, EventBatch)]
    assert [one.seq for one in got] == [0, 2, 4, 6]
    assert told == [(1.0, 1), (2.0, 0), (3.0, 0), (4.0, 1)]
    items, info = replay(context, bus)
    assert [item.seq for item in items] == [0, 2, 4, 6]
    assert info is not None
    assert info.next_seq == 7
    assert bus.counts().dropped["unencodable"] == 3
    assert "batch not published" in caplog.text


def test_what_no_reader_would_take_is_not_sent(
    context: Sockets, bus: Publisher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch above the readers' limit would end their connection: it is logged and counted, and missing."""
    monkeypatch.setattr("kvbus.sender.MESSAGE_BYTES_MAX", 1000)
    sub = subscriber(context, bus)
    bus.publish(stored(1) * 100, ts=1.0)
    bus.forward(b"kv", 2, bytes(1001))
    bus.forward(b"kv", 3, bytes(1000))
    got = [live(sub) for _ in range(2)]
    assert [one.seq for one in got] == [1, 3]
    assert [one.seq for one in replay(context, bus)[0]] == [1, 3]
    assert bus.counts().dropped["too_large"] == 2
    assert "1001 bytes are more than the 1000 readers take" in caplog.text


def test_waiting_mode_loses_nothing_to_a_slow_subscriber(context: Sockets, tmp_path: Path) -> None:
    """With ``when_full="wait"`` a full queue and a full subscriber hold the caller; no batch is lost."""
    with Publisher(f"ipc://{tmp_path}/kv", when_full="wait", hwm=10, max_queue_size=10) as bus:
        sub = connect(context, zmq.SUB, bus.endpoint, receives=10)
        assert bus.wait_for_subscriber(20)
        payload = bytes(100_000)  # more than the system's own buffers take in

        def write() -> None:
            for seq in range(300):
                bus.forward(b"", seq, payload)

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(0.3)
        assert writer.is_alive()
        assert [live(sub).seq for _ in range(300)] == list(range(300))
        writer.join(20)
        assert not any(bus.counts().dropped.values())


# ---- replay ------------------------------------------------------------------------------------------------


def test_replay_gives_what_was_sent(context: Sockets, bus: Publisher) -> None:
    """From any number on a replay gives the same bytes as were sent live, then one end marker."""
    sub = subscriber(context, bus)
    publish(bus, 100)
    got = [live(sub) for _ in range(100)]
    for start in (0, 40, 99, 100, 10_000):
        items, info = replay(context, bus, start)
        assert [(i.topic, i.seq, i.payload) for i in items] == [
            (o.topic, o.seq, o.payload) for o in got[start:]
        ]
        assert info == bus.info()


def test_what_was_seen_can_be_replayed(context: Sockets, bus: Publisher) -> None:
    """A batch is in the replay from the moment a subscriber has it."""
    sub, client = subscriber(context, bus), dealer(context, bus)
    for number in range(200):
        bus.publish(stored(number))
        seq = live(sub).seq
        client.send_multipart(replay_request(seq))
        assert [item.seq for item in replayed(client)[0]] == [seq]


def test_too_old_is_said(context: Sockets) -> None:
    """A replay that cannot begin where asked begins where it can, and its end marker says so."""
    with Publisher(TCP, replay_endpoint=TCP, buffer_steps=10) as bus:
        publish(bus, 25)
        sent(bus, 25)
        items, info = replay(context, bus)
        assert [item.seq for item in items] == list(range(15, 25))
        assert info == PublisherInfo(bus.info().incarnation, 15, 25)
        assert info.too_old(14)
        assert not info.too_old(15)


def test_the_buffer_is_bounded_in_bytes(context: Sockets) -> None:
    """Large batches leave the replay earlier than ``buffer_steps`` says."""
    with Publisher(TCP, replay_endpoint=TCP, buffer_bytes=1000) as bus:
        for seq in range(10):
            bus.forward(b"", seq, bytes(300))
        sent(bus, 10)
        assert [item.seq for item in replay(context, bus)[0]] == [7, 8, 9]


def test_hello_says_what_fits(context: Sockets) -> None:
    """A capacity is part of what *hello* tells; one that no reader would take is refused at once."""
    with Publisher(TCP, replay_endpoint=TCP, capacity={"CPU": 300}) as bus:
        client = dealer(context, bus)
        client.send_multipart(hello_request())
        assert replayed(client) == ([], PublisherInfo(bus.info().incarnation, None, 0, {"CPU": 300}))
    refused: list[dict[str, object]] = [{"CPU": 0}, {"CPU": "many"}, {"": 3}, {str(n): 1 for n in range(17)}]
    for capacity in refused:
        with pytest.raises(ConfigError, match="capacity"):
            Publisher(TCP, capacity=capacity)  # type: ignore[arg-type]


def test_hello_says_who_is_there(context: Sockets, bus: Publisher) -> None:
    """Hello is answered with the incarnation, first and next number, and no batch; two publishers differ."""
    client = dealer(context, bus)
    client.send_multipart(hello_request())
    items, fresh = replayed(client)
    assert (items, fresh) == ([], PublisherInfo(bus.info().incarnation, None, 0))
    publish(bus, 3)
    sent(bus, 3)
    client.send_multipart(hello_request())
    items, info = replayed(client)
    assert (items, info) == ([], PublisherInfo(bus.info().incarnation, 0, 3))
    assert len(bytes.fromhex(bus.info().incarnation)) == 16
    with Publisher(TCP) as other:
        assert other.info().incarnation != bus.info().incarnation


def test_a_req_client_works_as_with_vllm(context: Sockets, bus: Publisher) -> None:
    """A REQ socket gets one reply a request, the first batch asked for, and can ask again and again."""
    publish(bus, 5000)
    sent(bus, 5000)
    assert bus.replay_endpoint is not None
    client = connect(context, zmq.REQ, bus.replay_endpoint)
    for start in (0, 17, 0, 4999):
        client.send(seq_bytes(start))
        topic, seq, payload = client.recv_multipart()
        assert (topic, int.from_bytes(seq, "big"), hash_of(payload)) == (b"kv", start, start)
    client.send(seq_bytes(5000))
    assert client.recv_multipart()[1:] == [b"\xff" * 8, b""]


def test_a_client_without_delimiter_is_answered_in_kind(context: Sockets, bus: Publisher) -> None:
    """A DEALER that sends the number alone, which vLLM never answers, gets replies without an empty frame."""
    publish(bus, 2)
    sent(bus, 2)
    client = dealer(context, bus)
    client.send(seq_bytes(1))
    topic, seq, _ = client.recv_multipart()
    assert (topic, seq) == (b"kv", seq_bytes(1))
    assert isinstance(read_reply(client.recv_multipart()), ReplayEnd)


def test_old_framing_on_request(context: Sockets) -> None:
    """``replay_topic_frame=False`` replies as vLLM did until 0.25."""
    with Publisher(TCP, replay_endpoint=TCP, topic="kv", replay_topic_frame=False) as bus:
        publish(bus, 1)
        sent(bus, 1)
        client = dealer(context, bus)
        client.send_multipart(replay_request(0))
        frames = client.recv_multipart()
        assert frames[:2] == [b"", seq_bytes(0)]
        assert len(frames) == 3
        assert client.recv_multipart() == [b"", b"\xff" * 8, b""]


def test_minus_one_gets_the_end_marker_alone(context: Sockets, bus: Publisher) -> None:
    """A start of -1 (all ones), as some clients send it, is past every batch."""
    publish(bus, 3)
    sent(bus, 3)
    assert replay(context, bus, 2**64 - 1)[0] == []


def test_garbage_is_counted_and_hurts_nobody(
    context: Sockets, bus: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that are none get no answer; the next real one, from the same client, does."""
    publish(bus, 3)
    sent(bus, 3)
    client = dealer(context, bus)
    garbage = (
        [b"", b"short"],
        [b"x"],
        [b"", b""],
        [b"not empty", seq_bytes(0)],
        [b"", b"", b"", b"longer than 8"],
    )
    for frames in garbage:
        client.send_multipart(frames)
    client.send_multipart(replay_request(1))
    assert [item.seq for item in replayed(client)[0]] == [1, 2]
    assert bus.counts().replies.malformed == len(garbage)
    assert "not understood" in caplog.text


def test_a_huge_request_costs_the_client_its_connection(context: Sockets, bus: Publisher) -> None:
    """A request larger than any request is cut off by ZeroMQ; others are served."""
    client = dealer(context, bus)
    client.send_multipart([b"", bytes(10_000_000)])
    publish(bus, 1)
    sent(bus, 1)
    assert len(replay(context, bus)[0]) == 1
    assert bus.counts().replies.malformed == 0


def test_a_slow_client_loses_nothing_and_stops_nobody(context: Sockets) -> None:
    """A client that reads nothing for a while gets all its batches and the end marker; live and other
    replays go on meanwhile.

    vLLM before 0.33 lost batches inside the replay and the end marker (capture ``vllm032_replay_lossy``).
    """
    count, size = 3000, 4000  # 12 MB: far more than the queues and the system's buffers take in
    with Publisher(TCP, replay_endpoint=TCP, topic="kv") as bus:
        sub = subscriber(context, bus)
        for seq in range(count):
            bus.forward(b"kv", seq, seq_bytes(seq) + bytes(size))
        assert [live(sub).seq for _ in range(count)] == list(range(count))

        slow = dealer(context, bus, receives=10)
        slow.send_multipart(replay_request(0))
        until(lambda: bus.counts().replies.batches > 10)
        time.sleep(0.1)
        assert bus.counts().replies.batches < count  # it is held up
        assert bus.counts().replies.served == 0

        for _ in range(3):
            items, info = replay(context, bus)
            assert [item.seq for item in items] == list(range(count))
        assert bus.counts().replies.batches < 4 * count
        publish(bus, 50)
        assert [live(sub).seq for _ in range(50)] == list(range(count, count + 50))

        items, info = replayed(slow)
        assert [item.seq for item in items] == list(range(count))
        assert all(item.payload[:8] == seq_bytes(item.seq) for item in items)
        assert info is not None
        assert not info.too_old(0)
        until(lambda: bus.counts().replies.served == 4)


def test_replays_do_not_wait_for_live_batches(context: Sockets, bus: Publisher) -> None:
    """While the sender is busy with one batch, replays are answered all the same."""
    publish(bus, 10)
    sent(bus, 10)
    gate = held(bus)
    try:
        assert len(replay(context, bus)[0]) == 10
    finally:
        gate.opened.set()


def test_many_clients_at_once(context: Sockets) -> None:
    """More clients than replays may run at once are all served whole."""
    with Publisher(TCP, replay_endpoint=TCP, replays_max=4) as bus:
        publish(bus, 500)
        sent(bus, 500)
        clients = [dealer(context, bus) for _ in range(20)]
        for client in clients:
            client.send_multipart(replay_request(100))
        for client in clients:
            assert [item.seq for item in replayed(client)[0]] == list(range(100, 500))


def test_a_client_that_leaves_is_let_go(context: Sockets) -> None:
    """A client that goes away in the middle of its replay is noticed, counted and not waited for."""
    with Publisher(TCP, replay_endpoint=TCP) as bus:
        for seq in range(3000):
            bus.forward(b"kv", seq, bytes(4000))
        sent(bus, 3000)
        client = dealer(context, bus, receives=10)
        client.send_multipart(replay_request(0))
        until(lambda: bus.counts().replies.batches > 10)
        client.close(0)
        until(lambda: bus.counts().replies.gone == 1)


def test_a_client_that_takes_nothing_is_given_up(context: Sockets) -> None:
    """After ``replay_stall_s`` without progress a replay is dropped and counted."""
    with Publisher(TCP, replay_endpoint=TCP, replay_stall_s=0.2) as bus:
        for seq in range(3000):
            bus.forward(b"kv", seq, bytes(4000))
        sent(bus, 3000)
        client = dealer(context, bus, receives=10)
        client.send_multipart(replay_request(0))
        until(lambda: bus.counts().replies.stalled == 1)
        bus.close(0)


# ---- forwarding --------------------------------------------------------------------------------------------


def test_forwarding_keeps_topics_numbers_and_bytes(context: Sockets) -> None:
    """What is forwarded comes out as it was, holes included, live and in the replay."""
    batches = [(b"a", 5, b"one"), (b"", 6, b""), (b"b", 9, b"not even msgpack")]
    with Publisher(TCP, replay_endpoint=TCP, topic="unused") as bus:
        sub = subscriber(context, bus)
        for topic, seq, payload in batches:
            bus.forward(topic, seq, payload)
        got = [live(sub) for _ in batches]
        assert [(one.topic, one.seq, one.payload) for one in got] == batches
        items, info = replay(context, bus)
        assert [(item.topic, item.seq, item.payload) for item in items] == batches
        assert info is not None
        assert (info.first_seq, info.next_seq) == (5, 10)
        bus.publish(stored(1))
        assert live(sub).seq == 10


def test_a_forwarded_restart_is_a_new_run(context: Sockets) -> None:
    """When forwarded numbers go back, replays forget what was before and the incarnation is another."""
    with Publisher(TCP, replay_endpoint=TCP) as bus:
        for seq in range(290):
            bus.forward(b"kv", seq, b"old")
        sent(bus, 290)
        old = bus.info()
        for seq in range(3):
            bus.forward(b"kv", seq, b"new")
        sent(bus, 293)
        items, info = replay(context, bus)
        assert [(item.seq, item.payload) for item in items] == [(0, b"new"), (1, b"new"), (2, b"new")]
        assert info is not None
        assert (info.first_seq, info.next_seq) == (0, 3)
        assert info.incarnation != old.incarnation


@pytest.mark.parametrize("seq", [-1, HELLO_SEQ, 2**64])
def test_forwarding_refuses_numbers_no_batch_has(bus: Publisher, seq: int) -> None:
    """Reserved and impossible numbers are refused in the call."""
    with pytest.raises(KvbusError, match="number"):
        bus.forward(b"", seq, b"")


# ---- the end -----------------------------------------------------------------------------------------------


def test_closing_lets_every_byte_out(context: Sockets) -> None:
    """All that was published before closing arrives, though nothing was read until after."""
    bus = Publisher(TCP)
    sub = subscriber(context, bus)
    publish(bus, 5000)
    bus.close(20)
    assert bus.counts().published == 5000
    assert [live(sub).seq for _ in range(5000)] == list(range(5000))


def test_closing_finishes_a_running_replay(context: Sockets) -> None:
    """A replay that has begun is finished before the publisher is gone."""
    bus = Publisher(TCP, replay_endpoint=TCP)
    for seq in range(3000):
        bus.forward(b"kv", seq, bytes(4000))
    sent(bus, 3000)
    client = dealer(context, bus, receives=10)
    client.send_multipart(replay_request(0))
    until(lambda: bus.counts().replies.batches > 10)
    closing = threading.Thread(target=bus.close, args=(20,))
    closing.start()
    assert [item.seq for item in replayed(client)[0]] == list(range(3000))
    closing.join(20)
    assert not closing.is_alive()
    assert bus.counts().replies.served == 1


def test_closing_is_bounded_and_counts_what_is_left(
    context: Sockets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a subscriber that takes nothing, closing ends in time and every batch is published or counted."""
    bus = Publisher(f"ipc://{tmp_path}/kv", replay_endpoint=TCP, when_full="wait", hwm=10, max_queue_size=500)
    sub = connect(context, zmq.SUB, bus.endpoint, receives=10)
    assert bus.wait_for_subscriber(20)
    for seq in range(400):
        bus.forward(b"", seq, bytes(100_000))
    began = time.monotonic()
    bus.close(0.5)
    assert time.monotonic() - began < 10
    counts = bus.counts()
    assert counts.dropped["at_close"] > 0
    assert counts.published + counts.dropped["at_close"] == 400
    assert "were not sent" in caplog.text
    sub.close(0)


def test_closing_cuts_a_replay_that_takes_too_long(context: Sockets) -> None:
    """A replay client that takes nothing does not hold up the end, and is counted."""
    bus = Publisher(TCP, replay_endpoint=TCP)
    for seq in range(3000):
        bus.forward(b"kv", seq, bytes(4000))
    sent(bus, 3000)
    client = dealer(context, bus, receives=10)
    client.send_multipart(replay_request(0))
    until(lambda: bus.counts().replies.batches > 10)
    began = time.monotonic()
    bus.close(0.3)
    assert time.monotonic() - began < 10
    assert bus.counts().replies.cut_at_close == 1


def test_a_closed_publisher_says_so() -> None:
    """Closing twice is fine; publishing afterwards is an error with a next step; its threads are gone."""
    threads = threading.active_count()
    bus = Publisher(TCP, replay_endpoint=TCP)
    assert threading.active_count() == threads + 2
    bus.close()
    bus.close()
    assert threading.active_count() == threads
    with pytest.raises(KvbusError, match="is closed"):
        bus.publish(stored(1))
    with pytest.raises(KvbusError, match="is closed"):
        bus.forward(b"", 0, b"")
    assert bus.wait_for_subscriber(0) is False
    assert bus.info().next_seq == 0


def test_a_forgotten_publisher_ends_with_its_last_reference(context: Sockets) -> None:
    """Once nobody holds the publisher its threads end, its address is free, and nothing queued is lost."""
    threads = threading.active_count()
    bus = Publisher(TCP)
    endpoint, sub = bus.endpoint, subscriber(context, bus)
    publish(bus, 100)
    del bus
    gc.collect()
    assert threading.active_count() == threads
    assert [live(sub).seq for _ in range(100)] == list(range(100))
    Publisher(endpoint.replace("127.0.0.1", "*")).close()


def test_a_process_that_just_ends_sends_what_it_published(context: Sockets, tmp_path: Path) -> None:
    """At exit without close every batch still goes out."""
    endpoint = f"ipc://{tmp_path}/kv"
    script = (
        "from kvbus.publisher import Publisher\n"
        "from kvbus.events import BlockRemoved\n"
        f"bus = Publisher({endpoint!r})\n"
        "assert bus.wait_for_subscriber(20)\n"
        "for number in range(2000):\n"
        "    bus.publish([BlockRemoved([number])])\n"
    )
    sub = connect(context, zmq.SUB, endpoint)
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=60, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [live(sub).seq for _ in range(2000)] == list(range(2000))


def test_a_forked_child_cannot_publish(context: Sockets, bus: Publisher) -> None:
    """A fork has no threads to send with: publishing raises, closing does nothing, the parent goes on."""
    sub = subscriber(context, bus)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of exactly what is tried here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            bus.publish(stored(1))
        except KvbusError as error:
            bus.close()
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publish(bus, 3)
    assert [live(sub).seq for _ in range(3)] == [0, 1, 2]


def test_a_failed_sender_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    """When sending itself breaks, the next publish raises with the cause."""
    with Publisher("inproc://kv-fails", context=(context := zmq.Context())) as bus:
        # Terminating a context under a publisher is the one way to break its socket from outside.
        threading.Thread(target=context.term, daemon=True).start()
        until(lambda: "has stopped" in caplog.text)
        with pytest.raises(KvbusError, match="has failed"):
            bus.publish(stored(1))


def test_counts_are_plain_values(bus: Publisher) -> None:
    """The counts can be kept and written as JSON; later events do not change them."""
    before = bus.counts()
    publish(bus, 1)
    sent(bus, 1)
    assert before.published == 0
    assert msgspec.json.decode(msgspec.json.encode(bus.counts()))["published"] == 1


def test_the_log_names_nothing_on_a_good_day(bus: Publisher, caplog: pytest.LogCaptureFixture) -> None:
    """A publisher that works writes no warning."""
    with caplog.at_level(logging.INFO):
        publish(bus, 100)
        sent(bus, 100)
        bus.close()
    assert caplog.records == []
