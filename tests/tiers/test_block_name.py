"""Names of blocks: each key has one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tiers import make_offload_key
from tiers.storage.block_name import block_name, read_block_name


@given(st.binary(max_size=64), st.integers(0, 2**32 - 1))
@example(b"", 0)
def test_a_name_says_its_key(block_hash: bytes, group: int) -> None:
    """Whatever a hash and a group are, the name of their key is read back as that key."""
    key = make_offload_key(block_hash, group)
    assert read_block_name(block_name(key)) == key


@given(st.text(alphabet="0123456789abcdefABCDEF_g/.\n٣", max_size=12))
@example("0a1/0a1b_g00")
@example("0a1/0a1b_g4294967296")
@example("0a2/0a1b_g0")
@example("0a1/0A1B_g0")
@example("0a1/0a1b_g0\n")
@example("0a1/0a1b_g٣")
@example("x/0a1/0a1b_g0")
def test_no_other_name_is_a_key(name: str) -> None:
    """A key has one name: what is read as a key is written as it was read."""
    key = read_block_name(name)
    assert key is None or block_name(key) == name
