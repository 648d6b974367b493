"""``kvbus/known.py``: bringing the same in again adds nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from kvbus.events import Undecodable
from kvbus.known import Known
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

A = SourceId("a")
B = SourceId("b")


def batch(seq: int, content: bytes = b"", *, source: SourceId = A, epoch: int = 0) -> Received:
    payload = content or b"%d" % seq
    return Received(
        source, epoch, seq, payload, 1000 + seq, False, Undecodable("x", Raw(payload)), "unreadable"
    )


def loss(first: int, last: int, reason: str = "too_old", *, noticed_ns: int = 5) -> Loss:
    return Loss(A, 0, first, last, reason, noticed_ns)


def began(epoch: int = 0) -> EpochBegan:
    return EpochBegan(A, epoch, "seq", "", 7)


def test_what_is_there_is_passed_over() -> None:
    """The same entries a second time, noticed at another time, give nothing new."""
    entries: list[Entry] = [
        began(),
        batch(0),
        batch(1),
        loss(2, 4),
        batch(5),
        Stray(A, 0, 1, b"other", 9, "conflict"),
    ]
    known = Known(entries)
    again = [*entries[:3], loss(2, 4, noticed_ns=99), *entries[4:]]
    assert list(known.fresh(again)) == []
    assert known.already == 3


def test_what_is_new_goes_on_behind_it() -> None:
    """A file that has grown adds its new part only."""
    known = Known([began(), batch(0), batch(1)])
    assert list(known.fresh([began(), batch(0), batch(1), batch(2)])) == [batch(2)]


def test_a_number_with_other_bytes_is_kept_aside_once() -> None:
    """The same number with other bytes becomes one stray, however often it is brought."""
    known = Known([batch(0)])
    (stray,) = known.fresh([batch(0, b"other"), batch(0, b"other")])
    assert isinstance(stray, Stray)
    assert (stray.seq, stray.payload, stray.reason) == (0, b"other", "conflict")


def test_a_batch_behind_its_place_is_late() -> None:
    """A batch whose place has passed cannot go into the order any more."""
    (late,) = Known([batch(0), loss(1, 3), batch(4)]).fresh([batch(2)])
    assert isinstance(late, Stray)
    assert late.reason == "late"


def test_a_hole_that_nothing_explains_becomes_a_loss() -> None:
    """Lines that a filter thinned out say so themselves; a loss that is told is not told twice."""
    assert list(Known().fresh([batch(0), batch(3), loss(4, 5), batch(6)])) == [
        batch(0),
        Loss(A, 0, 1, 2, "no_replay", 1003),
        batch(3),
        loss(4, 5),
        batch(6),
    ]


def test_a_stream_may_begin_anywhere() -> None:
    """Before the first batch of a stream nothing is claimed to be missing."""
    assert list(Known().fresh([batch(500)])) == [batch(500)]


def test_messages_are_known_by_name_number_and_bytes() -> None:
    """A message whose stream is not known yet is found again under its source's name, in whatever epoch."""
    known = Known([batch(3, epoch=2)])
    assert known.has("a", 3, b"3")
    assert not known.has("a", 3, b"4")
    assert not known.has("b", 3, b"3")
    known.add("b", 3, b"3")
    assert known.has("b", 3, b"3")
    assert known.already == 2


STEPS = st.lists(
    st.one_of(
        st.builds(
            lambda seq, content, epoch, source: batch(seq, content, epoch=epoch, source=source),
            st.integers(0, 8),
            st.sampled_from([b"", b"x"]),
            st.integers(0, 2),
            st.sampled_from([A, B]),
        ),
        st.builds(lambda first, more: loss(first, first + more), st.integers(0, 8), st.integers(0, 3)),
        st.builds(began, st.integers(0, 2)),
    ),
    max_size=30,
)


@given(STEPS, STEPS)
def test_whatever_comes_the_order_holds(before: list[Entry], after: list[Entry]) -> None:
    """Any entries, in any order, come out with rising epochs and, in each, rising numbers."""
    known = Known()
    written = [*known.fresh(before), *known.fresh(after)]
    last: dict[SourceId, tuple[int, int]] = {}
    for entry in written:
        if isinstance(entry, Received):
            assert last.get(entry.source, (-1, -1)) < (entry.epoch, entry.seq)
            last[entry.source] = (entry.epoch, entry.seq)


@given(STEPS)
def test_nothing_is_added_twice(entries: list[Entry]) -> None:
    """What was written from some entries is all there is to write from them."""
    known = Known()
    written = list(known.fresh(entries))
    assert list(known.fresh(entries)) == []
    assert list(Known(written).fresh(written)) == []
