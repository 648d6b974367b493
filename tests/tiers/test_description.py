"""What keys stand for: told once, said by every tier, kept as long as somebody has yet to say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.events import BlockStored, canonical_hash, token_list
from tests.tiers.words import k
from tiers.errors import TierValueError
from tiers.voice.description import BlockDescription, Descriptions

PRIMARY, BEHIND = 0, 1


def chunk(*names: str, parent: str | None = None, tokens: Sequence[int] = (1, 2)) -> BlockDescription:
    """A chunk of the blocks of these names."""
    hashes = [name.encode() for name in names]
    return BlockDescription(hashes, parent and parent.encode(), tokens, 2)  # type: ignore[arg-type]


def hashes(*names: str) -> list[int]:
    return [canonical_hash(name.encode()) for name in names]


def store(known: Descriptions, name: str, *, tier: int = PRIMARY, lasting: bool = True) -> BlockStored:
    (stored,) = known.stored([k(name)], tier=tier, lasting=lasting)
    known.check_integrity()
    return stored


def remove(known: Descriptions, name: str, *, tier: int = PRIMARY) -> list[int]:
    gone = known.removed(k(name), tier=tier)
    known.check_integrity()
    return gone


def test_a_described_block_is_said_whole() -> None:
    """The chunk's hashes, its parent, its tokens, what else went into the hash, and the group of the key."""
    known = Descriptions()
    described = BlockDescription([b"a1", b"a2"], b"a0", [7, 8, 9, 10], 2, 3, "lora", [("salt",), None])
    known.describe(k("a", group=5), described)
    (stored,) = known.stored([k("a", group=5)], tier=PRIMARY, lasting=True)
    assert stored.block_hashes == hashes("a1", "a2")
    assert stored.parent_block_hash == canonical_hash(b"a0")
    assert token_list(stored.token_ids) == [7, 8, 9, 10]
    assert (stored.block_size, stored.group_idx) == (2, 5)
    assert (stored.lora_id, stored.lora_name) == (3, "lora")
    assert token_list(stored.extra_keys) == [["salt"], None]


def test_hashes_are_canonical() -> None:
    """A 32-byte hash is its last eight bytes, as everywhere on the bus."""
    known = Descriptions()
    known.describe(k("a"), BlockDescription([bytes(range(32))], bytes(32), [1], 1))
    assert store(known, "a").block_hashes == [1736447835066146335]


def test_a_block_nobody_described_is_a_placeholder() -> None:
    """As vLLM sends it: the hash in its key, no parent, no tokens, block size 0, the key's group."""
    known = Descriptions()
    (stored,) = known.stored([k("a", group=3)], tier=PRIMARY, lasting=True)
    assert (stored.block_hashes, stored.parent_block_hash) == (hashes("a"), None)
    assert (token_list(stored.token_ids), stored.block_size, stored.group_idx) == ([], 0, 3)
    assert known.get_stats()["placeholders"] == 1


def test_a_removal_names_what_the_store_named() -> None:
    """A chunk of three blocks leaves as three hashes, in the same order."""
    known = Descriptions()
    known.describe(k("c"), chunk("a", "b", "c"))
    assert remove(known, "c") == hashes("c")  # never stored: nothing but the key is known to be meant
    store(known, "c")
    assert remove(known, "c") == hashes("a", "b", "c")


def test_a_placeholder_leaves_as_it_came() -> None:
    """A block described only after its store was said takes back the one hash that was said."""
    known = Descriptions()
    store(known, "c")
    known.describe(k("c"), chunk("a", "b", "c"))
    assert store(known, "c", tier=BEHIND).block_hashes == hashes("a", "b", "c")
    assert remove(known, "c") == hashes("c")
    assert remove(known, "c", tier=BEHIND) == hashes("a", "b", "c")


def test_a_description_outlives_the_first_tier_that_lets_go() -> None:
    """Held by two tiers, removed from one: the other still says it whole."""
    known = Descriptions(unheld_max=1)
    known.describe(k("a"), chunk("x", "a"))
    store(known, "a")
    store(known, "a", tier=BEHIND)
    assert remove(known, "a") == hashes("x", "a")
    known.describe(k("b"), chunk("b"))  # the one that nobody holds
    assert store(known, "a", tier=2).block_hashes == hashes("x", "a")
    assert remove(known, "a", tier=BEHIND) == hashes("x", "a")


def test_a_removal_above_does_not_take_the_words_from_a_store_below() -> None:
    """In one drain the primary's removal comes first; the tier behind still describes its store."""
    known = Descriptions()
    known.describe(k("a"), chunk("x", "a"))
    store(known, "a")
    remove(known, "a")
    assert store(known, "a", tier=BEHIND).block_hashes == hashes("x", "a")


def test_a_tier_that_never_lets_go_holds_nothing() -> None:
    """What will not be taken back need not be kept for it; if it is taken back after all, it is whole."""
    known = Descriptions(unheld_max=1)
    known.describe(k("a"), chunk("x", "a"))
    store(known, "a", tier=BEHIND, lasting=False)
    assert known.get_stats()["held"] == 0
    assert remove(known, "a", tier=BEHIND) == hashes("x", "a")


