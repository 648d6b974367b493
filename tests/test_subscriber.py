"""Reading engines over real sockets: what was published is what comes out, whatever happens on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from kvbus.capture import read_capture
from kvbus.endpoints import reader_endpoint
from kvbus.errors import ConfigError, EndpointError
from kvbus.events import AllBlocksCleared, BlockRemoved
from kvbus.feed import Feed, Notice
from kvbus.log import Entry, EpochBegan, Loss, Received, Standing
from kvbus.publisher import Publisher
from kvbus.sockets import open_at
from kvbus.subscriber import Subscriber
from tests.engine import Batch, Engine, Faults
from tests.sockets import KeepingContext, connect

PATIENCE_S = 30.0
TCP = "tcp://127.0.0.1:*"


@pytest.fixture(scope="module")
def batches(captures: Path) -> list[Batch]:
    """A real engine's stream."""
    records = read_capture(captures / "vllm032_gpu_int.frames")
    return [
        (topic, int.from_bytes(seq, "big"), payload) for topic, seq, payload in (r.frames for r in records)
    ]


def read(subscriber: Subscriber, until: Callable[[list[Entry]], bool]) -> tuple[list[Entry], list[Notice]]:
    """Poll until ``until`` likes what has come, or patience ends."""
    entries: list[Entry] = []
    notices: list[Notice] = []
    deadline = time.monotonic() + PATIENCE_S
    while not until(entries) and time.monotonic() < deadline:
        for item in subscriber.poll(0.05):
            if isinstance(item, Notice):
                notices.append(item)
            else:
                entries.append(item)
    return entries, notices


def meet(subscriber: Subscriber, publisher: Publisher) -> None:
    """Poll until the publisher has heard of us: libzmq subscribes anew only inside our socket's calls."""
    deadline = time.monotonic() + PATIENCE_S
    while not publisher.wait_for_subscriber(0.02):
        subscriber.poll(0)
        assert time.monotonic() < deadline


def received(entries: list[Entry]) -> list[Received]:
    return [entry for entry in entries if isinstance(entry, Received)]


def batches_up_to(count: int) -> Callable[[list[Entry]], bool]:
    return lambda entries: len(received(entries)) >= count


@pytest.mark.parametrize("topic_in_replay", [True, False])
def test_a_lossy_doubling_network_changes_nothing(batches: list[Batch], topic_in_replay: bool) -> None:
    """Lost messages are fetched from the replay socket, doubled ones counted: the stream is the engine's."""
    lost = frozenset(seq for _, seq, _ in batches if seq % 17 == 3)
    twice = frozenset(seq for _, seq, _ in batches if seq % 11 == 5)
    faults = Faults(drop=lost, double=twice, topic_in_replay=topic_in_replay)
    with Engine(batches, faults) as engine, Subscriber([Feed(engine.endpoint, engine.replay)]) as subscriber:
        entries, _ = read(subscriber, batches_up_to(len(batches)))
    assert [(e.source.topic, e.seq, e.payload) for e in received(entries)] == batches
    assert not [entry for entry in entries if isinstance(entry, Loss)]
    assert {entry.epoch for entry in received(entries)} == {0}


def test_numbers_that_nobody_has_are_exactly_one_loss(batches: list[Batch]) -> None:
    """Batches neither sent nor kept are one Loss with their range, and the rest is whole."""
    faults = Faults(skip=frozenset(range(100, 120)))
    with Engine(batches, faults) as engine, Subscriber([Feed(engine.endpoint, engine.replay)]) as subscriber:
        entries, _ = read(subscriber, batches_up_to(len(batches) - 20))
    losses = [entry for entry in entries if isinstance(entry, Loss)]
    assert [(loss.first_seq, loss.last_seq, loss.reason) for loss in losses] == [
        (100, 119, "absent_from_replay")
    ]
    assert [e.seq for e in received(entries)] == [*range(100), *range(120, len(batches))]


