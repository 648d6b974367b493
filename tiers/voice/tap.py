"""Somebody else's ``take_events``, listened to: whoever calls it gets what it gives, and so do we.

It is taken wholly and at once: a lazy ``take_events`` that is left half way may hand out the same events
again (vLLM's tiers). It is handed on as it was given: a collection itself, an iterator as one, and what holds
no events (None) untouched. What was taken and not handed on, because the owner or the listener raised, comes
with the next call, also after we have stopped listening. It reads no event.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

from tiers.errors import TierValueError

NAME: Final = "take_events"


class Drained(Protocol):
    """All that is asked of what is listened to."""

    def take_events(self) -> Iterable[object]: ...


class Tap:
    """Inside its ``with`` block ``owner.take_events`` is this one's. ``on_taken`` hears of each call.

    Afterwards the owner has its own again: at once, or, where something taken is still owed to it, after the
    next call. Raises ``TierValueError`` if the owner is listened to already or nobody can listen to it.
    """

    def __init__(self, owner: Drained) -> None:
        self.on_taken: Callable[[Sequence[object]], None] | None = None
        self._owner = owner
        self._take = _method_of(owner)
        self._taken: list[object] = []
        self._owed: list[object] = []
        self._had_its_own = _is_its_own(owner)
        self._listens = False

    def take_events(self, *args: object, **named: object) -> object:
        """What the owner gives, after what is owed from before; in the form in which it gives it."""
        given = self._take(*args, **named)
        is_whole = not (self._taken or self._owed)
        try:
            found = iter(given)  # type: ignore[call-overload]
        except TypeError:
            if is_whole:
                return given
            found = iter(())
        for event in found:
            self._taken.append(event)  # one by one: what came before a raise is kept
        self._hear()
        owed, self._owed = self._owed, []
        return given if is_whole and isinstance(given, Sequence | Set) else _like(given, owed)

    def _hear(self) -> None:
        taken, self._taken = self._taken, []
        self._owed += taken  # until they are handed on: the listener may be interrupted
        if not self._listens:
            self._give_back()
            return
        if self.on_taken is not None:
            self.on_taken(taken)

    def __enter__(self) -> Self:
        if (tap := _tap_of(self._owner)) is not None and tap._listens:
            raise TierValueError(
                f"this {type(self._owner).__name__} is attached already", next_step="Detach it first."
            )
        try:
            setattr(self._owner, NAME, self.take_events)
        except Exception as error:  # whatever its class does with attributes
            raise _unheard_of(self._owner, error) from error
        if _tap_of(self._owner) is not self:
            raise _unheard_of(self._owner, "it does not keep the attribute")
        self._listens = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listens = False
        if not (self._taken or self._owed):
            self._give_back()

    def _give_back(self) -> None:
        with suppress(Exception):  # who lets nobody take it away keeps it: it only hands on now
            if _tap_of(self._owner) is not self:
                return  # somebody has put theirs over it, and calls this one
            if self._had_its_own:
                setattr(self._owner, NAME, self._take)
            else:
                delattr(self._owner, NAME)


def _method_of(owner: object) -> Callable[..., object]:
    try:
        method = getattr(owner, NAME)
    except Exception as error:  # a property may raise anything
        raise _unheard_of(owner, error) from error
    if not callable(method):
        raise _unheard_of(owner, f"its {NAME} is a {type(method).__name__}")
    return method  # type: ignore[no-any-return]


def _is_its_own(owner: object) -> bool:
    """Whether the method is the object's rather than its class's: in its ``__dict__``, or in a slot."""
    return NAME in getattr(owner, "__dict__", {}) or inspect.isdatadescriptor(
        inspect.getattr_static(type(owner), NAME, None)
    )


def _tap_of(owner: object) -> Tap | None:
    listener = getattr(getattr(owner, NAME, None), "__self__", None)
    return listener if isinstance(listener, Tap) else None


def _like(given: object, events: list[object]) -> Iterable[object]:
    if isinstance(given, tuple):
        return tuple(events)
    return iter(events) if isinstance(given, Iterator) else events


def _unheard_of(owner: object, because: Exception | str) -> TierValueError:
    return TierValueError(
        f"nobody can listen to this {type(owner).__name__}: {because}",
        next_step="Give it a take_events that can be replaced, or attach an object that forwards to it.",
    )
