"""What events mean: canonical hashes and media, and token lists that stay raw until somebody asks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    canonical_hash,
    canonical_medium,
    token_count,
    token_list,
    tokens,
)

TOKENS = st.none() | st.lists(
    st.integers(0, 2**32) | st.text(max_size=5) | st.lists(st.integers(0, 9), min_size=2, max_size=2)
)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64 - 1))
def test_signed_and_unsigned_hashes_share_their_bits(raw: int) -> None:
    """A hash keeps its 64 bits, whether the engine counts them signed (SGLang) or unsigned (vLLM)."""
    assert canonical_hash(raw).to_bytes(8, "big") == raw.to_bytes(8, "big", signed=raw < 0)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=40))
def test_a_bytes_hash_is_its_last_eight_bytes(raw: bytes) -> None:
    """A long hash means the same block as the integer that vLLM makes of it: its low 64 bits."""
    assert canonical_hash(raw) == int.from_bytes(raw, "big") % 2**64


@pytest.mark.parametrize("raw", [2**64, -(2**63) - 1, b""])
def test_a_hash_of_no_or_too_many_bits_is_refused(raw: int | bytes) -> None:
    """Nothing is folded into 64 bits that never was a 64-bit hash."""
    with pytest.raises(ValueError, match="hash"):
        canonical_hash(raw)


@settings(deadline=None)
@given(TOKENS)
def test_raw_tokens_come_back_and_are_counted_without_being_read(ids: list[object] | None) -> None:
    """Ints, pairs, strings and nil go into a raw list, are counted from its header, and come out again."""
    assert token_list(tokens(ids)) == (ids or [])
    assert token_count(tokens(ids)) == len(ids or [])


@pytest.mark.parametrize("size", [15, 16, 65_535, 65_536])
def test_every_msgpack_list_header_is_counted(size: int) -> None:
    """Token lists are counted right on both sides of each width of msgpack's list header."""
    assert token_count(tokens(range(size))) == size


def test_what_is_no_list_holds_no_tokens() -> None:
    """A token field that is not a list counts as none, and reads as none."""
    assert token_count(Raw(b"\x07")) == 0
    assert token_list(Raw(b"\x07")) == []


def test_an_event_without_a_medium_speaks_of_the_gpu() -> None:
    """Engines older than vLLM 0.10.2 name no medium and mean the GPU; other names only change their case."""
    assert canonical_medium(None) == "GPU"
    assert canonical_medium("cpu_pinned") == "CPU_PINNED"


def test_fields_that_vllm_always_sends_are_always_encoded() -> None:
    """Consumers index the nullable keys without asking, so null ones are there; later fields are not."""
    events = [BlockStored([7]), BlockRemoved([7]), AllBlocksCleared()]
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(events))
    assert [list(one) for one in encoded] == [
        [
            "type",
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
        ],
        ["type", "block_hashes", "medium"],
        ["type"],
    ]
