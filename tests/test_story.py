"""The stories behind findings."""

from __future__ import annotations

from kvbus.audit import audit
from kvbus.story import AFTER, BEFORE, stories
from kvbus.testing import block, history
from tests.list_log import ListLog


def told(text: str, rule: str) -> list[tuple[int, list[str]]]:
    entries = history(text)
    report = audit(entries, [rule], profile="kvbus", capacities={"CPU": 2})
    found = stories(ListLog(entries), report)
    return [(story.block, [f"{step.what} {step.medium}" for step in story.steps]) for story in found]


def test_a_violation_tells_its_blocks_life() -> None:
    """Of the events that prove it only the block that the sentence names, in every tier."""
    assert told("g:+a,b c:+a | g:-a,b | g:+b g:-a,b", "refcount") == [
        (block("a"), ["stored GPU", "stored CPU", "removed GPU", "removed GPU"])
    ]


def test_the_parent_that_is_not_there_has_a_story_too() -> None:
    """A sentence that names two blocks tells two lives, as far as there is one."""
    found = told("g:+a | g:-a | g:+a>b", "parent")
    assert [where for where, _ in found] == [block("b"), block("a")]


def test_a_finding_about_no_block_has_no_story() -> None:
    """A hole in the numbers is about batches."""
    assert told("g:+a | gap(3) g:+b", "sequence") == []


def test_a_long_life_is_cut_around_the_witnesses() -> None:
    """What is left out before and after is counted."""
    rounds = " | ".join(["g:+a | g:-a"] * 20)
    entries = history(f"{rounds} | g:-a | {rounds}")
    (story,) = stories(ListLog(entries), audit(entries, ["refcount"]))
    assert (story.earlier, len(story.steps), story.later) == (39 - BEFORE, BEFORE + 2 + AFTER, 40 - AFTER)
    assert story.between == 0
    assert [step.position for step in story.steps][BEFORE : BEFORE + 2] == [39, 40]
