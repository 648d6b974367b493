"""``kvbus/comparison.py``: the same order, or where it parts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvbus.baseline import read_baseline, written
from kvbus.comparison import compare
from kvbus.log import Entry, PositionedEntry
from kvbus.telling import Telling, telling
from tests.logs import histories, numbered
from tests.tellings import pair, renamed, tell, versus, without

CAPTURES = ("vllm032_kvmanager_oracle", "vllm032_restart", "vllm011_gpu_int", "sglang0523_radix")


def test_a_hole_that_nothing_declares_is_a_difference() -> None:
    """Whatever fell into it: the same events around it are not the same order, unless holes are ignored."""
    assert not versus("+a | +b", "+a | gap(1) +b").same
    assert not versus("+a | lost(1) +b", "+a | gap(1) +b").same
    assert versus("+a | gap(1) +b", "+a | gap(1) +b").same
    assert versus("+a | +b", "+a | gap(1) +b", "losses").same
    assert versus("+a | lost(1) +b", "+a | gap(1) +b", "reasons").same


@settings(deadline=None)
@given(histories(), st.integers(1, 2**64 - 1))
def test_hashes_and_names_are_no_difference(entries: list[Entry], mask: int) -> None:
    """A log is the same as itself under other hashes, and the same both ways round."""
    told = telling([PositionedEntry(*one) for one in numbered(entries)])
    other = renamed(told, lambda block: block ^ mask)
    assert compare(told, other).same
    assert compare(other, told).same


@settings(deadline=None)
@given(histories(), histories())
def test_the_same_is_what_is_written_alike(one: list[Entry], other: list[Entry]) -> None:
    """Two logs are the same exactly where their baselines are, source by source: two ways to one answer."""
    a, b = (telling([PositionedEntry(*e) for e in numbered(entries)]) for entries in (one, other))
    found = compare(a, b)
    for each in found.pairs:
        texts = [
            [line.partition(" ")[2] for line in written(_alone(told, events)) if line[0].isdecimal()]
            for told, events in ((a, each.a), (b, each.b))
        ]
        assert (each.parting is None) == (texts[0] == texts[1])


def _alone(told: Telling, events: object) -> Telling:
    return structs.replace(told, events=events)


def test_where_they_part() -> None:
    """The first event that differs, how many were the same before it, and what was counted after it."""
    found = pair("+a +b | -a +c", "+a +b | -b +c")
    assert found.parting is not None
    assert found.difference is not None
    assert found.parting.same == 2
    assert [event.what for event in (*found.parting.a, *found.parting.b)] == ["removed", "removed"]
    assert (found.difference.missing_count, found.difference.extra_count) == (1, 1)


@pytest.mark.parametrize(("a", "b"), [("+a | -a", "+a"), ("+a", "+a | -a"), ("+a", ".")])
def test_one_that_ends_early(a: str, b: str) -> None:
    """Where one side is at its end it has nothing to show."""
    found = pair(a, b)
    assert found.parting is not None
    assert [len(found.parting.a), len(found.parting.b)] == ([1, 0] if len(a) > len(b) else [0, 1])


def test_sources_are_told_by_their_tiers() -> None:
    """Engines are compared with their like, whatever they are called; one that is missing is told."""
    found = versus("@x#0 +a | @y#1 +b | @z c:+c", "@q#1 +b | @p#0 +a")
    assert [(each.media, each.rank, each.parting is None) for each in found.pairs] == [
        *((["GPU"], 0, True), (["GPU"], 1, True), (["CPU"], -1, False))
    ]
    assert not found.same


def test_engines_are_not_ordered_against_each_other() -> None:
    """Tiers of one engine are."""
    assert versus("@x#0 +a | @y#1 +b", "@y#1 +b | @x#0 +a").same
    assert not versus("@e/cpu c:+a | @e/fs s:+a", "@e/fs s:+a | @e/cpu c:+a").same


@pytest.mark.parametrize("name", CAPTURES)
def test_real_engines_are_like_themselves(
    name: str, capture_entries: Callable[[str], list[PositionedEntry]]
) -> None:
    """With other hashes and as a baseline; an event that is gone is found, and nothing else (mutants)."""
    told = telling(capture_entries(name))
    baseline = read_baseline(written(told), name="x")
    other = renamed(told, lambda block: block ^ 0xABCDEF)
    assert compare(told, other).same
    assert compare(baseline, other).same
    for seed in range(3):
        place = random.Random(seed).randrange(len(told.events))
        (found,) = (each for each in compare(told, without(told, [place])).pairs if each.parting)
        assert found.difference is not None
        counts = found.difference
        assert (counts.missing_count, counts.extra_count, counts.reordered) == (1, 0, 0)
        assert not compare(baseline, without(other, [place])).same


@pytest.mark.parametrize("name", CAPTURES)
def test_a_swap_in_a_real_stream_is_one_move(
    name: str, capture_entries: Callable[[str], list[PositionedEntry]]
) -> None:
    """Two events of one batch turned round: one is reordered; they are the same where that is ignored."""
    told = telling(capture_entries(name))
    events = list(told.events)
    at = next(
        n for n in range(len(events) // 2, len(events)) if events[n].batch == events[n - 1].batch
        and events[n].blocks != events[n - 1].blocks
    )  # fmt: skip
    events[at - 1], events[at] = events[at], events[at - 1]
    (found,) = (each for each in compare(told, structs.replace(told, events=events)).pairs if each.parting)
    assert found.difference is not None
    assert (found.difference.missing_count, found.difference.reordered) == (0, 1)
    assert compare(told, structs.replace(told, events=events), {"reorder-within-batch"}).same


def test_empty_logs_are_the_same() -> None:
    """Nothing is like nothing."""
    assert compare(tell(""), tell("")).same