def test_a_restarted_engine_is_a_second_epoch(batches: list[Batch]) -> None:
    """The engine dies after 300 batches and counts from 0 again: two epochs, every batch in one of them."""
    with (
        Engine(batches, Faults(restart_at=300), pause_s=0.0005) as engine,
        Subscriber([Feed(engine.endpoint, engine.replay)]) as subscriber,
    ):
        entries, _ = read(subscriber, batches_up_to(len(batches)))
    assert [e.epoch for e in entries if isinstance(e, EpochBegan)] == [0, 1]
    assert [(e.epoch, e.seq) for e in received(entries)] == [
        *((0, seq) for seq in range(300)),
        *((1, seq) for seq in range(len(batches) - 300)),
    ]
    assert [e.payload for e in received(entries)] == [payload for _, _, payload in batches]


def test_a_replay_without_end_marker_proves_nothing(batches: list[Batch]) -> None:
    """A hole whose replays never end is lost as replay_incomplete: unknown, not absent."""
    faults = Faults(skip=frozenset({50}), end_marker=False)
    feeds = [Feed("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")]
    with Engine(batches[:100], faults) as engine:
        feeds = [Feed(engine.endpoint, engine.replay)]
        with Subscriber(feeds, replay_timeout_s=0.3) as subscriber:
            entries, _ = read(subscriber, batches_up_to(99))
    losses = [entry for entry in entries if isinstance(entry, Loss)]
    assert [(loss.first_seq, loss.last_seq, loss.reason) for loss in losses] == [
        (50, 50, "replay_incomplete")
    ]


def test_a_late_joiner_gets_all_that_the_replay_still_has(batches: list[Batch]) -> None:
    """Joining after the last message, the whole stream still comes, from the replay, and says so."""
    with Engine(batches) as engine:
        with Subscriber([Feed(engine.endpoint)]) as first:
            read(first, batches_up_to(len(batches)))
        assert engine.played.wait(PATIENCE_S)
        with Subscriber([Feed(engine.endpoint, engine.replay)]) as late:
            entries, notices = read(late, batches_up_to(len(batches)))
    assert [(e.seq, e.payload) for e in received(entries)] == [(seq, payload) for _, seq, payload in batches]
    assert all(entry.replayed for entry in received(entries))
    assert "disconnected" not in {notice.kind for notice in notices}


def test_a_stream_begins_with_what_its_publisher_says_of_itself() -> None:
    """Who comes late, while batches fly, hears first who speaks and what fits into its tier."""
    with Publisher(TCP, replay_endpoint=TCP, capacity={"CPU": 300}) as publisher:
        over = threading.Event()

        def speak() -> None:
            while not over.wait(0.0005):
                publisher.publish([AllBlocksCleared()])

        speaker = threading.Thread(target=speak)
        speaker.start()
        try:
            for _ in range(5):
                with Subscriber([Feed(publisher.endpoint, publisher.replay_endpoint)]) as late:
                    entries, _ = read(late, batches_up_to(1))
                assert isinstance(entries[0], EpochBegan)
                said = entries[0].incarnation, entries[0].capacity
                assert said == (publisher.info().incarnation, {"CPU": 300})
        finally:
            over.set()
            speaker.join()


def test_a_replay_socket_that_never_answers_holds_nobody_up_for_long() -> None:
    """The stream is read all the same, without what its publisher would have said."""
    with Publisher(TCP) as publisher, zmq.Context() as context:
        silent = context.socket(zmq.ROUTER)
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        try:
            with Subscriber([Feed(publisher.endpoint, f"tcp://127.0.0.1:{port}")], origin=None) as reader:
                meet(reader, publisher)
                publisher.publish([AllBlocksCleared()])
                entries, _ = read(reader, batches_up_to(1))
        finally:
            silent.close(0)
    assert len(received(entries)) == 1


def silent_replay(context: zmq.Context[zmq.Socket[bytes]]) -> str:
    """The address of a replay socket that answers nothing."""
    return f"tcp://127.0.0.1:{context.socket(zmq.ROUTER).bind_to_random_port('tcp://127.0.0.1')}"


