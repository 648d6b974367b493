"""Why blocks left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbus import block_log
from kvbus.chunks import Chunks
from kvbus.removals import CLASSES, Removals, Removed, Why, listed, removals
from kvbus.testing import history
from tests.audit.histories import HISTORIES
from tests.list_log import ListLog, in_a_file


def whys(text: str) -> list[str]:
    """Each removal: medium, class, and + where a reason said so."""
    found = listed(ListLog(history(text)))
    return [f"{one.because.medium} {one.because.why}{'+' * (one.because.how == 'said')}" for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g:+a | g:-a", ["GPU evicted"]),
        ("g:+a c:+a | g:-a", ["GPU demoted"]),
        ("g:+a,b | c:+b | g:-a", ["GPU evicted"]),
        ("g:+a | g:-a c:+a", ["GPU demoted"]),
        ("c:+a s:+a | c:-a!evicted", ["CPU demoted"]),
        ("c:+a,b | s:+b | c:-a!evicted", ["CPU evicted+"]),
        ("c:+a g:+a | c:-a", ["CPU evicted"]),
        ("d:+a e:+a | d:-a", ["DISK demoted"]),
        ("g/1:+a c/2:+a | g/1:-a", ["GPU evicted"]),
        ("c:+a,b | c:-a!corrupt | c:-b!deleted", ["CPU corrupt+", "CPU deleted+"]),
        ("c:+a,b | c:-a!reset c:-b!moved", ["CPU reset+", "CPU unknown+"]),
        ("c:+a,b,c | c:-a,b,c", ["CPU reset"] * 3),
        ("c:+a,b,c | c:-a,b,c c:+d", ["CPU evicted"] * 3),
        ("g:+a,a | g:-a | g:-a", ["GPU copy", "GPU evicted"]),
        ("g:-a", ["GPU unknown"]),
        ("lost(1) . | g:+b g:-a", ["GPU evicted"]),
        ("seq(3) g:+b | g:-a", ["GPU evicted"]),
        ("g:+a c:+b | lost(1) g:-a", ["GPU unknown"]),
        ("g:+a,b | c:+a g:-b | clear | clear", ["GPU evicted", "GPU reset+"]),
        ("@e/g g:+a,b | @e/c c:+a | @e/g g:-a | g:-b", ["GPU demoted", "GPU evicted"]),
        ("@e/g g:+a,b | @e/c c:+b | lost(1) . | @e/g g:-a", ["GPU unknown"]),
        ("@e/g g:+a,b | @f/c c:+a | @e/g g:-a", ["GPU evicted"]),
        ("@tcp://h:1 g:+a,b | @tcp://h:2 c:+a | @tcp://h:1 g:-a", ["GPU evicted"]),
    ],
)
def test_each_removal_has_its_class(text: str, expected: list[str]) -> None:
    """Reasons are believed; else what is below, what is left and what is certain decide."""
    assert whys(text) == expected
    assert {word.split()[1].rstrip("+") for word in expected} <= CLASSES.keys()


def test_what_a_clear_took_is_one_line() -> None:
    """All blocks of a group at once, with the place of the clear; nothing taken, nothing told."""
    found = list(listed(ListLog(history("g:+a,b,c c:+a | g:-c | clear | clear"))))
    clear = found[-1]
    assert (clear.position, clear.seq, clear.event, clear.block, clear.blocks) == (2, 2, 0, None, 2)
    assert len(found) == 2


def test_a_removal_says_where_it_stands() -> None:
    """Position, epoch, seq, index, hash and time of receipt."""
    (one,) = listed(ListLog(history("@p#1 g:+a | restart g:+b | g:-b")))
    assert (one.position, one.epoch, one.seq, one.event, one.block) == (2, 1, 1, 0, 0x62 << 56)
    assert (one.because.source.rank, one.received_ns) == (1, round(1_700_000_000.002 * 1e9) + 500_000)


@settings(max_examples=30, deadline=None)
@given(text=HISTORIES, sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
@example(text="g:+a | @q g/1:+a | g:+a clear", sizes=[1])
def test_it_does_not_matter_how_a_log_is_cut(text: str, sizes: list[int]) -> None:
    """Counts and lines are the same, whole or in pieces; and the lines add up to the counts."""
    log = ListLog(history(text))
    names = Chunks()
    pieces, entries = Removals(names), list(log.entries())
    cut: list[Removed] = []
    while entries:
        for size in sizes:
            chunk = names.of_entries(entries[:size])
            entries = entries[size:]
            cut += pieces.listed(chunk, pieces.look(chunk))
    assert cut == list(listed(log))
    assert pieces.counts == removals(log)
    added: Counter[Why] = Counter()
    for one in cut:
        added[one.because] += one.blocks
    assert added == pieces.counts


def test_a_file_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns from a file, entries one by one: the same counts."""
    entries = history(
        "@e/g g:+a,b | @e/c c:+a | @e/g g:-a,b | lost(1) g:+a | clear | @e/c c:-a!corrupt | c:-b"
    )
    monkeypatch.setattr(block_log, "GATHER_ENTRIES", 1)
    with in_a_file(entries, tmp_path / "x.duckdb") as log:
        assert removals(log) == removals(ListLog(entries))
        assert sum(removals(log, last=2).values()) == 2
