"""Listening to somebody else's ``take_events``: its caller gets what it gives, in the form it gives it in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tiers.errors import TierValueError
from tiers.voice.tap import Tap


class Tier:
    """Gives what it is told to give; ``fails``: raises in place of the event of that number, once."""

    def __init__(self, give: Callable[[list[object]], Any] = list) -> None:
        self.waiting: list[object] = []
        self.fails: int | None = None
        self._give = give

    def take_events(self) -> Any:
        waiting, self.waiting = self.waiting, []
        if self.fails is None:
            return self._give(waiting)
        fails, self.fails = self.fails, None
        return self._until(waiting[:fails])

    def _until(self, events: list[object]) -> Iterator[object]:
        yield from events
        raise OSError("not now")


class Interrupted(BaseException):
    """As Ctrl-C is: no ``Exception``."""


def heard_of(tap: Tap) -> list[list[object]]:
    heard: list[list[object]] = []
    tap.on_taken = lambda taken: heard.append(list(taken))
    return heard


@pytest.mark.parametrize("form", [list, tuple, deque, frozenset])
def test_a_collection_is_handed_on_itself(form: Callable[[list[object]], Any]) -> None:
    """The very object: whoever keeps it, empties it or compares it finds what was there without us."""
    given = form([1, 2])
    tier = Tier(lambda _: given)
    with Tap(tier) as tap:
        heard = heard_of(tap)
        assert tier.take_events() is given
    assert heard == [list(given)]


def test_an_iterator_stays_one() -> None:
    """``next`` works on what was made for it; it is all taken even if nobody goes on."""
    tier = Tier(iter)
    with Tap(tier) as tap:
        heard = heard_of(tap)
        tier.waiting += [1, 2]
        assert next(tier.take_events()) == 1
    assert heard == [[1, 2]]


@pytest.mark.parametrize("given", [None, 7])
def test_what_holds_no_events_is_handed_on(given: object) -> None:
    """A tier that gives None has nothing to say, and its caller knows how to take that."""
    tier = Tier(lambda _: given)
    with Tap(tier):
        assert tier.take_events() is given


def test_arguments_are_the_owners() -> None:
    """What the caller says reaches the method it meant."""

    class Choosy:
        def take_events(self, first: int = 0, *, count: int = 1) -> list[object]:
            return [first] * count

    choosy = Choosy()
    with Tap(choosy):
        assert choosy.take_events(5, count=2) == [5, 5]


@pytest.mark.parametrize("form", [list, tuple, iter])
def test_what_came_before_a_raise_comes_with_the_next_call(form: Callable[[list[object]], Any]) -> None:
    """First, and in the form of that call; it is heard of once."""
    tier = Tier(form)
    with Tap(tier) as tap:
        heard = heard_of(tap)
        tier.waiting, tier.fails = [1, 2, 3], 2
        with pytest.raises(OSError, match="not now"):
            tier.take_events()
        tier.waiting = [4]
        given = tier.take_events()
        assert isinstance(given, type(form([])))
        assert list(given) == [1, 2, 4]
        assert list(tier.take_events()) == []
    assert heard == [[1, 2, 4], []]


def test_what_was_taken_is_left_to_the_next_caller_after_the_end() -> None:
    """Taken half, listened to no more: the rest comes once, and then the owner is as it was."""
    tier = Tier()
    with Tap(tier) as tap:
        heard = heard_of(tap)
        tier.waiting, tier.fails = [1, 2], 1
        with pytest.raises(OSError, match="not now"):
            tier.take_events()
    tier.waiting = [3]
    assert tier.take_events() == [1, 3]
    assert "take_events" not in vars(tier)
    assert heard == []


def test_what_was_taken_survives_a_raise_after_the_end() -> None:
    """A tier that raises again keeps nobody's events."""
    tier = Tier()
    with Tap(tier):
        tier.waiting, tier.fails = [1, 2], 1
        with pytest.raises(OSError, match="not now"):
            tier.take_events()
    tier.waiting, tier.fails = [3, 4], 1
    with pytest.raises(OSError, match="not now"):
        tier.take_events()
    assert tier.take_events() == [1, 3]
    assert "take_events" not in vars(tier)


def test_what_is_left_can_be_listened_to_again() -> None:
    """A second tap over what the first one left: given once, heard once, nothing stays behind."""
    tier = Tier()
    with Tap(tier):
        tier.waiting, tier.fails = [1, 2], 1
        with pytest.raises(OSError, match="not now"):
            tier.take_events()
    with Tap(tier) as tap:
        heard = heard_of(tap)
        assert tier.take_events() == [1]
        assert tier.take_events() == []
    assert tier.take_events() == []
    assert "take_events" not in vars(tier)
    assert heard == [[1], []]


def test_an_interrupt_while_hearing_loses_nothing() -> None:
    """Ctrl-C comes through; the events it kept from the caller come with the next call, heard of once."""
    tier = Tier()
    with Tap(tier) as tap:

        def interrupt(_: object) -> None:
            raise Interrupted

        tap.on_taken = interrupt
        tier.waiting = [1]
        with pytest.raises(Interrupted):
            tier.take_events()
        heard = heard_of(tap)
        tier.waiting = [2]
        assert tier.take_events() == [1, 2]
    assert heard == [[2]]


def test_who_wraps_it_later_keeps_the_wrapper() -> None:
    """The end takes away what is ours only; the wrapper goes on working, unheard."""
    tier = Tier()
    with Tap(tier) as tap:
        heard = heard_of(tap)
        ours = tier.take_events
        tier.take_events = wrapper = lambda: [0, *ours()]  # type: ignore[method-assign]
    tier.waiting = [1]
    assert tier.take_events is wrapper
    assert tier.take_events() == [0, 1]
    assert heard == []


def test_a_method_in_a_slot_is_given_back() -> None:
    """Where the method is kept makes no difference."""

    class Slotted:
        __slots__ = ("take_events",)

        def __init__(self) -> None:
            self.take_events: Callable[[], list[object]] = lambda: [1]

    slotted = Slotted()
    own = slotted.take_events
    with Tap(slotted):
        assert slotted.take_events() == [1]
    assert slotted.take_events is own


def test_who_cannot_be_listened_to_is_refused() -> None:
    """No ``take_events``, one that is no method, one that raises, an owner that refuses or forgets ours."""

    class Refusing(Tier):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "take_events":
                raise TypeError("sealed")
            super().__setattr__(name, value)

    class Forgetting(Refusing):
        def __setattr__(self, name: str, value: object) -> None:
            if name != "take_events":
                super().__setattr__(name, value)

    class Raising:
        @property
        def take_events(self) -> Callable[[], list[object]]:
            raise RuntimeError("not yet")

    class Plain:
        take_events = 5

    owner: Any
    for owner in (Refusing(), Forgetting(), Raising(), Plain(), object(), None):
        with pytest.raises(TierValueError, match=f"nobody can listen to this {type(owner).__name__}"):
            Tap(owner).__enter__()


def test_an_owner_that_keeps_ours_for_good_is_not_disturbed() -> None:
    """It lets nobody take it away again: it hands on, and the end raises nothing."""

    class Keeping(Tier):
        def __delattr__(self, name: str) -> None:
            raise TypeError("kept")

    tier = Keeping()
    with Tap(tier) as tap:
        heard = heard_of(tap)
    tier.waiting = [1]
    assert tier.take_events() == [1]
    assert heard == []