def test_what_waits_for_a_hello_is_read_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves before the answer loses nothing of what has come."""
    monkeypatch.setattr("kvbus.link.HELLO_TIMEOUT_NS", 10**12)
    with KeepingContext() as context, Publisher(TCP) as publisher:
        feed = Feed(publisher.endpoint, silent_replay(context), source="engine")
        with Subscriber([feed], origin=None) as reader:
            meet(reader, publisher)
            for _ in range(3):
                publisher.publish([AllBlocksCleared()])
            deadline = time.monotonic() + PATIENCE_S
            heard: list[Received] = []
            while len(heard) < 3 and time.monotonic() < deadline:
                assert not received([item for item in reader.poll(0.01) if not isinstance(item, Notice)])
                assert reader.holding == {"engine"}
                heard += received(reader.finish())
        context.destroy(linger=0)
    assert [one.seq for one in heard] == [0, 1, 2]


def test_those_who_come_and_go_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a hello is the first one's alone: connections that come later do not begin it again."""
    monkeypatch.setattr("kvbus.link.HELLO_TIMEOUT_NS", 200_000_000)
    with KeepingContext() as context:
        feed = Feed(TCP, silent_replay(context), bind=True)
        with Subscriber([feed], origin=None) as reader:
            (endpoint,) = reader.endpoints
            entries: list[Entry] = []
            with Publisher(endpoint) as publisher:
                deadline = time.monotonic() + PATIENCE_S
                while not received(entries) and time.monotonic() < deadline:
                    publisher.publish([AllBlocksCleared()])
                    passing = connect(context, zmq.PUB, endpoint)
                    for item in reader.poll(0.05):
                        entries += [] if isinstance(item, Notice) else [item]
                    passing.close(0)
        context.destroy(linger=0)
    assert received(entries)


def test_standings_are_continued_without_a_hole_or_a_double(batches: list[Batch]) -> None:
    """A second subscriber that is told where the first one stood delivers exactly the rest."""
    with Engine(batches) as engine:
        feed = Feed(engine.endpoint, engine.replay)
        with Subscriber([feed]) as first:
            entries, _ = read(first, batches_up_to(200))
        done = received(entries)[:200]
        last = done[-1]
        standing = Standing(0, last.seq + 1, 0.0, "", {last.seq: last.payload})
        with Subscriber([feed], standings={last.source: standing}) as second:
            rest, _ = read(second, batches_up_to(len(batches) - 200))
    assert [e.seq for e in received(rest)] == list(range(200, len(batches)))


def test_engines_that_connect_are_told_apart_on_one_bound_socket() -> None:
    """Two publishers of the same topic and rank that connect to us are two instances, each in order."""
    with Subscriber([Feed("tcp://127.0.0.1:*", bind=True)]) as subscriber:
        address = subscriber.endpoints[0]
        with Publisher(address, topic="kv") as one, Publisher(address, topic="kv") as two:
            meet(subscriber, one)
            meet(subscriber, two)
            for number in range(20):
                for publisher in (one, two):
                    publisher.publish([BlockRemoved(block_hashes=[number])])
            entries, _ = read(subscriber, batches_up_to(40))
    by_instance: dict[int, list[int]] = {}
    for entry in received(entries):
        by_instance.setdefault(entry.source.instance, []).append(entry.seq)
    assert by_instance == {0: list(range(20)), 1: list(range(20))}


