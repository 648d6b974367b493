"""What fits: what was given goes before what a publisher said, and that holds for its own epoch."""

from __future__ import annotations

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
