"""The pocket language: what is written is what a log would hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.dialects import DialectReader
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Undecodable,
    Unrecognized,
    token_list,
)
from kvbus.log import EpochBegan, Loss, Received, SourceId, Stray
from kvbus.testing import HistoryError, block, events, history


def test_a_history_is_batches_of_events() -> None:
    """Bars part batches, spaces part events; numbers and positions run on; the epoch's beginning is there."""
    began, first, second, third = history("g:+a | c:+a g:-b,c | clear")
    assert isinstance(began.entry, EpochBegan)
    batches = [at.entry for at in (first, second, third) if isinstance(at.entry, Received)]
    assert [batch.seq for batch in batches] == [at.position for at in (first, second, third)] == [0, 1, 2]
    heard = [batch.batch.events for batch in batches if isinstance(batch.batch, EventBatch)]
    assert heard[1][1:] == [BlockRemoved([block("b"), block("c")], "GPU")]
    assert heard[2] == [AllBlocksCleared()]
    assert history("") == []


def test_events_say_what_they_mean() -> None:
    """Media by letter or as written, groups, parents, tokens for each block, placeholders, reasons."""
    a, b, c, d, e = events("g/1:+p>a,b lmcache:-a +a c:+a~ g:-a!evicted", block_size=2)
    assert isinstance(a, BlockStored)
    assert (a.medium, a.group_idx, a.parent_block_hash, a.block_size) == ("GPU", 1, block("p"), 2)
    assert len(token_list(a.token_ids)) == 4
    assert b == BlockRemoved([block("a")], "lmcache")
    assert isinstance(c, BlockStored)
    assert c.medium is None
    assert isinstance(d, BlockStored)
    assert (d.block_size, token_list(d.token_ids)) == (0, [])
    assert e == BlockRemoved([block("a")], "GPU", reason="evicted")


def test_strange_events() -> None:
    """``?`` is an event nobody can read; with a name it is one of a kind nobody knows."""
    unreadable, moved = events("? c:?Moved")
    assert isinstance(unreadable, Undecodable)
    assert isinstance(moved, Unrecognized)
    assert moved.tag == "Moved"


def test_sources_losses_restarts_and_strays() -> None:
    """Each source has its own numbers; what is missing, set aside or begun anew is an entry in its place."""
    log = history("@p#3 . | @q . | @p#3 lost(2,too_old) gap(1) . | restart(content) seq(5) . | late(1)")
    p, q = SourceId("p", b"kv", 3), SourceId("q", b"kv")
    told = [(type(at.entry).__name__, at.position, at.entry.source) for at in log]
    assert told == [
        ("EpochBegan", 0, p),
        ("Received", 0, p),
        ("EpochBegan", 1, q),
        ("Received", 1, q),
        ("Loss", 2, p),
        ("Received", 2, p),
        ("EpochBegan", 3, p),
        ("Received", 3, p),
        ("Stray", 4, p),
    ]
    lost, after, anew, last, stray = (at.entry for at in log[4:])
    assert isinstance(lost, Loss)
    assert (lost.first_seq, lost.last_seq, lost.reason) == (1, 2, "too_old")
    assert isinstance(after, Received)
    assert (after.seq, after.batch.data_parallel_rank) == (4, 3)  # type: ignore[union-attr]
    assert isinstance(anew, EpochBegan)
    assert (anew.epoch, anew.because) == (1, "content")
    assert isinstance(last, Received)
    assert (last.epoch, last.seq) == (1, 5)
    assert isinstance(stray, Stray)
    assert (stray.epoch, stray.seq, stray.reason) == (1, 1, "late")


WORDS = [
    "g:+a",
    "g/2:-a,b",
    "+p>x",
    "c:+a~",
    "clear",
    "s:+",
    "g:-a!reset",
    "? g:+a",
    "?Moved",
    "@q#1 g:+long_block_name",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, ".", "garbage"]), max_size=8))
def test_payloads_are_what_an_engine_would_send(words: list[str]) -> None:
    """The bytes of every batch, read as a recorder reads them, give the events that the history has."""
    reader = DialectReader()
    for at in history(" | ".join(words)):
        if not isinstance(at.entry, Received):
            continue
        batch, told = reader.read(at.entry.payload), at.entry.batch
        assert type(batch) is type(told)
        if isinstance(batch, EventBatch) and isinstance(told, EventBatch):
            assert (batch.ts, batch.data_parallel_rank) == (told.ts, told.data_parallel_rank)
            assert list(map(type, batch.events)) == list(map(type, told.events))
            known = [e for e in told.events if not isinstance(e, Undecodable)]
            assert [e for e in batch.events if not isinstance(e, Undecodable)] == known


def test_block_names_are_hashes() -> None:
    """Short names are readable in a hex dump, long ones are digests; all fit 64 bits and differ."""
    assert block("a") == 0x6100000000000000
    assert 0 <= block("a_name_of_more_than_eight_bytes") < 1 << 64
    assert len({block(name) for name in ("a", "b", "ab", "a_long_block_name", "a_long_block_nam")}) == 5


@pytest.mark.parametrize(
    "text", ["g:a", "g:+a | | g:-a", "lost", "g:+a garbage", "clear()", "g:+a,", "G:+a-"]
)
def test_what_is_not_the_language_is_refused(text: str) -> None:
    """A typing mistake is an error with the place and the next step, never another history."""
    with pytest.raises(HistoryError, match=r"Write "):
        history(text)
