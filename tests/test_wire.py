"""The frames, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.capture import read_capture
from kvbus.wire import (
    END_SEQ,
    HELLO_SEQ,
    INFO_MARK,
    Live,
    Malformed,
    PublisherInfo,
    ReplayEnd,
    ReplayItem,
    ReplayRequest,
    end_frames,
    hello_request,
    live_frames,
    read_live,
    read_reply,
    read_request,
    replay_request,
    reply_frames,
    seq_bytes,
)

SEQS = st.integers(0, HELLO_SEQ - 1)
TOPICS = st.binary(max_size=20)
PAYLOADS = st.binary(max_size=60)
INFOS = st.builds(
    lambda who, a, b, none, fits: PublisherInfo(who, None if none else min(a, b), max(a, b), fits),
    st.text("0123456789abcdef", min_size=32, max_size=32),
    SEQS,
    SEQS,
    st.booleans(),
    st.dictionaries(st.sampled_from(["GPU", "CPU", "STORAGE"]), st.integers(1, 1 << 40)),
)
FRAMES = st.lists(st.binary(max_size=9) | st.just(b"\xff" * 8), max_size=6)


@given(TOPICS, SEQS, PAYLOADS)
def test_live_message_reads_as_it_was_written(topic: bytes, seq: int, payload: bytes) -> None:
    """A live message is topic, number in 8 big-endian bytes, payload."""
    frames = live_frames(topic, seq, payload)
    assert frames == [topic, seq.to_bytes(8, "big"), payload]
    assert read_live(frames) == Live(topic, seq, payload)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"only one"],
        [bytes(8), b"payload"],
        [b"", b"", bytes(8), b"payload"],
        [b"t", bytes(7), b"payload"],
        [b"t", bytes(9), b"payload"],
        [b"t", b"\xff" * 8, b""],
        [b"t", b"\xff" * 7 + b"\xfe", b"payload"],
    ],
)
def test_what_is_no_live_message_is_a_value_that_says_why(frames: list[bytes]) -> None:
    """Too few or many frames, a number of other than 8 bytes or a reserved one: Malformed, frames kept."""
    read = read_live(frames)
    assert isinstance(read, Malformed)
    assert read.frames == frames
    assert read.why


@given(FRAMES)
def test_no_frames_whatever_raise(frames: list[bytes]) -> None:
    """Reading never raises, and gives batches only real numbers."""
    live, reply, request = read_live(frames), read_reply(frames), read_request(frames)
    assert not isinstance(live, Live) or live.seq < HELLO_SEQ
    assert not isinstance(reply, ReplayItem) or reply.seq < HELLO_SEQ
    assert not isinstance(request, ReplayRequest) or request.route[0] == frames[0]


@given(TOPICS, SEQS, PAYLOADS, st.booleans(), st.sampled_from([(), (b"",)]))
def test_reply_reads_the_same_in_every_framing(
    topic: bytes, seq: int, payload: bytes, topic_frame: bool, route: tuple[bytes, ...]
) -> None:
    """A replayed batch is found in the last two frames, with or without topic and delimiter."""
    read = read_reply(reply_frames(topic, seq, payload, route=route, topic_frame=topic_frame))
    assert isinstance(read, ReplayItem)
    assert (read.seq, read.payload) == (seq, payload)
    assert read.topic == (topic if topic_frame else b"")
    assert topic_frame or not read.topic_said
    if topic_frame and route:
        assert read.topic_said


@given(INFOS, st.sampled_from([(), (b"",)]))
def test_end_marker_says_who_the_publisher_is(info: PublisherInfo, route: tuple[bytes, ...]) -> None:
    """A kvbus end marker carries the info, and is one to those who only look at the last two frames."""
    frames = end_frames(info, route=route)
    assert frames[-2:] == [seq_bytes(END_SEQ), b""]
    assert read_reply(frames) == ReplayEnd(info)


def test_end_marker_of_an_engine_has_no_info() -> None:
    """Neither framing of vLLM's end marker says anything about the publisher."""
    assert read_reply([b"", b"", b"\xff" * 8, b""]) == ReplayEnd(None)
    assert read_reply([b"", b"\xff" * 8, b""]) == ReplayEnd(None)
    assert read_reply([b"\xff" * 8, b""]) == ReplayEnd(None)
    assert end_frames(None) == [b"", b"", b"\xff" * 8, b""]
    assert end_frames(PublisherInfo("ab", 0, 1), topic_frame=False) == [b"", b"\xff" * 8, b""]


