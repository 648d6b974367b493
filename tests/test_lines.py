"""JSON lines: what they look like, that nothing is lost on the way, and that a part is never taken for a
whole.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from kvbus.errors import CaptureError
from kvbus.events import BlockStored, EventBatch, Undecodable, tokens
from kvbus.lines import encode_line, lines_of, read_entries
from kvbus.log import Entry, Received
from tests.logs import BYTES, A, everything, histories, of_capture, of_payload, received, removed, stored


def through(entries: list[Entry], *, payload: bool) -> list[Entry]:
    text = b"".join(encode_line(entry, payload=payload) for entry in entries)
    return list(read_entries(text.splitlines(keepends=True), name="test"))


def shown(entry: Entry) -> list[dict[str, object]]:
    return [json.loads(line) for line in encode_line(entry).splitlines()]


def test_a_batch_is_a_line_an_event() -> None:
    """Each event of a batch is a line that says where it stands, what it is, and its canonical hashes."""
    first, second = shown(received(A, 4, stored(2**64 - 1, 2, parent=9), removed(7)))
    assert first == {
        "source": "tcp://127.0.0.1:5557",
        "topic": "kv@a",
        "rank": 0,
        "epoch": 0,
        "seq": 4,
        "received_ns": 1_700_000_000_000_000_004,
        "dialect": "map",
        "ts": 5.5,
        "event": 0,
        "events": 2,
        "kind": "BlockStored",
        "medium": "GPU",
        "hashes": [2**64 - 1, 2],
        "parent_hash": 9,
        "block_size": 16,
        "group_idx": 0,
        "token_ids": list(range(32)),
    }
    assert second["event"] == 1
    assert (second["kind"], second["hashes"], "payload" in second) == ("BlockRemoved", [7], False)


def test_the_medium_is_canonical_and_the_raw_one_kept() -> None:
    """``medium`` is upper case and GPU where absent; ``medium_raw`` is there where it says something else."""
    line, none, usual = shown(received(A, 0, removed(1, medium="cpu"), removed(1, medium=None), removed(1)))
    assert (line["medium"], line["medium_raw"]) == ("CPU", "cpu")
    assert (none["medium"], none["medium_raw"]) == ("GPU", None)
    assert usual["medium"] == "GPU"
    assert "medium_raw" not in usual


def test_empty_and_unreadable_batches_are_lines() -> None:
    """A batch without events, and one that cannot be read, are one line each and come back."""
    (empty,) = shown(received(A, 0))
    assert (empty["kind"], empty["events"]) == ("EmptyBatch", 0)
    (bad,) = shown(of_payload(A, 1, b"\xc1"))
    assert bad["kind"] == "Undecodable"
    assert bad["payload"] == "wQ=="
    assert isinstance(bad["why"], str)


def test_topics_that_are_no_text_survive() -> None:
    """A topic that is not UTF-8 goes as base64."""
    (line,) = shown(received(BYTES, 0))
    assert line["topic_base64"] == "/wBrdg=="
    assert "topic" not in line


def test_with_payload_the_round_trip_is_exact(captures: Path) -> None:
    """With their payloads, entries of every kind and real streams come back equal, byte for byte."""
    entries = everything()
    for name in ("sglang0523_radix", "vllm011_gpu_int", "vllm032_restart"):
        entries += of_capture(captures / f"{name}.frames", source=name)
    assert through(entries, payload=True) == entries


def test_without_payload_the_content_is_equal(captures: Path) -> None:
    """Without payloads, batches come back with equal events, times, rank and numbers."""
    entries: list[Entry] = list(of_capture(captures / "vllm032_gpu_int.frames"))
    entries += of_capture(captures / "vllm011_gpu_int.frames")
    for before, after in zip(entries, through(entries, payload=False), strict=True):
        assert isinstance(before, Received)
        assert isinstance(after, Received)
        assert isinstance(before.batch, EventBatch)
        assert isinstance(after.batch, EventBatch)
        assert (after.batch.ts, after.batch.data_parallel_rank) == (
            before.batch.ts,
            before.batch.data_parallel_rank,
        )
        assert after.batch.events == before.batch.events
        assert (after.seq, after.epoch, after.source) == (before.seq, before.epoch, before.source)
        assert after.received_ns == before.received_ns


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_any_history_survives(history: list[Entry]) -> None:
    """Any history comes back: exact with payloads; without, with the same facts."""
    assert through(history, payload=True) == history
    back = through(history, payload=False)
    assert [facts(entry) for entry in back] == [facts(entry) for entry in history]


def facts(entry: Entry) -> object:
    """What an entry says, whatever the bytes it said it in."""
    if isinstance(entry, Received) and isinstance(entry.batch, EventBatch):
        batch = msgspec.structs.replace(entry.batch, unknown_keys=0)
        return msgspec.structs.replace(entry, batch=batch, payload=b"", dialect="")
    return entry


def test_lists_json_cannot_say_go_as_base64() -> None:
    """Extra keys that hold bytes keep their exact form."""
    event = BlockStored([1], extra_keys=tokens([b"\x00\x01", "salt"]))
    entry = received(A, 0, event)
    (line,) = shown(entry)
    assert "extra_keys" not in line
    assert "extra_keys_base64" in line
    assert through([entry], payload=False) == [entry]


def test_a_filtered_stream_is_refused() -> None:
    """Lines of a batch left out, doubled or mixed with another's are noticed, with the line's number."""
    lines = encode_line(received(A, 0, removed(1), removed(2), removed(3))).splitlines(keepends=True)
    other = encode_line(received(A, 1, removed(4), removed(5), removed(6))).splitlines(keepends=True)
    for bad in (
        [lines[1]],
        [lines[0], lines[2]],
        [lines[0], lines[0]],
        [*lines[:2], other[2]],
        [*lines[:2], *other],
        lines[:2],
        [lines[0], encode_line(everything()[0])],
    ):
        with pytest.raises(CaptureError, match=r"line [123]: batch .* is not whole"):
            list(read_entries(bad, name="test"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "line 1"),
        (b"[]\n", "line 1"),
        (b"\n", "line 1"),
        (b'{"kind": "Loss"}\n', "missing"),
        (b'{"events": 1, "event": 0, "source": "s", "topic": "", "epoch": 0}\n', "missing"),
        (b'{"kind": "Odd", "source": "s", "topic": "", "epoch": 0}\n', "no entry is of kind"),
        (encode_line(received(A, 0, removed(1)))[:-1], "torn"),
        (encode_line(received(A, 0, removed(1))).replace(b'"hashes":[1]', b'"hashes":[-1]'), "line 1"),
        (encode_line(received(A, 0, removed(1))).replace(b'"hashes":[1]', b'"hashes":"1"'), "line 1"),
        (encode_line(received(A, 0, removed(1))).replace(b'"seq":0', b'"seq":"0"'), "line 1"),
        (encode_line(received(A, 0, removed(1))).replace(b'"ts":1.5,', b""), "ts"),
        (
            encode_line(received(A, 0, removed(1)), payload=True).replace(b'"payload":"k', b'"payload":"*'),
            "line 1",
        ),
    ],
)
def test_bad_lines_are_named(line: bytes, why: str) -> None:
    """A line that is not one of ours is an error that names it, never a guess."""
    with pytest.raises(CaptureError, match=why):
        list(read_entries([line], name="test"))


def test_lines_that_count_tokens_cannot_stand_alone() -> None:
    """A line of a payload-carrying stream whose payload was removed is refused: its tokens are not there."""
    line = next(lines_of(received(A, 0, stored(1)), payload=True))
    del line["payload"]
    with pytest.raises(CaptureError, match="counts its tokens"):
        list(read_entries([msgspec.json.encode(line) + b"\n"], name="test"))


def test_undecodable_events_keep_why() -> None:
    """An event nobody could read comes back with its bytes and the reason."""
    entry = of_payload(A, 0, bytes.fromhex("93cb3ff80000000000009281a47479706501") + b"\x91\x01\xc0")
    assert isinstance(entry.batch, EventBatch)
    assert any(isinstance(event, Undecodable) for event in entry.batch.events)
    (back,) = through([entry], payload=False)
    assert facts(back) == facts(entry)


ODD = {
    "epoch": (-1, 2**31, 2**80, "0", True),
    "seq": (-1, 2**64 - 2, 2**64, 1.5),
    "received_ns": (-1, 2**63),
    "rank": (-2, 2**31),
    "instance": (-1, 2**31),
    "events": (-1, 1.0),
    "topic": (5, None),
    "hashes": ([2**64], [-1]),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ODD.items() for value in values])
def test_numbers_that_no_log_can_hold_are_refused(key: str, value: object) -> None:
    """A number, a time or a rank beyond what a log keeps is a fault of its line, not of what stores it."""
    (line,) = shown(received(A, 4, removed(7)))
    data = json.dumps(line | {key: value}).encode() + b"\n"
    with pytest.raises(CaptureError, match="line 1"):
        list(read_entries([data], name="test"))


@pytest.mark.parametrize(
    "change", [{"first_seq": 9}, {"last_seq": 2**64}, {"first_seq": -1}, {"noticed_ns": 2**63}]
)
def test_a_loss_runs_forward(change: dict[str, int]) -> None:
    """A loss that ends before it begins, or beyond any number, is refused."""
    loss = {"source": "a", "topic": "t", "epoch": 0, "kind": "Loss"}
    loss |= {"first_seq": 1, "last_seq": 5, "reason": "no_replay", "noticed_ns": 0} | change
    with pytest.raises(CaptureError, match="line 1"):
        list(read_entries([json.dumps(loss).encode() + b"\n"], name="test"))


def test_deep_lines_are_refused() -> None:
    """Nesting without end is a bad line."""
    with pytest.raises(CaptureError, match="line 1"):
        list(read_entries([b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"], name="test"))
