"""vLLM's own publisher, as released, read through ``kvbus.wire`` and ``kvbus.dialects``; ours beside it."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbus.dialects import DialectReader, encode
from kvbus.endpoints import binds, rank_endpoint
from kvbus.errors import EndpointError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, token_list, tokens
from kvbus.publisher import Publisher
from kvbus.wire import hello_request, replay_request, seq_bytes
from tests.peers.conftest import MakePublisher
from tests.sockets import PATIENCE_MS, Sockets, connect, live, replayed

pytestmark = pytest.mark.peer


def their_events(module: ModuleType, number: int) -> list[Any]:
    stored = module.BlockStored(
        block_hashes=[number, 2**64 - 1],
        parent_block_hash=None,
        token_ids=[1, 2, 3, 4],
        block_size=2,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    removed = module.BlockRemoved(block_hashes=[number], medium="CPU", ownership="fs")
    return [stored, removed, module.AllBlocksCleared()]


def our_events(number: int) -> list[Event]:
    stored = BlockStored(
        [number, 2**64 - 1],
        token_ids=tokens([1, 2, 3, 4]),
        block_size=2,
        medium="GPU",
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return [stored, BlockRemoved([number], medium="CPU", ownership="fs"), AllBlocksCleared()]


def test_their_live_stream_reads_as_events(
    kv_events: ModuleType, vllm_publisher: MakePublisher, context: Sockets
) -> None:
    """What vLLM's publisher sends is read as the events that were given to it."""
    theirs = vllm_publisher(data_parallel_rank=2)
    sub = connect(context, zmq.SUB, theirs.get_publisher_config().endpoint)
    time.sleep(0.5)  # a PUB socket does not tell when a subscriber has come
    for number in range(50):
        theirs.publish(kv_events.KVEventBatch(ts=1000.0 + number, events=their_events(kv_events, number)))
    reader = DialectReader()
    first = live(sub)
    got = [first, *(live(sub) for _ in range(49 - first.seq))]
    assert [one.seq for one in got] == list(range(first.seq, 50))
    for one in got:
        assert one.topic == b"kv"
        batch = reader.read(one.payload)
        assert batch == EventBatch(1000.0 + one.seq, our_events(one.seq), 2)
    assert token_list(our_events(0)[0].token_ids) == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_their_replay_reads_to_its_end(
    kv_events: ModuleType, vllm_publisher: MakePublisher, context: Sockets
) -> None:
    """A replay of vLLM's is its batches and an end marker that says nothing about the publisher."""
    theirs = vllm_publisher(buffer_steps=20)
    for number in range(30):
        theirs.publish(kv_events.KVEventBatch(ts=1.0, events=their_events(kv_events, number)))
    client = connect(context, zmq.DEALER, theirs.get_publisher_config().replay_endpoint)
    deadline = time.monotonic() + 20
    seqs: list[int] = []
    while seqs != list(range(10, 30)) and time.monotonic() < deadline:  # until its thread has sent them all
        client.send_multipart(replay_request(0))
        items, info = replayed(client)
        seqs = [item.seq for item in items]
        assert info is None
        assert {item.topic for item in items} <= {b"kv"}
    assert seqs == list(range(10, 30))


def test_hello_does_not_disturb_them(vllm_publisher: MakePublisher, context: Sockets) -> None:
    """vLLM's publisher answers hello with its bare end marker, and serves the next request as ever."""
    theirs = vllm_publisher()
    client = connect(context, zmq.DEALER, theirs.get_publisher_config().replay_endpoint)
    for _ in range(3):
        client.send_multipart(hello_request())
        assert replayed(client) == ([], None)


def test_our_batches_are_theirs_byte_for_byte(kv_events: ModuleType) -> None:
    """One batch has one encoding, whichever of the two publishes it."""
    theirs = kv_events.KVEventBatch(ts=12.5, events=their_events(kv_events, 7), data_parallel_rank=1)
    assert encode(our_events(7), ts=12.5, rank=1) == msgspec.msgpack.encode(theirs)


def test_our_stream_decodes_with_their_classes(kv_events: ModuleType, context: Sockets) -> None:
    """vLLM's example subscriber protocol (SUB, and REQ for replay) reads our publisher with vLLM's own
    classes.

    The protocol, in our words: receive ``[topic, seq, payload]``; when numbers are missing send the first
    missing one on a REQ socket and read replies until the timeout or an empty payload.
    """
    decoder = msgspec.msgpack.Decoder(type=kv_events.KVEventBatch)
    here = "tcp://127.0.0.1:*"
    with Publisher(here, replay_endpoint=here, topic="kv@pod@model", data_parallel_rank=0) as bus:
        assert bus.replay_endpoint is not None
        sub = connect(context, zmq.SUB, bus.endpoint)
        req = connect(context, zmq.REQ, bus.replay_endpoint)
        assert bus.wait_for_subscriber(20)
        for number in range(3):
            bus.publish(our_events(number), ts=1.0)
        for number in range(3):
            topic, seq, payload = sub.recv_multipart()
            assert topic == b"kv@pod@model"
            assert int.from_bytes(seq, "big") == number
            batch = decoder.decode(payload)
            assert (batch.ts, batch.data_parallel_rank) == (1.0, 0)
            assert batch.events == their_events(kv_events, number)
        for missing in (1, 2):
            req.send(seq_bytes(missing))
            assert req.poll(PATIENCE_MS)
            *_, seq, payload = req.recv_multipart()
            assert int.from_bytes(seq, "big", signed=True) == missing
            assert decoder.decode(payload).events == their_events(kv_events, missing)
        req.send(seq_bytes(3))
        *_, seq, payload = req.recv_multipart()
        assert (seq, payload) == (kv_events.ZmqEventPublisher.END_SEQ, b"")


# The fixture is one module for the whole session: examples cannot disturb each other through it.
SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
ENDPOINTS = st.one_of(
    st.builds(
        "tcp://{}:{}".format,
        st.sampled_from(["*", "127.0.0.1", "0.0.0.0", "[::]", "host"]),
        st.integers(0, 65535),
    ),
    st.sampled_from(["inproc://kv", "inproc://kv:1", "ipc:///run/kv", "ipc:///run/tcp:1"]),
)


@SHARED_FIXTURE
@given(ENDPOINTS, st.integers(0, 64))
def test_our_endpoint_rules_are_theirs(kv_events: ModuleType, endpoint: str, rank: int) -> None:
    """For every address both accept a rank binds or connects to the same place; ipc ranks are ours alone."""
    theirs = kv_events.ZmqEventPublisher
    try:
        ours = rank_endpoint(endpoint, rank)
    except EndpointError:
        assert int(endpoint.rpartition(":")[2]) + rank > 65535
        return
    assert binds(ours) is theirs._is_bind_endpoint(ours)
    if endpoint.startswith("ipc:") and rank > 0:
        assert ours == f"{endpoint}_dp{rank}"
    else:
        assert ours == theirs.offset_endpoint_port(endpoint, rank)
