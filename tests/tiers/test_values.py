"""What passes between a scheduler and its tiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiers
from tiers import (
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    Locality,
    Medium,
    OffloadingEvent,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    TierError,
    TierFilter,
    TierMatcher,
    TierValueError,
    TransferJob,
    UnknownRequestError,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_keys_go_in_and_out(block_hash: bytes, group: int) -> None:
    """A key is the hash and four bytes of group, and gives both back."""
    key = make_offload_key(block_hash, group)
    assert (get_offload_block_hash(key), get_offload_group_idx(key)) == (block_hash, group)
    assert key == block_hash + group.to_bytes(4, "big")


@pytest.mark.parametrize("group", [-1, 2**32])
def test_a_group_has_four_bytes(group: int) -> None:
    """A group that does not fit is refused instead of wrapped."""
    with pytest.raises(OverflowError):
        make_offload_key(b"h", group)


def test_media_are_strings() -> None:
    """A medium compares and prints as the word that goes on the wire."""
    assert (Medium.CPU, Medium.STORAGE, f"{Medium.GPU}") == ("CPU", "STORAGE", "GPU")


@pytest.mark.parametrize(
    ("matchers", "medium", "locality", "allowed"),
    [
        ((), Medium.CPU, None, False),
        ((TierMatcher(),), Medium.STORAGE, Locality.REMOTE, True),
        ((TierMatcher(Medium.CPU),), Medium.STORAGE, None, False),
        ((TierMatcher(Medium.CPU),), None, None, True),
        ((TierMatcher(Medium.STORAGE, Locality.LOCAL),), Medium.STORAGE, Locality.REMOTE, False),
        ((TierMatcher(Medium.STORAGE, Locality.LOCAL),), Medium.STORAGE, None, True),
        (
            (TierMatcher(Medium.CPU), TierMatcher(None, Locality.REMOTE)),
            Medium.STORAGE,
            Locality.REMOTE,
            True,
        ),
    ],
)
def test_filters(
    matchers: tuple[TierMatcher, ...], medium: Medium | None, locality: Locality | None, allowed: bool
) -> None:
    """None matches anything on either side, one matcher is enough, and no matcher denies all."""
    assert TierFilter(matchers).allows(medium, locality) is allowed


def test_all_allows_all() -> None:
    """A request that says nothing may be served from anywhere."""
    assert ReqContext("r").load_tier_filter is TierFilter.ALL
    assert TierFilter.ALL.allows(Medium.STORAGE, Locality.REMOTE)


def test_requests_carry_notes_by_type() -> None:
    """A request keeps one note of each type for whoever set it."""
    ctx = ReqContext("r", {"a": 1})
    ctx.set_state(3)
    ctx.set_state("three")
    ctx.set_state(4)
    assert (ctx.get_state(int), ctx.get_state(str), ctx.get_state(float)) == (4, "three", None)
    assert ReqContext("r", {"a": 1}).get_state(int) is None


def test_new_blocks_only_unless_asked() -> None:
    """The default policy stores what was computed anew; vLLM's later name for it means the same."""
    assert RequestOffloadingContext().policy is OffloadPolicy("block_level")
    assert OffloadPolicy["CHUNK_LEVEL"] is OffloadPolicy["BLOCK_LEVEL"]


def test_block_ids_are_int64() -> None:
    """Slots reach a worker as an int64 array in the order given, and are the spec's own copy."""
    given_ids = np.array([5, 1], dtype=np.int64)
    spec = CPULoadStoreSpec(given_ids)
    given_ids[0] = 9
    assert spec.block_ids.dtype == np.int64
    assert spec.block_ids.tolist() == [5, 1]
    assert CPULoadStoreSpec([]).block_ids.dtype == np.int64
    assert not hasattr(spec, "medium")


@pytest.mark.parametrize(
    "wrong",
    [
        [1.0],
        [1.5],
        ["1"],
        "12",
        [True],
        [None],
        [[1, 2]],
        [[1], [2, 3]],
        3,
        [2**63],
        np.array([2**63], dtype=np.uint64),
        np.array([1.0]),
        np.array(3),
    ],
)
def test_slots_are_whole_numbers(wrong: Any) -> None:
    """What is no list of whole numbers is refused, and nothing is rounded."""
    with pytest.raises(TierValueError, match="block_ids"):
        CPULoadStoreSpec(wrong)


@pytest.mark.parametrize("right", [range(3), (0, 1, 2), np.arange(3, dtype=np.uint8), [np.int32(0), 1, 2]])
def test_slots_may_come_in_any_sequence(right: Any) -> None:
    """Ranges, tuples and arrays of any width of integer will do."""
    assert CPULoadStoreSpec(right).block_ids.tolist() == [0, 1, 2]


def test_gpu_blocks_belong_to_groups() -> None:
    """Groups may be empty, and may begin inside a chunk."""
    spec = GPULoadStoreSpec([4, 5, 6], group_sizes=[2, 0, 1], block_indices=[3, 0, 0])
    assert (spec.group_sizes, spec.block_indices) == ((2, 0, 1), (3, 0, 0))


@pytest.mark.parametrize(
    ("ids", "sizes", "indices", "says"),
    [
        ([1, 2], [1], [0], "sum to 1, but there are 2"),
        ([1], [1], [0, 0], "2 block_indices for 1 groups"),
        ([1], [2, -1], [0, 0], "group_sizes"),
        ([1], [1], [-1], "block_indices"),
        ([1], [1.0], [0], "group_sizes"),
        ([1], 1, [0], "group_sizes"),
        ([1], [1], ["0"], "block_indices"),
    ],
)
def test_gpu_blocks_that_do_not_add_up(ids: list[int], sizes: Any, indices: Any, says: str) -> None:
    """A spec whose groups do not account for its blocks is a ValueError that says the numbers."""
    with pytest.raises(ValueError, match=says):
        GPULoadStoreSpec(ids, sizes, indices)


def test_events_are_equal_when_vllm_says_the_same() -> None:
    """Our extension keys take no part in comparing events, and the fields come in vLLM's order."""
    key = make_offload_key(b"h", 0)
    ours = OffloadingEvent([key], Medium.CPU, True, emit_seq=7, reason="evicted")
    assert ours == OffloadingEvent(keys=[key], medium=Medium.CPU, removed=True)
    assert ours != OffloadingEvent([key], Medium.CPU, True, Locality.LOCAL)
    assert ours != OffloadingEvent([key], Medium.CPU, True, None, "fs")


def test_errors_are_builtin_ones_too() -> None:
    """Code written for vLLM catches our errors as ValueError, AssertionError and KeyError."""
    assert issubclass(TierValueError, ValueError)
    assert issubclass(tiers.TierContractError, AssertionError)
    assert issubclass(UnknownRequestError, KeyError)
    assert str(UnknownRequestError("no request", next_step="Say so.")) == "no request. Say so."
    assert all(issubclass(e, TierError) for e in (TierValueError, UnknownRequestError))


def test_jobs_keep_their_order() -> None:
    """Keys and slots of a job belong together by position."""
    slots = np.array([2, 0], dtype=np.int64)
    job = TransferJob(0, [make_offload_key(b"b", 0), make_offload_key(b"a", 0)], slots, True, ReqContext("r"))
    assert [key[:-4] for key in job.keys] == [b"b", b"a"]
