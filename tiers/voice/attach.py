"""A tier or manager that was not written for kvbus, put on the bus by one call: ``attach(manager)``.

It goes on being drained by whoever drained it, who gets the same events in the same order; each drain is
published besides, each tier's share on its own socket, under one timestamp. Only what goes on the wire is
read of an event: ``keys``, ``medium``, ``removed``, and of the rest what there is; vLLM's own will do. One
that cannot be read is counted, not published, and handed on all the same: watching breaks no engine, whatever
an event, a tier or a voice raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self

from msgspec import Struct

from kvbus.feed import Feed
from tiers.errors import TierValueError
from tiers.keys import OffloadKey
from tiers.voice.announcer import check_names
from tiers.voice.description import BlockDescription, Descriptions
from tiers.voice.tap import Drained, Tap
from tiers.voice.translation import Said, is_emit_seq, plain, translated
from tiers.voice.unsaid import Unsaid
from tiers.voice.voices import Address, Voice, Voices


class ForeignEvent(Struct, frozen=True):
    """Another project's event, as far as it goes on the wire."""

    keys: list[OffloadKey]
    medium: str
    removed: bool
    locality: str | None
    ownership: str | None
    removal_expected: bool
    emit_seq: int | None
    reason: str | None


def attach(
    manager: Drained,
    tiers: Mapping[str, Voice | Address] | None = None,
    *,
    topic: str = "",
    data_parallel_rank: int = 0,
    when_full: Literal["drop", "wait"] = "drop",
) -> Attachment:
    """Publish what ``manager`` is drained of, until ``Attachment.detach``.

    A manager with ``primary_tier`` and ``secondary_tiers`` gets a publisher a tier; any other is one tier.
    ``tiers``: a voice, or an ``Address`` for a publisher to be made, for each tier by name, the primary
    first. By default each takes free ports of this machine, named by its ``tier_type``, the first
    ``primary``. The rest as for ``Voices``.

    Raises ``TierValueError`` if the names are not as many as the tiers or the object cannot be watched,
    ``EndpointError`` and ``ConfigError``; then nothing has changed.
    """
    parts = _parts(manager)
    named = _default_names(parts) if tiers is None else tiers
    check_names(named, len(parts))
    with ExitStack() as undo:
        voices = Voices(named, topic=topic, data_parallel_rank=data_parallel_rank, when_full=when_full)
        undo.callback(voices.close)
        attachment = Attachment(manager, parts, voices=voices)
        undo.pop_all()
    return attachment


class Attachment:
    """A manager that is watched. ``detach``, or the end of the ``with`` block, leaves it as it was."""

    def __init__(self, manager: Drained, parts: Sequence[Drained], *, voices: Voices) -> None:
        self.descriptions = Descriptions()
        self._voices = voices
        self._unsaid = Unsaid()
        self._shares: list[list[object]] = [[] for _ in parts]
        with ExitStack() as taps:
            if parts[0] is manager:
                taps.enter_context(Tap(manager)).on_taken = self._take_alone
            else:
                for part, share in zip(parts, self._shares, strict=True):
                    taps.enter_context(Tap(part)).on_taken = share.extend
                taps.enter_context(Tap(manager)).on_taken = self._publish
            self._taps = taps.pop_all()

    @property
    def feeds(self) -> list[Feed]:
        """Where each tier's ``Publisher`` can be read, named as its tier, in tier order."""
        return self._voices.feeds

    def describe(self, key: OffloadKey, description: BlockDescription) -> None:
        """Say what a key stands for, before its store is drained. Raises ``TierValueError``."""
        self.descriptions.describe(key, description)

    def get_stats(self) -> Mapping[str, float]:
        """``Voices.get_stats``; those of the descriptions under ``descriptions.``; and the events that were
        handed on but not published: ``unreadable`` ones, ``unowned`` ones, which the manager gave and no tier
        did, and those of drains whose publishing ``failed``.
        """
        described = self.descriptions.get_stats().items()
        own = {f"descriptions.{name}": value for name, value in described}
        return {**self._voices.get_stats(), **self._unsaid.counts, **own}

    def detach(self) -> None:
        """Give the manager its own ``take_events`` back and close the publishers made. Safe to call twice.

        What it has not been drained of is left to whoever drains it next. So is what a drain that raised half
        way had taken: its own ``take_events`` is then back after that next drain, and what of it the tiers
        had given is published now.
        """
        self._publish(())
        self._taps.close()
        self._voices.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _take_alone(self, drained: Sequence[object]) -> None:
        self._shares[0].extend(drained)
        self._publish(drained)

    def _publish(self, drained: Sequence[object]) -> None:
        shares = [list(share) for share in self._shares]
        for share in self._shares:
            share.clear()
        given = sum(map(len, shares))
        if len(drained) > given:
            self._unsaid.note("unowned", "no tier gave it", count=len(drained) - given)
        try:
            readable = [list(self._readable(share)) for share in shares]
            self._voices.say(translated(readable, self.descriptions, unsaid=self._unsaid))
        except BaseException as error:
            self._unsaid.note("failed", error, count=given)
            if not isinstance(error, Exception):  # Ctrl-C is the application's
                raise

    def _readable(self, share: Iterable[object]) -> Iterator[Said]:
        for event in share:
            try:
                if not getattr(event, "metadata_only", False):  # vLLM: for the manager's own ears
                    yield _read(event)
            except Exception as error:  # an event is anybody's, and the engine waits for it
                self._unsaid.note("unreadable", error)


def _read(event: object) -> ForeignEvent:
    def found(name: str) -> object:
        return getattr(event, name, None)

    keys, medium, removed = found("keys"), plain(found("medium")), found("removed")
    # A collection: what can be read once only is the engine's.
    if not isinstance(keys, Collection) or medium is None or not isinstance(removed, bool):
        raise TypeError(f"{type(event).__name__} has no keys, medium or removed")
    number = found("emit_seq")
    return ForeignEvent(
        list(keys),
        medium,
        removed,
        plain(found("locality")),
        plain(found("ownership")),
        bool(found("removal_expected")),
        number if is_emit_seq(number) else None,
        plain(found("reason")),
    )


def _parts(manager: Drained) -> list[Drained]:
    try:
        primary = getattr(manager, "primary_tier", None)
        secondaries = getattr(manager, "secondary_tiers", None)
        return [manager] if primary is None or secondaries is None else [primary, *secondaries]
    except Exception as error:  # its properties may raise anything
        raise TierValueError(
            f"nobody can tell which tiers this {type(manager).__name__} has: {error}",
            next_step="Attach it when it is whole, or its tiers one by one.",
        ) from error


def _default_names(parts: Sequence[Drained]) -> dict[str, Voice | Address]:
    names: dict[str, Voice | Address] = {"primary": Address()}
    for ordinal, part in enumerate(parts[1:], start=1):
        name = _kind_of(part)
        numbered = (f"{name}-{number}" for number in itertools.count(ordinal))
        names[next(one for one in itertools.chain([name], numbered) if one not in names)] = Address()
    return names


def _kind_of(part: Drained) -> str:
    try:
        return plain(getattr(part, "tier_type", None)) or type(part).__name__
    except Exception:  # a type that nobody can say
        return type(part).__name__
