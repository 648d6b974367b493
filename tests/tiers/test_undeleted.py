"""Blocks that could not be deleted: when they are tried again, and who may be evicted meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.words import k, keys
from tiers import OffloadKey
from tiers.storage.undeleted import LONGEST_PAUSE_S, STUCK_IN_A_ROW, TRIED_AT_ONCE, Undeleted


def test_a_stuck_block_is_tried_ever_more_seldom() -> None:
    """After 1, 2, 4 … seconds, and at last once a minute; each time once."""
    undeleted, now, pauses = Undeleted(), 0.0, list[float]()
    for _ in range(9):
        undeleted.failed(k("a"), now)
        pause = next(pause for pause in (1, 2, 4, 8, 16, 32, 60, 61) if undeleted.due(now + pause))
        assert undeleted.due(now + 1000) == []
        pauses.append(pause)
        now += pause
        undeleted.check_integrity()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_block_that_is_gone_is_not_tried() -> None:
    """Deleted after all, it has no place in the queue; stuck anew, it has one, and begins anew."""
    undeleted = Undeleted()
    for _ in range(2):
        undeleted.failed(k("a"), 0.0)
        undeleted.deleted(k("a"))
    assert undeleted.due(1000.0) == []
    undeleted.put_off(k("a"), 0.0)
    undeleted.deleted(k("a"))
    undeleted.put_off(k("a"), 0.0)
    assert undeleted.due(1.0) == keys("a")
    assert len(undeleted) == 1


def test_few_are_tried_at_once() -> None:
    """However many are stuck, a step tries at most 64; nobody is forgotten."""
    undeleted = Undeleted()
    for n in range(TRIED_AT_ONCE + 10):
        undeleted.put_off(k(str(n)), 0.0)
    assert [len(undeleted.due(1.0)) for _ in range(3)] == [TRIED_AT_ONCE, 10, 0]


def test_where_nothing_can_be_deleted_few_are_evicted() -> None:
    """Two different blocks stuck in a row make evictions single and seldom; one that goes ends that."""
    undeleted = Undeleted()
    for n in range(STUCK_IN_A_ROW - 1):
        assert undeleted.may_evict(0.0)
        undeleted.failed(k(str(n)), 0.0)
        undeleted.failed(k(str(n)), 0.0)  # the same block again is no news
    assert undeleted.may_evict(0.0)
    undeleted.failed(k("last"), 0.0)
    assert [undeleted.may_evict(now) for now in (0.0, 0.9, 1.0, 1.1, 2.9, 3.0, 3.1)] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    undeleted.deleted(k("another"))
    assert undeleted.may_evict(3.1)
    undeleted.check_integrity()


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "put_off", "deleted", "due", "evict"]),
        st.sampled_from("abcdefghij"),
        st.floats(0, 100),
    )
)


@given(CALLS)
def test_every_stuck_block_is_due_some_day(calls: list[tuple[str, str, float]]) -> None:
    """Whatever happened, a block that is stuck and not being tried is due within the longest pause, once."""
    undeleted, now, waiting = Undeleted(), 0.0, set[OffloadKey]()
    for call, name, seconds in calls:
        now += seconds
        match call:
            case "failed" | "put_off":
                (undeleted.failed if call == "failed" else undeleted.put_off)(k(name), now)
                waiting.add(k(name))
            case "deleted":
                undeleted.deleted(k(name))
                waiting.discard(k(name))
            case "due":
                waiting -= set(undeleted.due(now))
            case "evict":
                undeleted.may_evict(now)
        undeleted.check_integrity()
    due = undeleted.due(now + LONGEST_PAUSE_S)
    assert sorted(due) == sorted(waiting)