def test_an_engine_that_comes_back_is_read_again() -> None:
    """The subscriber outlives its publisher: the second process on the same port is the next epoch."""
    with Publisher("tcp://*:0", replay_endpoint="tcp://*:0", topic="kv") as first:
        port = first.endpoint.rpartition(":")[2]
        replay_port = str(first.replay_endpoint).rpartition(":")[2]
        feed = Feed(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}")
        subscriber = Subscriber([feed])
        meet(subscriber, first)
        for _ in range(5):
            first.publish([BlockRemoved(block_hashes=[1])])
        before, _ = read(subscriber, batches_up_to(5))
    with (
        Publisher(f"tcp://*:{port}", replay_endpoint=f"tcp://*:{replay_port}", topic="kv") as second,
        subscriber,
    ):
        meet(subscriber, second)
        for _ in range(3):
            second.publish([BlockRemoved(block_hashes=[2])])
        after, _ = read(subscriber, batches_up_to(3))
    assert [(e.epoch, e.seq) for e in received(before)] == [(0, seq) for seq in range(5)]
    assert [(e.epoch, e.seq) for e in received(after)] == [(1, seq) for seq in range(3)]


def test_silence_is_said() -> None:
    """A feed that hears nothing for the idle time says so, again and again."""
    with (
        Publisher("tcp://*:0") as quiet,
        Subscriber([Feed(quiet.endpoint.replace("0.0.0.0", "127.0.0.1"))], idle_s=0.05) as subscriber,
    ):
        notices: list[Notice] = []
        deadline = time.monotonic() + PATIENCE_S
        while [n.kind for n in notices].count("idle") < 2 and time.monotonic() < deadline:
            notices += [item for item in subscriber.poll(0.02) if isinstance(item, Notice)]
    assert [n.kind for n in notices].count("idle") >= 2


def test_what_is_no_event_message_is_reported_and_passed_over() -> None:
    """A message of the wrong shape is a notice; the stream around it is untouched."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pub = context.socket(zmq.XPUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    try:
        with Subscriber([Feed(f"tcp://127.0.0.1:{port}")]) as subscriber:
            deadline = time.monotonic() + PATIENCE_S
            while not pub.poll(10) and time.monotonic() < deadline:
                subscriber.poll(0)
            pub.send_multipart([b"one frame"])
            pub.send_multipart([b"kv", (0).to_bytes(8, "big"), bytes.fromhex("93cb3ff80000000000009000")])
            entries, notices = read(subscriber, batches_up_to(1))
            assert subscriber.counts()["malformed"] == 1
    finally:
        pub.close(0)
        context.term()
    assert [n.kind for n in notices if n.kind == "malformed"] == ["malformed"]
    assert [e.seq for e in received(entries)] == [0]


@pytest.mark.parametrize(
    "address", ["tcp://*:5557", "nonsense", "udp://127.0.0.1:5", "tcp://127.0.0.1:99999"]
)
def test_an_address_that_cannot_be_read_is_refused(address: str) -> None:
    """A wildcard, an unknown scheme or an impossible port is an error that says the next step."""
    with pytest.raises(EndpointError) as refused:
        Subscriber([Feed(address)])
    assert refused.value.next_step


def test_two_feeds_need_two_names() -> None:
    """Entries name their feed, so two feeds of one name are refused."""
    with pytest.raises(ConfigError):
        Subscriber([Feed("tcp://127.0.0.1:1", source="a"), Feed("tcp://127.0.0.1:2", source="a")])


def test_publishers_without_a_file_descriptor_are_read_on_a_bound_socket() -> None:
    """inproc cannot tell connections apart; it is read all the same."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pub = context.socket(zmq.XPUB)
    try:
        with Subscriber([Feed("inproc://bound", bind=True)], context=context) as subscriber:
            pub.connect("inproc://bound")
            deadline = time.monotonic() + PATIENCE_S
            while not pub.poll(10) and time.monotonic() < deadline:
                subscriber.poll(0)
            pub.send_multipart([b"kv", (0).to_bytes(8, "big"), bytes.fromhex("93cb3ff80000000000009000")])
            entries, _ = read(subscriber, batches_up_to(1))
    finally:
        pub.close(0)
        context.term()
    assert [e.seq for e in received(entries)] == [0]


