"""``kvbus/telling.py``: a log by its order alone."""

from __future__ import annotations

import pytest

from kvbus import telling as module
from kvbus.log import EpochBegan, PositionedEntry, SourceId
from kvbus.telling import TooLongError, mentioned, telling
from kvbus.testing import block, history
from tests.tellings import tell


def test_every_kind_of_event_is_told() -> None:
    """Stores, removals, clears, unknown and unreadable events, restarts and holes are told in log order."""
    told = tell("c/2:+p>a,b g:-a!evicted | clear c:?Moved ? | garbage | lost(3) +a | restart -a")
    assert [event.what for event in told.events] == [
        *("stored", "removed", "cleared", "?Moved", "unreadable", "unreadable", "lost", "stored"),
        *("restart", "removed"),
    ]
    stored, removed = told.events[:2]
    assert (stored.medium, stored.group, stored.blocks) == ("CPU", 2, (block("a"), block("b")))
    assert mentioned(stored) == (block("p"), block("a"), block("b"))
    assert (removed.medium, removed.reason, removed.parent) == ("GPU", "evicted", None)
    assert (told.events[3].medium, told.events[6].tokens, told.events[6].reason) == ("CPU", 3, "no_replay")


def test_events_of_a_message_share_a_batch() -> None:
    """Batches are counted over all sources; those without events are none, and the first epoch no restart."""
    told = tell("+a +b | . | @other +c | +d")
    assert [event.batch for event in told.events] == [0, 0, 1, 2]
    assert [event.where.position for event in told.events] == [0, 0, 2, 3]


def test_tiers_of_one_engine_are_told_by_their_names() -> None:
    """ENGINE/TIER, as ``record --engine`` calls sources, are one engine, rank by rank; others are alone."""
    told = tell("@e/cpu +a | @e/fs +b | @e/cpu#1 +c | @ipc:///tmp/e/x +d | @plain +e")
    assert [(voice.tier, voice.rank) for voice in told.voices] == [
        *(("cpu", -1), ("fs", -1), ("cpu", 1), ("", -1), ("", -1))
    ]
    assert told.engines() == [[0, 1], [2], [3], [4]]
    assert told.media() == [{"GPU"}] * 5


def test_an_old_epoch_that_comes_back_is_no_restart() -> None:
    """Only a newer epoch of a source is one."""
    source = SourceId("x")
    marks = [PositionedEntry(0, EpochBegan(source, epoch, "seq", "", 0)) for epoch in (3, 3, 4)]
    assert [event.what for event in telling(marks).events] == ["restart"]


def test_a_hole_that_nothing_declares_is_told() -> None:
    """Numbers that are missing inside an epoch are lost, and what a Loss declares is not told twice."""
    for text, lost in (
        ("+a | gap(3) +b", [(1, 3, "undeclared")]),
        ("+a | gap(2) . | +b", [(1, 2, "undeclared")]),
        ("+a | gap(2) lost(1) +b", [(1, 2, "undeclared"), (3, 1, "no_replay")]),
        ("+a | lost(1) gap(2) +b", [(1, 1, "no_replay"), (2, 2, "undeclared")]),
        ("@p +a | @q +a | @p gap(1) +b | @q +b", [(1, 1, "undeclared")]),
        ("+a | restart +a | gap(1) +b", [(1, 1, "undeclared")]),
        ("seq(5) +a | +b | seq(5) +a | seq(7) +c | conflict(3) +d", []),
    ):
        found = [event for event in tell(text).events if event.what == "lost"]
        assert [(event.where.seq, event.tokens, event.reason) for event in found] == lost, text


def test_a_log_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into memory is said to be too long, with a way out."""
    monkeypatch.setattr(module, "EVENTS_MAX", 2)
    with pytest.raises(TooLongError, match="more than 2 events") as raised:
        telling(history("+a | +b +c"))
    assert "--until" in raised.value.next_step


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("engine/cpu", ("engine", "cpu")),
        ("rack/engine/cpu", ("rack/engine", "cpu")),
        ("engine", None),
        ("/cpu", None),
        ("ipc:///tmp/engine/cpu", None),
    ],
)
def test_a_tier_of_an_engine_is_known_by_its_name(name: str, expected: tuple[str, str] | None) -> None:
    """ENGINE/TIER is a tier, an address with slashes is not, nor is a name that lacks its engine."""
    assert SourceId(name).engine_and_tier == expected