def test_what_nobody_holds_is_bounded() -> None:
    """The one longest without use is forgotten, and counted."""
    known = Descriptions(unheld_max=2)
    for name in "ab":
        known.describe(k(name), chunk("x", name))
    known.describe(k("a"), chunk("x", "a"))  # a use
    known.describe(k("c"), chunk("x", "c"))
    known.check_integrity()
    assert store(known, "b").block_size == 0
    assert [store(known, name).block_hashes for name in "ac"] == [hashes("x", "a"), hashes("x", "c")]
    assert known.get_stats()["forgotten.unheld"] == 1


def test_bytes_are_bounded() -> None:
    """Over the limit, those longest held are forgotten; their removals then name the key's hash."""
    one = chunk("x", "a", tokens=range(1000))
    size = Descriptions()
    size.describe(k("a"), one)
    known = Descriptions(bytes_max=2 * int(size.get_stats()["bytes"]))
    for name in "abc":
        known.describe(k(name), chunk("x", name, tokens=range(1000)))
        store(known, name)
    assert known.get_stats()["forgotten.bytes"] == 1
    assert [remove(known, name) for name in "abc"] == [hashes("a"), hashes("x", "b"), hashes("x", "c")]


def test_the_first_description_stays() -> None:
    """A key names its content: a second description cannot change what a tier has said."""
    known = Descriptions()
    known.describe(k("a"), chunk("x", "a"))
    store(known, "a")
    known.describe(k("a"), chunk("y", "a"))
    assert remove(known, "a") == hashes("x", "a")


def test_tokens_are_encoded_once() -> None:
    """All tiers say the same bytes, the very same object."""
    known = Descriptions()
    known.describe(k("a"), chunk("a", tokens=range(100)))
    first, second = store(known, "a"), store(known, "a", tier=BEHIND)
    assert first.token_ids is second.token_ids


@pytest.mark.parametrize(
    "wrong",
    [
        BlockDescription([], None, [1], 1),
        BlockDescription([b""], None, [1], 1),
        BlockDescription([b"a"], b"", [1], 1),
        BlockDescription([b"a"], None, [1 << 64], 1),
        BlockDescription([b"a"], None, [1], 1, extra_keys=[object()]),
        BlockDescription([b"a"], None, [1], 1, lora_id=1 << 64),
    ],
)
def test_what_cannot_be_said_is_refused_at_once(wrong: BlockDescription) -> None:
    """No hash, an empty one, lists that msgpack cannot carry: an error of the call, not of a later drain."""
    known = Descriptions()
    with pytest.raises(TierValueError, match="cannot be described"):
        known.describe(k("a"), wrong)
    assert len(known) == 0


def nested(depth: int) -> list[object]:
    """A list in a list in a list."""
    deep: list[object] = []
    for _ in range(depth):
        deep = [deep]
    return deep


def test_what_raises_while_it_is_read_is_refused_too() -> None:
    """Lists too deep to be encoded, or whose reading fails: the same error of the call."""

    class Failing(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise OSError("gone")

    known = Descriptions()
    for wrong in (
        BlockDescription([b"a"], None, [1], 1, extra_keys=nested(100_000)),
        BlockDescription([b"a"], None, Failing([1]), 1),
    ):
        with pytest.raises(TierValueError, match="cannot be described"):
            known.describe(k("a"), wrong)
    assert len(known) == 0


@pytest.mark.parametrize("key", [b"", b"abcd", "key", None, 5, []])
def test_what_is_no_key_has_no_description(key: Any) -> None:
    """A key is the bytes of a hash and a group: anything else would never be stored."""
    known = Descriptions()
    with pytest.raises(TierValueError, match="is not a key"):
        known.describe(key, chunk("a"))
    assert len(known) == 0


def test_limits_are_not_negative() -> None:
    """A negative limit is a mistake."""
    with pytest.raises(TierValueError, match="unheld_max -1"):
        Descriptions(unheld_max=-1)


STEPS = st.lists(
    st.tuples(st.sampled_from(["describe", "store", "remove"]), st.sampled_from("abcd"), st.integers(0, 2)),
    max_size=60,
)


@given(steps=STEPS, lasting=st.tuples(st.booleans(), st.booleans(), st.booleans()), small=st.booleans())
def test_every_tier_takes_back_what_it_said(
    steps: list[tuple[str, str, int]], lasting: tuple[bool, ...], small: bool
) -> None:
    """Whatever the order, a removal names the hashes of that tier's last store; or, where a limit was met,
    the key's.
    """
    known = Descriptions(unheld_max=1, bytes_max=45) if small else Descriptions()
    said: dict[tuple[str, int], list[int]] = {}
    for what, name, tier in steps:
        if what == "describe":
            known.describe(k(name), chunk("x", "y", name))
            known.check_integrity()
        elif what == "store":
            said[name, tier] = store(known, name, tier=tier, lasting=lasting[tier]).block_hashes
        else:
            expected = said.pop((name, tier), hashes(name))
            assert remove(known, name, tier=tier) in ([expected, hashes(name)] if small else [expected])
