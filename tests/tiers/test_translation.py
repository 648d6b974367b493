"""From keys to block hashes: the shapes that consumers of vLLM's connector know."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

import pytest

from kvbus.events import BlockRemoved, BlockStored, canonical_hash
from tests.tiers.words import k, keys
from tiers import Locality, Medium, OffloadingEvent
from tiers.voice.description import NO_TOKENS, BlockDescription, Descriptions
from tiers.voice.translation import plain, translate


def h(name: str) -> int:
    return canonical_hash(name.encode())


def test_a_store_is_one_event_a_key() -> None:
    """In the order of the keys, with the tier's medium, locality and ownership, all under one number."""
    event = OffloadingEvent(keys("b a"), Medium.STORAGE, False, Locality.REMOTE, "fs", True, emit_seq=7)
    assert translate(event, tier=1, descriptions=Descriptions()) == [
        BlockStored(
            [h(name)],
            token_ids=NO_TOKENS,
            block_size=0,
            group_idx=0,
            medium="STORAGE",
            locality="REMOTE",
            ownership="fs",
            emit_seq=7,
        )
        for name in "ba"
    ]


def test_a_removal_is_one_event_a_group() -> None:
    """Groups in the order they first come, the keys of each in theirs, with the reason."""
    gone = [k("a", 1), k("b", 0), k("c", 1)]
    event = OffloadingEvent(gone, Medium.CPU, True, emit_seq=3, reason="evicted")
    assert translate(event, tier=0, descriptions=Descriptions()) == [
        BlockRemoved([h("a"), h("c")], medium="CPU", group_idx=1, emit_seq=3, reason="evicted"),
        BlockRemoved([h("b")], medium="CPU", group_idx=0, emit_seq=3, reason="evicted"),
    ]


def test_a_removal_of_chunks_names_all_their_blocks() -> None:
    """Two chunks of two blocks are four hashes, in order."""
    known = Descriptions()
    for name in "bd":
        known.describe(k(name), BlockDescription([f"{name}0".encode(), name.encode()], None, [1, 2], 1))
    translate(OffloadingEvent(keys("b d"), Medium.CPU, False), tier=0, descriptions=known)
    (gone,) = translate(OffloadingEvent(keys("d b"), Medium.CPU, True), tier=0, descriptions=known)
    assert isinstance(gone, BlockRemoved)
    assert gone.block_hashes == [h("d0"), h("d"), h("b0"), h("b")]


def test_whether_a_tier_will_take_back_is_its_own_word() -> None:
    """The primary always does; a tier behind it says so in the event, or its store holds nothing."""
    known = Descriptions()
    for name in "abc":
        known.describe(k(name), BlockDescription([name.encode()], None, [1], 1))
    translate(OffloadingEvent(keys("a"), Medium.CPU, False), tier=0, descriptions=known)
    translate(OffloadingEvent(keys("b"), Medium.STORAGE, False), tier=1, descriptions=known)
    translate(
        OffloadingEvent(keys("c"), Medium.STORAGE, False, removal_expected=True), tier=1, descriptions=known
    )
    assert known.get_stats()["held"] == 2


def test_names_are_words_whoever_made_the_enum() -> None:
    """A member of a string enum, of a plain one, a string, nothing."""

    class Theirs(Enum):
        CPU = "CPU"

    assert [plain(name) for name in (Medium.CPU, Theirs.CPU, "cpu", None)] == ["CPU", "CPU", "cpu", None]
    assert type(plain(Medium.CPU)) is str


def test_names_are_plain_words() -> None:
    """msgpack knows no kin of a string, and no half character: the one is made plain, the other refused."""

    class Fancy(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self

    assert type(plain(Fancy("CPU"))) is str
    with pytest.raises(ValueError, match="surrogates"):
        plain("\udc80")


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": [k("a"), b"abcd"]},
        {"keys": [k("a"), "b"]},
        {"medium": "\udc80"},
        {"reason": "\udc80"},
        {"emit_seq": -1},
        {"emit_seq": 1 << 64},
        {"emit_seq": True},
    ],
)
def test_what_cannot_go_out_leaves_no_trace(wrong: dict[str, Any], removed: bool) -> None:
    """It is refused whole before any of its keys is noted as held or let go."""
    known = Descriptions()
    for name in "ab":
        known.describe(k(name), BlockDescription([name.encode()], None, [1], 1))
    if removed:
        translate(OffloadingEvent(keys("a"), Medium.CPU, False), tier=0, descriptions=known)
    before = known.get_stats()
    event = replace(OffloadingEvent(keys("a"), Medium.CPU, removed), **wrong)
    with pytest.raises(ValueError, match=r"is not a key|surrogates|emit_seq"):
        translate(event, tier=0, descriptions=known)
    assert known.get_stats() == before
    known.check_integrity()
