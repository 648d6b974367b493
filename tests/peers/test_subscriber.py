"""Our subscriber reads vLLM's own publisher: live, late, lossy and restarted."""

from __future__ import annotations

import contextlib
import socket
import time
from types import ModuleType
from typing import Any

import pytest

from kvbus.feed import Feed, Notice
from kvbus.log import Entry, EpochBegan, Loss, Received
from kvbus.subscriber import Subscriber
from tests.peers.conftest import MakePublisher
from tests.peers.test_vllm_publisher import their_events

pytestmark = pytest.mark.peer
PATIENCE_S = 30.0


def heard(subscriber: Subscriber, batches: int) -> list[Entry]:
    """Entries, until so many batches are among them."""
    entries: list[Entry] = []
    deadline = time.monotonic() + PATIENCE_S
    while sum(isinstance(entry, Received) for entry in entries) < batches:
        assert time.monotonic() < deadline, entries
        entries += [item for item in subscriber.poll(0.05) if not isinstance(item, Notice)]
    return entries


def places(entries: list[Entry]) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.seq) for entry in entries if isinstance(entry, Received)]


def reachable(publisher: Any) -> tuple[str, str]:
    bound = publisher.get_publisher_config()
    return bound.endpoint, bound.replay_endpoint


def wait_until_free(port: int) -> None:
    """libzmq lets go of an address a moment after its socket was closed."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def publish(kv_events: ModuleType, publisher: Any, numbers: range) -> None:
    for number in numbers:
        batch = kv_events.KVEventBatch(ts=time.time(), events=their_events(kv_events, number))
        publisher.publish(batch)


def test_what_was_said_before_we_came_is_fetched(
    kv_events: ModuleType, vllm_publisher: MakePublisher
) -> None:
    """A late joiner gets vLLM's stream from its beginning, and the hello it does not know does no harm."""
    publisher = vllm_publisher()
    publish(kv_events, publisher, range(50))
    endpoint, replay = reachable(publisher)
    with Subscriber([Feed(endpoint, replay)]) as subscriber:
        before = heard(subscriber, 50)
        publish(kv_events, publisher, range(50, 80))
        after = heard(subscriber, 30)
    assert places(before + after) == [(0, seq) for seq in range(80)]
    assert not [entry for entry in before + after if isinstance(entry, Loss)]


def test_a_small_buffer_is_too_old_to_tell(kv_events: ModuleType, vllm_publisher: MakePublisher) -> None:
    """What fell out of vLLM's buffer is a Loss with the reason too_old, and the rest is whole."""
    publisher = vllm_publisher(buffer_steps=10)
    publish(kv_events, publisher, range(50))
    endpoint, replay = reachable(publisher)
    time.sleep(0.5)  # its thread must have taken all, or the buffer does not end where this test says
    with Subscriber([Feed(endpoint, replay)]) as subscriber:
        entries: list[Entry] = []
        deadline = time.monotonic() + PATIENCE_S
        while not places(entries) and time.monotonic() < deadline:
            publish(kv_events, publisher, range(50, 51))
            entries += [item for item in subscriber.poll(0.2) if not isinstance(item, Notice)]
    losses = [entry for entry in entries if isinstance(entry, Loss)]
    assert [loss.reason for loss in losses] == ["too_old"]
    assert losses[0].first_seq == 0
    assert places(entries)[0] == (0, losses[0].last_seq + 1)


def test_another_process_on_the_same_address_is_another_epoch(
    kv_events: ModuleType, vllm_publisher: MakePublisher
) -> None:
    """vLLM says nothing of a restart; the numbers, the clock and the replay do."""
    first = vllm_publisher()
    endpoint, replay = reachable(first)
    publish(kv_events, first, range(20))
    with Subscriber([Feed(endpoint, replay)]) as subscriber:
        before = heard(subscriber, 20)
        first.shutdown()
        ports = [address.rpartition(":")[2] for address in (endpoint, replay)]
        for port in ports:
            wait_until_free(int(port))
        second = vllm_publisher(endpoint=f"tcp://*:{ports[0]}", replay_endpoint=f"tcp://*:{ports[1]}")
        publish(kv_events, second, range(7))
        after = heard(subscriber, 7)
    assert places(before) == [(0, seq) for seq in range(20)]
    assert places(after) == [(1, seq) for seq in range(7)]
    assert [entry.epoch for entry in before + after if isinstance(entry, EpochBegan)] == [0, 1]
