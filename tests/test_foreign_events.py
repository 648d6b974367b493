"""``kvbus/foreign_events.py``: other managers' events, as our own."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import msgspec
import pytest

from kvbus.events import BlockRemoved, BlockStored, canonical_hash, tokens
from kvbus.foreign_events import ForeignEventError, Keys, read_events
from kvbus.testing import block, events


class Medium(Enum):
    CPU = "CPU"


class EngineStored(msgspec.Struct, tag="BlockStored", array_like=True):
    """An early vLLM's event: an array under a tag."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None


class Progress(msgspec.Struct):
    """A struct that is no event."""

    batches: int


def offloaded(keys: list[object], *, removed: bool = False, **more: object) -> SimpleNamespace:
    return SimpleNamespace(**{"keys": keys, "medium": "CPU", "removed": removed, **more})


def key(name: bytes, group: int) -> bytes:
    return name + group.to_bytes(4, "big")


def test_offloading_events_are_read_by_their_attributes() -> None:
    """Keys with their groups, in order; media as text or enum; ownership and reason where there are any."""
    keys = Keys()
    stored = offloaded([key(b"a", 0), key(b"b", 0), key(b"a", 1)], medium=Medium.CPU, ownership="fs")
    removed = offloaded([key(b"a", 1)], removed=True, reason="evicted")
    read = read_events([stored, removed], keys)
    a, b = canonical_hash(b"a"), canonical_hash(b"b")
    ids = tokens([])
    assert read == [
        BlockStored([a, b], None, ids, 0, medium="CPU", group_idx=0, ownership="fs"),
        BlockStored([a], None, ids, 0, medium="CPU", group_idx=1, ownership="fs"),
        BlockRemoved([a], "CPU", 1, reason="evicted"),
    ]
    assert keys.names() == {a: "a", b: "b"}


def test_early_ones_have_hashes_without_groups() -> None:
    """vLLM's first offloading events name ``block_hashes``; those are whole."""
    (event,) = read_events([SimpleNamespace(block_hashes=[b"12345678"], medium="cpu", removed=False)], Keys())
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.group_idx) == ([canonical_hash(b"12345678")], None)


def test_engines_own_events_are_read_as_from_the_wire() -> None:
    """kvbus's events are taken as they are; structs of an engine as a reader would read them."""
    own = events("g:+a g:-a clear")
    assert read_events(own, Keys()) == own
    (read,) = read_events([EngineStored([-1], None, [1, 2], 2)], Keys())
    assert isinstance(read, BlockStored)
    assert (read.block_hashes, read.block_size) == ([2**64 - 1], 2)


def test_what_is_for_the_managers_own_ears_is_left_out() -> None:
    """vLLM marks removals that are not published."""
    assert read_events([offloaded(["a"], removed=True, metadata_only=True)], Keys()) == []


def test_strings_and_integers_are_keys_too() -> None:
    """As tests of small managers use them; each is called what it is."""
    keys = Keys()
    (event,) = read_events([offloaded(["prompt", -1, b"\xff\xfe"])], keys)
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [block("prompt"), 2**64 - 1, canonical_hash(b"\xff\xfe")]
    assert list(keys.names().values()) == ["prompt", "f" * 16, "fffe"]


@pytest.mark.parametrize(
    "event",
    [
        "stored",
        SimpleNamespace(keys=["a"], medium="CPU"),
        SimpleNamespace(keys=["a"], removed=False),
        SimpleNamespace(medium="CPU", removed=False),
        offloaded([("a", 1)]),
        offloaded([""]),
        offloaded([True]),
        SimpleNamespace(keys="abc", medium="CPU", removed=False),
        SimpleNamespace(keys=b"abc", medium="CPU", removed=False),
        SimpleNamespace(block_hashes=bytearray(b"abc"), medium="CPU", removed=False),
        offloaded([2**64]),
        offloaded([key(b"one of 8 bytes", 0), key(b"two of 8 bytes", 0)]),
        Progress(3),
    ],
)
def test_what_cannot_be_read_is_refused(event: object) -> None:
    """A test must not pass because an event was passed over."""
    with pytest.raises(ForeignEventError):
        read_events([event], Keys())


@pytest.mark.parametrize("given", [offloaded(["a"]), "stored", b"", None, events("c:+a")[0]])
def test_a_single_event_is_no_list(given: object) -> None:
    """One event, a text and nothing at all are refused with what to do, not iterated."""
    with pytest.raises(ForeignEventError, match=r"Put a single event into a list: \[event\]"):
        read_events(given, Keys())  # type: ignore[arg-type]
