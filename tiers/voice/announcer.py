"""The tiers' voice: takes what each tier has to say, makes it self-describing, and publishes it as one round.

It owns no tier and makes no event. On the receiving side ``kvbus.Aggregator`` gives back, from one socket a
tier, exactly what ``take_events()`` gave in the process: the GPU's events, the primary's, then each secondary
tier's, in their order. An event that cannot be read is counted and costs no other its place. Called on the
scheduler's thread, once a step; encoding and sending are the publishers' threads' work.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Protocol, Self

from kvbus.events import Event
from kvbus.feed import Feed
from tiers.errors import TierContractError, TierValueError
from tiers.keys import OffloadKey
from tiers.manager import OffloadingManager
from tiers.offloading_event import OffloadingEvent
from tiers.voice.description import BlockDescription, Descriptions
from tiers.voice.translation import translated
from tiers.voice.unsaid import Unsaid
from tiers.voice.voices import Address, Drain, Voice, Voices


class EventSource(Protocol):
    """A tier whose events are on the wire as it makes them: the GPU's block pool."""

    def take_events(self) -> Iterable[Event]: ...
    def number_events(self, numbers: Iterator[int]) -> None: ...


class Announcer:
    """Publishes what ``gpu`` (if there is one) and the tiers of ``manager`` say.

    ``tiers``: a voice, or an ``Address`` for a publisher to be made, for each tier by name, in the order of
    ``take_events()``: ``gpu``, primary, secondaries. ``topic``, ``data_parallel_rank``, ``when_full``: see
    ``Voices``. With a ``gpu``, one counter numbers its events and the manager's (``emit_seq``). Raises
    ``TierValueError`` if the names are not as many as the tiers, ``EndpointError`` and ``ConfigError``.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        tiers: Mapping[str, Voice | Address],
        *,
        gpu: EventSource | None = None,
        descriptions: Descriptions | None = None,
        topic: str = "",
        data_parallel_rank: int = 0,
        when_full: Literal["drop", "wait"] = "drop",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._count = 1 + len(getattr(manager, "secondary_tiers", ()))
        check_names(tiers, self._count + (gpu is not None))
        self.descriptions = Descriptions() if descriptions is None else descriptions
        self._manager = manager
        self._gpu = gpu
        self._gpu_taken: list[Event] = []
        self._unsaid = Unsaid()
        self._closed = False
        self._voices = Voices(
            tiers, topic=topic, data_parallel_rank=data_parallel_rank, when_full=when_full, clock=clock
        )
        if gpu is not None:
            numbers = itertools.count()
            gpu.number_events(numbers)
            manager.number_events(numbers)

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers, in order: what an ``Aggregator`` is given."""
        return self._voices.names

    @property
    def feeds(self) -> list[Feed]:
        """Where each tier's ``Publisher`` can be read: what a ``Subscriber`` is given."""
        return self._voices.feeds

    def describe(self, key: OffloadKey, description: BlockDescription) -> None:
        """Say what a key stands for, when its store is prepared. Raises ``TierValueError``."""
        self.descriptions.describe(key, description)

    def drain(self) -> Drain:
        """Take every tier's events, and publish them as one round; nothing if no tier has any.

        If a tier raises, so does this; what was taken before it comes with the next drain.
        ``TierContractError`` once closed, and if the manager does not give a share a tier: nobody can say
        whose those events are, and they are counted.
        """
        if self._closed:
            raise TierContractError("the announcer is closed", next_step="Drain before you close it.")
        if self._gpu is not None:
            self._gpu_taken.extend(self._gpu.take_events())
        shares = translated(self._taken_by_tier(), self.descriptions, unsaid=self._unsaid)
        if self._gpu is not None:
            shares.insert(0, self._gpu_taken)
            self._gpu_taken = []
        return self._voices.say(shares)

    def _taken_by_tier(self) -> Sequence[Sequence[OffloadingEvent]]:
        taken = self._manager.take_events_by_tier()
        if len(taken) != self._count:
            problem = f"{len(taken)} shares for {self._count} tiers"
            self._unsaid.note("unowned", problem, count=sum(map(len, taken)))
            raise TierContractError(problem, next_step="Give one a tier, empty where it has nothing.")
        return taken

    def get_stats(self) -> Mapping[str, float]:
        """``Voices.get_stats``; those of the descriptions under ``descriptions.``; and the events that could
        not be published: ``unreadable`` ones, and ``unowned`` ones of a drain without a share a tier.
        """
        described = self.descriptions.get_stats().items()
        own = {f"descriptions.{name}": value for name, value in described}
        return {**self._voices.get_stats(), **self._unsaid.counts, **own}

    def close(self) -> None:
        """Drain once more, and close the publishers that were made here, even if a tier raises."""
        if self._closed:
            return
        with ExitStack() as at_last:
            at_last.callback(self._voices.close)
            at_last.callback(setattr, self, "_closed", True)
            self.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self.descriptions.check_integrity()
        assert not self._gpu_taken or self._gpu is not None, "events of a GPU that is not there"


def check_names(tiers: Mapping[str, object], count: int) -> None:
    if len(tiers) != count:
        raise TierValueError(
            f"{len(tiers)} names ({', '.join(tiers)}) for {count} tiers",
            next_step="Name each tier once: the GPU's if there is one, the primary, each secondary.",
        )
