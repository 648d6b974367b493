"""What fits: what was given goes before what a publisher said, and that holds for its own epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kvbus.audit import audit
from kvbus.log import EpochBegan, PositionedEntry
from kvbus.testing import history
from kvbus.verdict import RuleVerdict


def told(text: str, *fits: dict[str, int]) -> list[PositionedEntry]:
    """A history whose epochs begin with these capacities, one after the other."""
    said = iter(fits)
    return [
        replace(at, entry=replace(at.entry, capacity=next(said))) if isinstance(at.entry, EpochBegan) else at
        for at in history(text)
    ]


def eviction(entries: list[PositionedEntry], given: dict[str, int] | None = None) -> RuleVerdict:
    (verdict,) = audit(entries, ["eviction"], capacities=given).rules
    return verdict


def places(verdict: RuleVerdict) -> list[tuple[int, int, int | None]]:
    return [(w.epoch, w.seq, w.event) for v in verdict.violations for w in v.witnesses]


def test_what_a_publisher_said_is_judged_without_a_flag() -> None:
    """The store that had no room is named; under any spelling of the medium."""
    verdict = eviction(told("g:+a,b | g:+c", {"gpu": 2}))
    assert (verdict.verdict, places(verdict)) == ("VIOLATED", [(0, 1, 0)])
    assert "has room for 2" in verdict.violations[0].because


@pytest.mark.parametrize(("given", "answer"), [({"GPU": 3}, "HOLDS"), ({"GPU": 1}, "VIOLATED")])
def test_what_is_given_goes_before_it(given: dict[str, int], answer: str) -> None:
    """Whoever gives a capacity knows better, whether it is more or less."""
    assert eviction(told("g:+a | g:+b,c", {"GPU": 2}), given).verdict == answer


def test_each_medium_and_each_publisher_for_itself() -> None:
    """A word about one tier says nothing of another, nor of another source's tier of that medium."""
    entries = told("@p g:+a,b c:+a,b | @q g:+a,b", {"CPU": 1}, {"GPU": 2})
    assert places(eviction(entries)) == [(0, 0, 1)]


def test_a_new_process_may_have_other_room() -> None:
    """Each epoch is judged by what was said when it began, and by nothing where nothing was."""
    entries = told("g:+a,b | restart g:+a,b | restart g:+a,b,c", {"GPU": 2}, {"GPU": 1}, {})
    assert places(eviction(entries)) == [(1, 0, 0)]


def test_a_word_that_comes_too_late_is_passed_over() -> None:
    """Blocks that were stored before it were not counted for it."""
    entries = told("g:+a,b", {})
    (began,) = [at for at in entries if isinstance(at.entry, EpochBegan)]
    late = replace(began, position=1, entry=replace(began.entry, capacity={"GPU": 2}))
    assert eviction([*entries, late, *told("g:+a,b | g:+c", {})[2:]]).verdict == "HOLDS"


def test_a_tier_that_is_full_and_never_removes_leaks() -> None:
    """What was said decides for `lifetime` too."""
    (verdict,) = audit(told("c:+a,b,c", {"CPU": 2}), ["lifetime"]).rules
    assert "has room for 2" in verdict.violations[0].because


@pytest.mark.parametrize(
    ("text", "room", "answer"),
    [
        ("g:+a | g:+a g:+a>b | g:-b g:-a g:+c g:+c>d", 2, "UNKNOWN"),
        ("g:+a,b | g:+a | g:-a | g:+c", 2, "UNKNOWN"),
        ("g:+a,b | g:+a | g:-a | g:+a,c", 2, "VIOLATED"),
        ("g:+a,b | g:+a | g:-a | g:+c | g:+a", 2, "VIOLATED"),
        ("g:+a,b | g:+a | g:-a | g:-a g:+c", 2, "HOLDS"),
        ("g:+a,b | g:+a | g:-a | g:-a | g:+c,d", 2, "VIOLATED"),
        ("g:+a,b | g:+a | g:-a | g:+c,d", 2, "VIOLATED"),
        ("g:+a,a | g:-a | clear | g:+b,c", 1, "VIOLATED"),
        ("g:+a,a | g:-a | restart g:+b,c", 1, "VIOLATED"),
        ("g:+a,a g/1:+a | g:-a | g/1:+b", 2, "UNKNOWN"),
        ("c:+a,a g:+a | c:-a | g:+b", 1, "VIOLATED"),
        ("@p g:+a,a | @p g:-a | @q g:+a,b", 1, "VIOLATED"),
    ],
)
def test_a_removal_that_leaves_copies_may_have_taken_the_last(text: str, room: int, answer: str) -> None:
    """Until its next store such a block is held only perhaps: too full with it is a doubt, without it a
    violation; another tier, source or life knows nothing of it.
    """
    assert eviction(history(text), {"GPU": room}).verdict == answer


def test_a_doubt_says_what_would_explain_it() -> None:
    """The store that went too far bears witness, once."""
    (doubt,) = eviction(history("g:+a,b | g:+a | g:-a | g:+c"), {"GPU": 2}).information
    assert [(w.seq, w.event) for w in doubt.witnesses] == [(3, 0)]
    assert "left copies by the count" in doubt.because


def test_a_real_pool_is_not_accused(capture_entries: Callable[[str], list[PositionedEntry]]) -> None:
    """An engine of 160 blocks that announces copies fits into its own pool."""
    entries = capture_entries("vllm032_gpu_bytes_salt_session_full_lora")
    assert eviction(entries, {"GPU": 160}).violation_count == 0


@pytest.mark.parametrize("reason", ["evicted", "deleted", "corrupt", "reset"])
def test_a_reason_explains_why_a_block_comes_and_goes_at_once(reason: str) -> None:
    """Whichever known one it is; a word that nobody knows explains nothing."""
    for word, findings in ((reason, 0), ("bored", 1)):
        told = eviction(history(f"c:+a c:-a!{word} c:+b")).information
        assert sum("in one batch" in finding.because for finding in told) == findings


def test_what_fits_decides_about_what_comes_and_goes_at_once() -> None:
    """Only where it is known: of this publisher, for this tier, in this epoch."""
    entries = told("g:+a g:-a c:+a c:-a | restart g:+b g:-b | @q g:+a g:-a", {"GPU": 1}, {"CPU": 1}, {})
    found = [w for finding in eviction(entries).information for w in finding.witnesses[1:]]
    assert [(w.source, w.epoch, w.event) for w in found] == [("engine", 0, 3), ("engine", 1, 1), ("q", 0, 1)]
    given = eviction(entries, {"GPU": 1}).information
    assert [w.event for finding in given for w in finding.witnesses[1:]] == [3]
