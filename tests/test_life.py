"""The life of one block."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.life import Holding, Step, lives
from kvbus.residency import Residency
from kvbus.testing import block, history
from tests.audit.histories import HISTORIES
from tests.list_log import ListLog, in_a_file, in_order

A = block("a")


def told(text: str, *, last: int | None = None) -> list[Step]:
    return lives(ListLog(history(text)), [A], last=last).steps(A)


def short(step: Step) -> str:
    words = [step.source.source, str(step.position), step.what, step.medium, step.reason, step.note]
    return " ".join(word for word in words if word)


def test_all_that_was_said_of_it_is_told_in_order() -> None:
    """Who stored it where, which copies came and went, why, and what swept it away."""
    text = "@p g:+a,b | g:+a | @q c:+a | @p g:-a | @q c:-a!evicted c:-a | @p clear | g:+a | restart ."
    assert list(map(short, told(text))) == [
        "p 0 stored GPU",
        "p 1 stored GPU a further copy, or announced again",
        "q 2 stored CPU",
        "p 3 removed GPU copies stay",
        "q 4 removed CPU evicted",
        "q 4 removed CPU it was not known to be there",
        "p 5 cleared GPU",
        "p 6 stored GPU",
        "p 7 restarted GPU",
    ]


def test_a_step_says_where_it_stands() -> None:
    """Epoch, seq, index in the batch, position, and both clocks."""
    step = told("@p#3 g:+b | seq(7) g:-b g:+a | @q . | @p#3 c:+a", last=1)[-1]
    assert (step.source.rank, step.epoch, step.seq, step.event, step.position) == (3, 0, 7, 1, 1)
    assert (step.copies, step.ts) == (1, 1_700_000_000.001)
    assert step.received_ns == round(1_700_000_000.001 * 1e9) + 500_000


def test_holes_are_told_of_the_sources_that_name_it() -> None:
    """Another source's hole is no matter of this block; one before its first store is."""
    steps = told("@p . | lost(2) g:+b | g:+a | @q . | lost(1) g:+b")
    assert [step.what for step in steps] == ["missed", "stored"]
    assert steps[0].note == "batches 1 to 2 missing (no_replay)"


def held(text: str) -> dict[str, Holding]:
    found = lives(ListLog(history(text)), [A]).holdings(A)
    return {f"{one.source.source} {one.medium}": one for one in found}


def test_a_holding_names_the_store_that_brought_it_in() -> None:
    """Not a copy that came later; after a removal and a new store, the new one."""
    found = held("@p g:+a | g:+a | c:+a | c:-a | c:+a")
    assert {name: one.since and one.since.position for name, one in found.items()} == {"p GPU": 0, "p CPU": 4}
    assert found["p GPU"].copies == 2
    assert held("g:+a | g:-a")["engine GPU"].since is None


@pytest.mark.parametrize(
    ("text", "gpu", "cpu"),
    [
        ("g:+a c:+a | lost(1) .", True, True),
        ("g:+a c:+a | lost(1) g:+a", False, True),
        ("g:+a c:+a | lost(1) clear", False, True),
        ("g:+a c:+a | lost(1) g:-a", True, True),
        ("g:+a c:+a | lost(1) . | restart .", False, False),
        ("g:+a c:+a | ? ", True, True),
        ("g:+a c:+a | @q lost(1) .", False, False),
    ],
)
def test_a_hole_makes_it_uncertain_until_it_is_heard_of_again(text: str, gpu: bool, cpu: bool) -> None:
    """A store, a clear of its GPU, a new epoch make it known again; a removal does not."""
    found = held(text)
    assert (found["engine GPU"].doubt is not None, found["engine CPU"].doubt is not None) == (gpu, cpu)


@settings(max_examples=40, deadline=None)
@given(text=HISTORIES, upto=st.integers(0, 14))
def test_copies_are_those_of_the_slow_fold(text: str, upto: int) -> None:
    """For every block and tier, at any place of any history."""
    entries = history(text)
    names = [block(name) for name in "abcd"]
    log = ListLog(entries)
    last = min(upto, log.batch_count() - 1)
    residency = Residency()
    for at in log.entries(0, last):
        residency.fold(at)
    followed = lives(log, names, last=last)
    for name in names:
        for one in followed.holdings(name):
            assert one.copies == residency.count(one.source, one.medium, one.group, name)
            assert (one.since is None) is (one.copies == 0)


@settings(max_examples=4, deadline=None)
@given(text=st.lists(HISTORIES.filter(bool), min_size=2, max_size=4).map(in_order))
def test_a_file_tells_the_same_life(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Read through its columns, of which most are left out, a log says what its entries say."""
    entries = history(text)
    with in_a_file(entries, Path(tmp_path_factory.mktemp("life")) / "x.duckdb") as log:
        followed = lives(log, [A])
        slow = lives(ListLog(entries), [A])
        assert (followed.steps(A), followed.holdings(A)) == (slow.steps(A), slow.holdings(A))
