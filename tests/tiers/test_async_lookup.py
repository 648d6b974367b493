"""Questions about blocks that a tier does not know: asked once, answered to all who wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.words import k, keys
from tiers import OffloadKey
from tiers.errors import TierValueError
from tiers.storage.async_lookup import AsyncLookup


def test_a_question_goes_out_once() -> None:
    """However many ask, however often, a block is asked about once, at the next flush, in order."""
    asks = AsyncLookup()
    for name, request in [("b", "x"), ("a", "x"), ("b", "y"), ("b", "x")]:
        assert asks.ask(k(name), request, now=0.0)
    assert asks.flush() == [(0, keys("b a"))]
    assert asks.ask(k("a"), "z", now=0.0)
    assert asks.flush() == []
    asks.check_integrity()


def test_a_no_is_for_those_who_asked() -> None:
    """Those who waited are told no until they are over; a later request asks anew."""
    asks = AsyncLookup()
    asks.ask(k("a"), "x", now=0.0)
    asks.ask(k("a"), "y", now=0.0)
    ((batch, asked),) = asks.flush()
    assert asks.answered(batch, dict.fromkeys(asked, False), now=1.0) == {}
    assert asks.is_missing(k("a"), "x")
    assert asks.is_missing(k("a"), "y")
    assert not asks.is_missing(k("a"), "z")
    asks.forget("x")
    assert not asks.is_missing(k("a"), "x")


def test_a_yes_names_who_waits() -> None:
    """A block that is there comes with the requests that wait for it; nobody waiting, no answer."""
    asks = AsyncLookup()
    for name, request in [("a", "x"), ("a", "y"), ("b", "y")]:
        asks.ask(k(name), request, now=0.0)
    ((batch, asked),) = asks.flush()
    asks.forget("y")
    asks.check_integrity()
    assert asks.answered(batch, dict.fromkeys(asked, True), now=1.0) == {k("a"): {"x"}}
    assert not asks.is_missing(k("a"), "x")


def test_an_answer_belongs_to_its_batch() -> None:
    """A question withdrawn and asked again is not answered by the older batch."""
    asks = AsyncLookup()
    asks.ask(k("a"), "x", now=0.0)
    ((old, asked),) = asks.flush()
    asks.withdraw(k("a"))
    asks.withdraw(k("nobody"))
    asks.ask(k("a"), "x", now=0.0)
    ((new, _),) = asks.flush()
    assert asks.answered(old, dict.fromkeys(asked, True), now=1.0) == {}
    assert asks.answered(old, dict.fromkeys(asked), now=1.0) == {}
    assert asks.answered(new, dict.fromkeys(asked, True), now=1.0) == {k("a"): {"x"}}
    asks.check_integrity()


def test_a_withdrawn_question_is_not_sent() -> None:
    """Of what was withdrawn before the flush nothing goes out; of what came back, one question."""
    asks = AsyncLookup()
    asks.ask(k("a"), "x", now=0.0)
    asks.ask(k("b"), "x", now=0.0)
    asks.withdraw(k("a"))
    asks.withdraw(k("b"))
    asks.ask(k("b"), "x", now=0.0)
    assert asks.flush() == [(0, keys("b"))]


def test_what_nobody_knows_is_asked_again() -> None:
    """A block that could not be asked about goes out once more, alone; three times in vain are a no."""
    asks = AsyncLookup()
    asks.ask(k("a"), "x", now=0.0)
    asks.ask(k("b"), "x", now=0.0)
    ((batch, _),) = asks.flush()
    assert asks.answered(batch, {k("a"): None, k("b"): True}, now=1.0) == {k("b"): {"x"}}
    for _ in range(2):
        asks.check_integrity()
        assert not asks.is_missing(k("a"), "x")
        ((batch, asked),) = asks.flush()
        assert asked == keys("a")
        assert asks.answered(batch, {k("a"): None}, now=1.0) == {}
    assert asks.is_missing(k("a"), "x")
    assert asks.flush() == []
    assert asks.get_stats()["lookup_async_delays"] == 2


def test_a_failed_load_is_a_miss_while_the_request_lives() -> None:
    """Blocks marked after a failed load are missing for that request alone; the dead are not remembered."""
    asks = AsyncLookup()
    asks.begin("x")
    asks.mark_miss(keys("a b"), "x")
    asks.mark_miss(keys("a"), "dead")
    assert asks.is_missing(k("b"), "x")
    assert not asks.is_missing(k("a"), "dead")


def test_the_number_of_questions_is_bounded() -> None:
    """Beyond the bound a question is refused and counted; batches have a bound of their own."""
    asks = AsyncLookup(max_open=3, keys_a_batch=2)
    assert [asks.ask(k(name), "x", now=0.0) for name in "abcd"] == [True, True, True, False]
    assert asks.ask(k("a"), "y", now=0.0)
    assert asks.get_stats()["lookups_dropped.full"] == 1
    assert asks.flush() == [(0, keys("a b")), (1, keys("c"))]
    for wrong in ({"max_open": 0}, {"keys_a_batch": 0}):
        with pytest.raises(TierValueError):
            AsyncLookup(**wrong)


def test_the_wait_is_measured() -> None:
    """The delay is from the first asking to the answer, once a block."""
    asks = AsyncLookup()
    asks.ask(k("a"), "x", now=1.0)
    asks.ask(k("a"), "y", now=2.0)
    asks.ask(k("b"), "y", now=2.0)
    ((batch, _),) = asks.flush()
    asks.answered(batch, {k("a"): True, k("b"): False}, now=4.0)
    stats = asks.get_stats()
    assert (stats["lookup_async_delay_seconds"], stats["lookup_async_delays"]) == (5.0, 2)
    assert stats["lookups_open"] == 0


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "withdraw", "flush", "answer", "forget", "begin"]),
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
    )
)


@given(CALLS)
def test_no_request_waits_for_nothing(calls: list[tuple[str, str, str]]) -> None:
    """After every call each waiting request is answered by some batch to come, or by one under way."""
    asks, out = AsyncLookup(keys_a_batch=2), list[tuple[int, list[OffloadKey]]]()
    for call, name, request in calls:
        match call:
            case "ask":
                asks.ask(k(name), request, now=0.0)
            case "withdraw":
                asks.withdraw(k(name))
            case "flush":
                out += asks.flush()
            case "answer" if out:
                batch, asked = out.pop()
                asks.answered(batch, {key: key == k(name) or None for key in asked}, now=1.0)
            case "forget":
                asks.forget(request)
            case "begin":
                asks.begin(request)
        asks.check_integrity()
    out += asks.flush()
    for batch, asked in out:
        asks.answered(batch, dict.fromkeys(asked, False), now=1.0)
    assert asks.get_stats()["lookups_open"] == 0
