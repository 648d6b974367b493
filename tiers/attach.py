"""A tier or manager that was not written for kvbus, put on the bus by one call: ``attach(manager)``.

It goes on being drained by whoever drained it, who gets the same events in the same order; each drain is
published besides, each tier's share on its own socket, under one timestamp. Only what goes on the wire is
read of an event: ``keys``, ``medium``, ``removed``, and of the rest what there is; vLLM's own will do. One
that cannot be read is counted, not published, and handed on all the same: watching breaks no engine.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self

from msgspec import Struct

from kvbus.feed import Feed
from tiers.announcer import check_names, translated
from tiers.description import BlockDescription, Descriptions
from tiers.keys import GROUP_BYTES, OffloadKey
from tiers.tap import Drained, Tap
from tiers.translation import Said, plain
from tiers.voices import Address, Voice, Voices

log = logging.getLogger(__name__)


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
        self._counts: Counter[str] = Counter()
        with ExitStack() as taps:
            self._tiers = [taps.enter_context(Tap(part)) for part in parts]
            is_one_tier = parts[0] is manager
            self._whole = self._tiers[0] if is_one_tier else taps.enter_context(Tap(manager))
            self._whole.on_taken = self._publish
            self._taps = taps.pop_all()

    @property
    def feeds(self) -> list[Feed]:
        """Where each tier's ``Publisher`` can be read, named as its tier, in tier order."""
        return self._voices.feeds

    def describe(self, key: OffloadKey, description: BlockDescription) -> None:
        """Say what a key stands for, before its store is drained. Raises ``TierValueError``."""
        self.descriptions.describe(key, description)

    def get_stats(self) -> Mapping[str, float]:
        """``Voices.get_stats``; those of the descriptions under ``descriptions.``; and what was handed on but
        not published: ``unreadable`` events, and ``unowned`` ones, which the manager gave and no tier did.
        """
        described = self.descriptions.get_stats().items()
        own = {f"descriptions.{name}": value for name, value in described}
        return {**self._voices.get_stats(), **self._counts, **own}

    def detach(self) -> None:
        """Give the manager its own ``take_events`` back and close the publishers made. Safe to call twice.

        What it has not been drained of is left to whoever drains it next.
        """
        self._taps.close()
        self._voices.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _publish(self, drained: Sequence[object]) -> None:
        shares = [tap.noted() for tap in self._tiers]
        unowned = len(drained) - sum(map(len, shares))
        if unowned > 0:
            self._counts["unowned"] += unowned
        readable = [list(self._readable(share)) for share in shares]
        self._voices.say(translated(readable, self.descriptions))

    def _readable(self, share: Iterable[object]) -> Iterator[Said]:
        for event in share:
            try:
                if not getattr(event, "metadata_only", False):  # vLLM: for the manager's own ears
                    yield _read(event)
            except (AttributeError, TypeError, ValueError) as error:
                self._counts["unreadable"] += 1
                if self._counts["unreadable"].bit_count() == 1:  # told at 1, 2, 4, 8 …: seen, but no load
                    log.warning("event not published, %d so far: %s", self._counts["unreadable"], error)


def _read(event: object) -> ForeignEvent:
    def found(name: str) -> object:
        return getattr(event, name, None)

    keys, medium, removed = found("keys"), plain(found("medium")), found("removed")
    if not isinstance(keys, Iterable) or medium is None or not isinstance(removed, bool):
        raise TypeError(f"{type(event).__name__} has no keys, medium or removed")
    keys = list(keys)
    if any(not isinstance(key, bytes) or len(key) <= GROUP_BYTES for key in keys):
        raise ValueError(f"a key of {type(event).__name__} is not a block hash and a group")
    number = found("emit_seq")
    return ForeignEvent(
        keys,
        medium,
        removed,
        plain(found("locality")),
        plain(found("ownership")),
        bool(found("removal_expected")),
        number if isinstance(number, int) else None,
        plain(found("reason")),
    )


def _parts(manager: Drained) -> list[Drained]:
    primary = getattr(manager, "primary_tier", None)
    secondaries = getattr(manager, "secondary_tiers", None)
    return [manager] if primary is None or secondaries is None else [primary, *secondaries]


def _default_names(parts: Sequence[Drained]) -> dict[str, Voice | Address]:
    names: dict[str, Voice | Address] = {"primary": Address()}
    for ordinal, part in enumerate(parts[1:], start=1):
        name = str(getattr(part, "tier_type", type(part).__name__))
        names[f"{name}-{ordinal}" if name in names else name] = Address()
    return names
