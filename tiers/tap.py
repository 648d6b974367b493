"""Somebody else's ``take_events``, listened to: whoever calls it gets what it gives, and so do we.

It is taken wholly and at once: a lazy ``take_events`` that is left half way may hand out the same events
again (vLLM's tiers). What was taken before it raises comes with the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from tiers.errors import TierValueError

NAME: Final = "take_events"


class Drained(Protocol):
    """All that is asked of what is listened to."""

    def take_events(self) -> Iterable[object]: ...


class Tap:
    """Inside its ``with`` block ``owner.take_events`` is this one's. ``on_taken`` hears of each call.

    Raises ``TierValueError`` if the owner is listened to already, or lets nobody set an attribute.
    """

    def __init__(self, owner: Drained) -> None:
        self.on_taken: Callable[[Sequence[object]], None] | None = None
        self._owner = owner
        self._take = owner.take_events
        self._taken: list[object] = []
        self._noted: list[object] = []
        self._had_its_own = NAME in getattr(owner, "__dict__", {})
        if isinstance(getattr(self._take, "__self__", None), Tap):
            raise TierValueError(
                f"this {type(owner).__name__} is attached already", next_step="Detach it first."
            )

    def take_events(self) -> list[object]:
        for event in self._take():
            self._taken.append(event)  # one by one: what came before a raise is kept
        taken, self._taken = self._taken, []
        self._noted += taken
        if self.on_taken is not None:
            self.on_taken(taken)
        return taken

    def noted(self) -> list[object]:
        """What was handed on since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def __enter__(self) -> Self:
        try:
            setattr(self._owner, NAME, self.take_events)
        except AttributeError as error:
            raise TierValueError(
                f"nobody can listen to this {type(self._owner).__name__}: {error}",
                next_step="Give its class a __dict__, or attach an object that forwards to it.",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._had_its_own:
            setattr(self._owner, NAME, self._take)
        else:
            delattr(self._owner, NAME)
