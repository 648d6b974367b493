"""One engine's tiers on the bus, a publisher each, speaking in rounds: one drain, one timestamp.

A round in which any tier has something to say is published by every tier, empty or not, under the same
``ts``, so that a reader knows when it has a round whole (``kvbus.aggregator``); a round in which none has is
not published. ``ts`` goes up strictly, also where the clock does not. A voice that fails, or a clock that
does, costs nobody else a word. It knows events and no tiers.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal, NamedTuple, Protocol

from kvbus.dialects import MILLISECONDS_FROM
from kvbus.events import Event
from kvbus.feed import Feed
from kvbus.publisher import Publisher
from tiers.errors import TierContractError
from tiers.voice.unsaid import Unsaid

FREE_PORT: Final = "tcp://127.0.0.1:*"


class Voice(Protocol):
    """What speaks for one tier. ``Publisher`` is one. An ``Exception``, whichever, means: not said."""

    def publish(self, events: Sequence[Event], *, ts: float) -> None: ...


class Address(NamedTuple):
    """Where a tier's publisher is to be made; a free port gets its number when it is (``Voices.feeds``).

    ``capacity``: how many blocks fit into the tier's medium, as its events count them, for whoever checks.
    """

    endpoint: str = FREE_PORT
    replay_endpoint: str | None = FREE_PORT
    capacity: Mapping[str, int] | None = None


class Drain(NamedTuple):
    """What one drain gave, in tier order. ``ts`` in seconds since 1970; None: nobody had anything, nothing
    was published. ``unheard``: tiers whose share could not be published.
    """

    ts: float | None
    shares: list[list[Event]]
    unheard: tuple[str, ...] = ()


class Voices:
    """``tiers``: a voice for each tier by name, in order, or the address of a ``Publisher`` to be made.

    Made publishers are closed with ``close``; given voices are not. ``topic`` and ``data_parallel_rank`` as
    for ``Publisher``. ``when_full``: what a made publisher does with a batch when its queue (100 000
    batches) is full: ``"drop"`` never makes the engine wait; the batch uses up its number, so readers see a
    ``Loss``, and it is counted. ``"wait"`` is for a caller that has time and may lose nothing. Raises
    ``EndpointError`` and ``ConfigError``; nothing stays open then.
    """

    def __init__(
        self,
        tiers: Mapping[str, Voice | Address],
        *,
        topic: str = "",
        data_parallel_rank: int = 0,
        when_full: Literal["drop", "wait"] = "drop",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.names = tuple(tiers)
        self._voices: list[Voice] = []
        self._clock = clock
        self._last_ts = -math.inf
        self._counts: Counter[str] = Counter()
        self._unsaid = Unsaid()
        with ExitStack() as opened:
            for place in tiers.values():
                if isinstance(place, Address):
                    publisher = Publisher(
                        place.endpoint,
                        replay_endpoint=place.replay_endpoint,
                        topic=topic,
                        data_parallel_rank=data_parallel_rank,
                        when_full=when_full,
                        capacity=place.capacity,
                    )
                    self._voices.append(opened.enter_context(publisher))
                else:
                    self._voices.append(place)
            self._made = opened.pop_all()

    @property
    def feeds(self) -> list[Feed]:
        """Where each tier's ``Publisher`` can be read, named as its tier, in tier order."""
        found = zip(self.names, self._voices, strict=True)
        return [Feed(v.endpoint, v.replay_endpoint, source=n) for n, v in found if isinstance(v, Publisher)]

    def say(self, shares: list[list[Event]]) -> Drain:
        """Publish a share a tier, in tier order, under one ``ts``. A voice that fails is counted; the others
        are heard.
        """
        if len(shares) != len(self._voices):
            raise TierContractError(
                f"{len(shares)} shares for {len(self._voices)} tiers",
                next_step="Give each tier's share, an empty list where it has nothing.",
            )
        if not any(shares):
            return Drain(None, shares)
        ts = self._next_ts()
        self._counts["drains"] += 1
        unheard = []
        for name, voice, share in zip(self.names, self._voices, shares, strict=True):
            self._counts[f"events.{name}"] += len(share)
            try:
                voice.publish(share, ts=ts)
            except Exception as error:  # a voice is anybody's; the other tiers must be heard
                unheard.append(name)
                self._unsaid.note(f"dropped.{name}.unheard", error)
        return Drain(ts, shares, tuple(unheard))

    def _next_ts(self) -> float:
        self._last_ts = max(self._now(), math.nextafter(self._last_ts, math.inf))
        return self._last_ts

    def _now(self) -> float:
        """What the clock says, if that is a time; else the time of the last round, so that one wrong reading
        does not stay in every ``ts`` after it.
        """
        with suppress(Exception):  # the clock is the caller's, and what was taken must go out
            now = float(self._clock())
            if -MILLISECONDS_FROM <= now <= MILLISECONDS_FROM:
                return now
        self._counts["clock_faults"] += 1
        return time.time() if math.isinf(self._last_ts) else self._last_ts

    def get_stats(self) -> Mapping[str, float]:
        """``drains`` published; ``events.<tier>``; ``clock_faults``: readings that were no time in seconds;
        batches not published, ``dropped.<tier>.<cause>``: ``unheard`` (the voice failed), and a publisher's
        own: ``queue_full``, ``unencodable``, ``at_close``.
        """
        stats: dict[str, float] = {**self._counts, **self._unsaid.counts}
        for name, voice in zip(self.names, self._voices, strict=True):
            if isinstance(voice, Publisher):
                dropped = voice.counts().dropped
                stats |= {f"dropped.{name}.{cause}": count for cause, count in dropped.items() if count}
        return stats

    def close(self) -> None:
        """Close the publishers that were made here. Safe to call twice."""
        self._made.close()
