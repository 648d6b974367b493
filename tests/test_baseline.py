"""``kvbus/baseline.py``: a telling as text, and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from kvbus.baseline import BaselineError, counted, is_baseline, read_baseline, written
from kvbus.comparison import compare
from kvbus.log import Entry, PositionedEntry
from kvbus.telling import telling
from tests.logs import histories, numbered
from tests.tellings import renamed, tell

STORY = "@e/cpu c/1:+p>a,b c:-a!evicted | lost(2) clear | @e/fs s:+a,b,c~ ? | @gpu#3 +a | restart +a ?Moved"


def text_of(story: str) -> str:
    return "".join(written(tell(story)))


def test_a_baseline_is_a_line_an_event() -> None:
    """Sources first, then every event, engine by engine, each with names of its own."""
    assert text_of(STORY).splitlines() == [
        "kvbus baseline 1",
        "source 1 engine=1 tier=cpu",
        "source 2 engine=1 tier=fs",
        "source 3 rank=3",
        "1 | stored CPU/1 b2,b3 parent=b1 tokens=8 size=4",
        "1 : removed CPU b2 reason=evicted",
        "1 | lost 2 reason=no_replay",
        "1 | cleared",
        "2 | stored STORAGE b2..b4",
        "2 : unreadable",
        "3 | stored GPU b1 tokens=4 size=4",
        "3 | restart",
        "3 | stored GPU b1 tokens=4 size=4",
        "3 : ?Moved",
    ]


def test_other_hashes_and_other_company_give_the_same_text() -> None:
    """Neither hashes nor how two engines lie between each other show in a baseline."""
    told = tell(STORY)
    assert "".join(written(renamed(told, lambda block: block ^ 0xFFFF))) == text_of(STORY)
    assert text_of("@a#0 +a | @b#1 +x | @a#0 -a") == text_of("@b#1 +x | @a#0 +a | -a")


@settings(deadline=None)
@given(histories())
def test_any_log_comes_back_from_its_baseline(entries: list[Entry]) -> None:
    """What is read compares as the same, and is written as the same text."""
    told = telling([PositionedEntry(*one) for one in numbered(entries)])
    text = list(written(told))
    read = read_baseline(text, name="x")
    assert list(written(read)) == text
    assert compare(told, read).same
    assert counted(read)["events"] == len(told.events)


def test_real_engines_come_back(capture_entries: Callable[[str], list[PositionedEntry]]) -> None:
    """A real engine's baseline is as the log it was made of."""
    told = telling(capture_entries("vllm032_restart"))
    assert compare(told, read_baseline(written(told), name="x")).same


def test_lines_of_people_are_passed_over() -> None:
    """Comments and empty lines say nothing."""
    lines = text_of("+a").splitlines()
    assert len(read_baseline([lines[0], "# why", "", *lines[1:]], name="x").events) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 | moved GPU b1", "moved GPU b1: no event"),
        ("1 | stored GPU", "no event"),
        ("1 | stored GPU b1 colour=red", "'colour=red' is not known"),
        ("1 | removed GPU b1 tokens=4", "'tokens=4' is not known"),
        ("1 | stored GPU b1 tokens=4 tokens=5", "is not known here"),
        ("1 | stored GPU a1", "'a1' is no block"),
        ("1 | stored GPU b9..b1", "names no blocks"),
        ("1 | stored GPU b1..b9999999", "more than"),
        ("1 | stored GPU/x b1", "invalid literal"),
        ("2 | stored GPU b1", "no event of a source"),
        ("1 : stored GPU b1", "has not begun"),
        ("1 | cleared GPU", "no event"),
        ("<<<<<<< HEAD", "no event of a source"),
        ("source 1", "is there twice"),
    ],
)
def test_what_is_not_understood_is_refused(line: str, why: str) -> None:
    """A line that is passed over would be an event that is not compared: it is named with its number."""
    with pytest.raises(BaselineError, match=rf"x line 3: .*{why}"):
        read_baseline(["kvbus baseline 1", "source 1", line], name="x")


def test_another_version_is_refused() -> None:
    """It is still known for a baseline, so that nobody takes it for a log; so is an empty one."""
    assert is_baseline(b"kvbus baseline 2\n")
    assert not is_baseline(b'{"kind": 1}')
    for lines in (["kvbus baseline 2"], []):
        with pytest.raises(BaselineError):
            read_baseline(lines, name="x")