def test_a_host_that_is_gone_without_a_word_is_noticed() -> None:
    """A tcp connection that says nothing is probed within minutes, not after the system's two hours."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sub = context.socket(zmq.SUB)
    try:
        open_at(sub, reader_endpoint("tcp://127.0.0.1:1"))
        assert sub.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert 0 < int(sub.getsockopt(zmq.TCP_KEEPALIVE_IDLE)) <= 60
        assert (
            0
            < int(sub.getsockopt(zmq.TCP_KEEPALIVE_INTVL)) * int(sub.getsockopt(zmq.TCP_KEEPALIVE_CNT))
            <= 60
        )
    finally:
        sub.close(0)
        context.term()


def test_malformed_messages_are_no_flood_of_notices() -> None:
    """A thousand messages that are none are told some ten times, and counted each."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pub = context.socket(zmq.XPUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    try:
        with Subscriber([Feed(f"tcp://127.0.0.1:{port}")]) as subscriber:
            deadline = time.monotonic() + PATIENCE_S
            while not pub.poll(10) and time.monotonic() < deadline:
                subscriber.poll(0)
            for _ in range(1000):
                pub.send_multipart([b"one frame"])
            notices: list[Notice] = []
            while subscriber.counts()["malformed"] < 1000 and time.monotonic() < deadline:
                notices += [item for item in subscriber.poll(0.02) if isinstance(item, Notice)]
            assert subscriber.counts()["malformed"] == 1000
    finally:
        pub.close(0)
        context.term()
    assert 1 <= sum(notice.kind == "malformed" for notice in notices) <= 10


def test_more_addresses_than_sockets_is_an_error_with_a_next_step() -> None:
    """When the system gives no more sockets, the error says for which feed, and what to do."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 5)
    feeds = [Feed(f"tcp://127.0.0.1:{port}") for port in range(6000, 6020)]
    try:
        with pytest.raises(EndpointError, match="of 20"):
            Subscriber(feeds, context=context)
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("kind", ["tcp://127.0.0.1:*", "ipc"])
def test_a_message_that_is_too_large_costs_itself(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ ends the connection and makes no other; the feed is heard again all the same, and what it was
    deaf to is asked for, or declared."""
    monkeypatch.setattr("kvbus.live_socket.MESSAGE_BYTES_MAX", 10_000)
    monkeypatch.setattr("kvbus.link.MESSAGE_BYTES_MAX", 10_000)
    at = [f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/r"] if kind == "ipc" else [kind, kind]
    with (
        Publisher(at[0], replay_endpoint=at[1]) as publisher,
        Subscriber([Feed(publisher.endpoint, publisher.replay_endpoint)], replay_timeout_s=0.3) as subscriber,
    ):
        meet(subscriber, publisher)
        publisher.forward(b"", 0, b"x")
        entries, _ = read(subscriber, batches_up_to(1))
        publisher.forward(b"", 1, bytes(10_001))
        publisher.forward(b"", 2, b"y")
        rest, notices = read(subscriber, lambda _: subscriber.counts()["reopened"] > 0)
        meet(subscriber, publisher)
        publisher.forward(b"", 3, b"z")
        more, _ = read(subscriber, batches_up_to(1))
    assert [one.seq for one in received(entries + rest + more)] == [0, 3]
    losses = [(one.first_seq, one.last_seq) for one in [*rest, *more] if isinstance(one, Loss)]
    assert losses == [(1, 2)]
    assert [one.kind for one in notices if one.kind == "disconnected"] == ["disconnected"]


def test_who_holds_something_back_is_named(tmp_path: Path) -> None:
    """A feed that speaks behind a hole is not a silent one; one that nobody answers at is."""
    feeds = [Feed(f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/no-replay"), Feed(f"ipc://{tmp_path}/nobody")]
    with Publisher(feeds[0].endpoint) as publisher, Subscriber(feeds) as subscriber:
        meet(subscriber, publisher)
        assert subscriber.holding <= {feeds[0].name}
        publisher.forward(b"", 5, b"x")
        read(subscriber, lambda _: subscriber.waiting > 0)
        assert subscriber.holding == {feeds[0].name}
        entries, _ = read(subscriber, batches_up_to(1))
        assert received(entries)
        assert subscriber.holding == set()