@pytest.mark.parametrize(
    "said",
    [
        b"some topic",
        b"kvbus/2 {}",
        INFO_MARK,
        INFO_MARK + b"{",
        INFO_MARK + b"\xff\xfe",
        INFO_MARK + b'{"incarnation":"","first_seq":0,"next_seq":1}',
        INFO_MARK + b'{"incarnation":"a","first_seq":-1,"next_seq":1}',
        INFO_MARK + b'{"incarnation":"a","first_seq":2,"next_seq":1}',
        INFO_MARK + b'{"incarnation":"a","first_seq":0,"next_seq":18446744073709551615}',
        INFO_MARK + b"[" * 5000,
        INFO_MARK + b'{"z":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_info_nobody_can_read_leaves_an_end_marker(said: bytes) -> None:
    """A damaged or future info never turns an end marker into something else."""
    assert read_reply([b"", said, b"\xff" * 8, b""]) == ReplayEnd(None)


def test_info_may_grow() -> None:
    """Keys of a later kvbus are ignored."""
    said = INFO_MARK + b'{"incarnation":"a","first_seq":null,"next_seq":7,"heartbeat_s":5}'
    assert read_reply([b"", said, b"\xff" * 8, b""]) == ReplayEnd(PublisherInfo("a", None, 7))


@pytest.mark.parametrize(
    ("first_seq", "start_seq", "too_old"),
    [(10, 9, True), (10, 10, False), (10, 15, False), (None, 19, True), (None, 20, False), (0, 0, False)],
)
def test_too_old_is_what_a_replay_no_longer_has(first_seq: int | None, start_seq: int, too_old: bool) -> None:
    """Asking for less than the first number still held is too old; asking past the end never is."""
    assert PublisherInfo("a", first_seq, 20).too_old(start_seq) is too_old


@given(st.integers(0, END_SEQ), st.binary(min_size=1, max_size=8))
def test_router_reads_what_clients_ask(start_seq: int, identity: bytes) -> None:
    """DEALER with and without delimiter, REQ, and one behind a proxy say the same, each with its route."""
    for envelope in ([b""], [], [b"hop", b""]):
        request = read_request([identity, *envelope, seq_bytes(start_seq)])
        assert request == ReplayRequest((identity, *envelope), start_seq)
    assert read_request([identity, *replay_request(start_seq)]) == ReplayRequest((identity, b""), start_seq)


def test_hello_is_a_request_that_no_batch_answers() -> None:
    """Hello asks from a number above every batch's, in the ordinary form."""
    assert hello_request() == [b"", b"\xff" * 7 + b"\xfe"]
    assert read_request([b"id", *hello_request()]) == ReplayRequest((b"id", b""), HELLO_SEQ)


@pytest.mark.parametrize(
    "frames",
    [[], [b"id"], [b"id", b"", b"123"], [b"id", b"", b""], [b"id", b"x", bytes(8)], [b"id", b"snap"]],
)
def test_requests_that_are_none_are_not_answered(frames: list[bytes]) -> None:
    """What has no 8-byte number behind an identity is Malformed."""
    assert isinstance(read_request(frames), Malformed)


@pytest.mark.parametrize("seq", [-1, 2**64])
def test_a_number_that_does_not_fit_is_refused(seq: int) -> None:
    """A sequence number has 8 unsigned bytes."""
    with pytest.raises(ValueError, match="8 unsigned bytes"):
        seq_bytes(seq)


@pytest.mark.parametrize("name", ["vllm032_gpu_int", "vllm011_gpu_int", "sglang0523_radix"])
def test_real_live_streams_read_whole(captures: Path, name: str) -> None:
    """Every message of a real engine's stream is three frames with rising numbers."""
    read = [read_live(record.frames) for record in read_capture(captures / f"{name}.frames")]
    assert len(read) > 100
    seqs = [one.seq for one in read if isinstance(one, Live)]
    assert seqs == list(range(len(read)))


@pytest.mark.parametrize(
    ("name", "topic_said"),
    [
        ("vllm032_gpu_int.replay_DEALER_0", True),
        ("vllm011_gpu_int.replay_DEALER_0", False),
        ("sglang0523_radix.replay_DEALER_0", True),
    ],
)
def test_real_replays_read_whole(captures: Path, name: str, topic_said: bool) -> None:
    """A real replay, of the old or the new framing, is its batches and then one end marker without info."""
    path = captures / f"{name}.frames"
    if not path.exists():
        pytest.skip("the replay exchanges lie beside the checkout only")
    read = [read_reply(record.frames) for record in read_capture(path)]
    assert read[-1] == ReplayEnd(None)
    items = [one for one in read if isinstance(one, ReplayItem)]
    assert len(items) == len(read) - 1 > 100
    assert {one.topic_said for one in items} == {topic_said}
