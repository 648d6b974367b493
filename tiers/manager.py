"""The protocol between a scheduler and whatever keeps blocks outside the GPU: bookkeeping, no bytes.

Runs in the scheduler's process, single-threaded, and must not block. Names, arguments and promises are
those of vLLM's ``v1/kv_offload`` (PR #46544). Per step a scheduler calls ``lookup`` per waiting request,
``touch``, ``prepare_load``; then ``on_schedule_end``, ``prepare_store`` (and ``touch``) per request; then
the completions of what its workers report; at last ``take_events``. Wherever keys are given, their order is
kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, auto

from tiers.keys import OffloadKey
from tiers.offloading_event import OffloadingEvent
from tiers.request import ReqContext, RequestOffloadingContext, ScheduleEndContext
from tiers.specs import LoadStoreSpec, PrepareStoreOutput


class LookupResult(Enum):
    """What a manager knows of a key now."""

    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    """Here, or on its way, but not readable yet."""
    RETRY = auto()
    """Not known yet: ask in the next step."""


class OffloadingManager(ABC):
    """Which blocks are kept, where, and who is using them. ``A`` in vLLM's table is abstract here."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether one block can be loaded. Does not count as a use: recency stays as it is."""

    @abstractmethod
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin blocks for reading, once per mention, and say where they lie, in the order of ``keys``.

        Every key must be a HIT; otherwise ``TierContractError``, and nothing is pinned.
        """

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """Count a use of these blocks: the first key becomes the most recent. Unknown keys are ignored."""

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """Unpin what ``prepare_load`` pinned. ``TierContractError`` for a block that nobody reads."""

    @abstractmethod
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Make room for the blocks not yet here. None if there is none: nothing has changed, try later."""

    def complete_store(  # noqa: B027
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """The bytes have arrived, or (``success`` False) will not. Keys that wait for nothing are ignored."""

    @abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """First sight of a request."""

    def on_request_finished(self, req_context: ReqContext) -> None:  # noqa: B027
        """No more ``prepare_*`` for this request; completions may still come. Says nothing of durability."""

    def take_events(self) -> Iterable[OffloadingEvent]:
        """The events since the last call, each exactly once, even if the caller stops half way."""
        return ()

    def take_events_by_tier(self) -> list[list[OffloadingEvent]]:
        """The same, a list a tier in the order of ``take_events`` (ours; who composes none is one tier)."""
        return [list(self.take_events())]

    def number_events(self, numbers: Iterator[int]) -> None:  # noqa: B027
        """Take ``emit_seq`` from this counter from now on (ours; a tier that does not number ignores it)."""

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: B027
        """Once per step: do what was put off."""

    def has_pending_work(self) -> bool:
        """Whether steps are needed although no request is waiting."""
        return False

    def reset_cache(self) -> None:  # noqa: B027
        """Forget every block. Transfers under way must have been waited for."""

    def get_stats(self) -> Mapping[str, float]:
        """Counters and gauges by name; a counter with a cause is ``name.cause``."""
        return {}

    def shutdown(self) -> None:  # noqa: B027
        """Let go of everything. Safe to call twice."""
