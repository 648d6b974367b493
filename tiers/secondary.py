"""The protocol between a composing manager and a tier behind the primary one.

A secondary tier never sees the GPU: it copies blocks out of the primary tier's memory (``submit_store``)
and into it (``submit_load``). All calls come on the scheduler's thread and must not block, except
``drain_jobs``, which must. The slots of a job stay pinned until the tier reports the job as finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar

from tiers.jobs import JobResult, TransferJob
from tiers.keys import OffloadKey
from tiers.manager import LookupResult
from tiers.medium import Locality, Medium
from tiers.offloading_event import OffloadingEvent
from tiers.request import ReqContext, RequestOffloadingContext, ScheduleEndContext


class ParentManager(ABC):
    """What a tier may ask of the composing manager while it serves others, e.g. another machine.

    Given to ``serve_external_requests`` and valid only inside that call. Fan-out skips the asking tier.
    Order: ``on_new_request``, any number of ``lookup`` and ``create_store_job``, then always
    ``on_request_finished``.
    """

    @abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext: ...

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult: ...

    @abstractmethod
    def create_store_job(self, keys: Collection[OffloadKey], req_context: ReqContext) -> TransferJob:
        """Pin blocks of the primary tier for the asking tier, which must report the job as finished."""

    @abstractmethod
    def on_request_finished(self, req_context: ReqContext) -> None: ...


class SecondaryTierManager(ABC):
    """One tier behind the primary one. Owns its blocks and, if it says anything, its events.

    ``primary_kv_view`` is the primary tier's memory, shape (slots, bytes a slot); a tier that only keeps
    books may get an empty one. ``offloading_spec`` is the engine's configuration, passed on unread.
    ``tier_type`` names the tier in counters and events.
    """

    medium: ClassVar[Medium | None] = None
    """None matches any filter."""

    def __init__(self, offloading_spec: object, primary_kv_view: memoryview, tier_type: str) -> None:
        self.offloading_spec = offloading_spec
        self.primary_kv_view = primary_kv_view
        self.tier_type = tier_type
        self.locality: Locality | None = None

    @property
    def capacity(self) -> int | None:
        """How many blocks are readable here at most (ours); None: nobody can say."""
        return None

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT, MISS, or RETRY while the answer is being looked for."""

    @abstractmethod
    def submit_store(self, job_metadata: TransferJob) -> None:
        """Begin to copy primary → here. Blocks already here are not stored again, and not announced."""

    @abstractmethod
    def submit_load(self, job_metadata: TransferJob) -> None:
        """Begin to copy here → primary."""

    def refuses_stores(self) -> str | None:
        """Why no store should be submitted now, in one word for a counter; None: they are welcome (ours)."""
        return None

    @abstractmethod
    def get_finished_jobs(self) -> Iterable[JobResult]:
        """The jobs that ended since the last call, each once."""

    @abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """First sight of a request; REQUEST_LEVEL asks for its cached blocks too."""

    @abstractmethod
    def drain_jobs(self) -> None:
        """Return when nothing touches the primary's memory. Results still come by ``get_finished_jobs``.

        May cancel jobs that have not begun, never one in the middle of a copy.
        """

    def has_pending_work(self) -> bool:
        return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        """A tier that has nothing to say inherits this."""
        return ()

    def number_events(self, numbers: Iterator[int]) -> None:  # noqa: B027
        """Take ``emit_seq`` from this counter from now on (ours; a tier that does not number ignores it)."""

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """Count a use; the first key becomes the most recent."""

    def on_request_finished(self, req_context: ReqContext) -> None:  # noqa: B027
        """No more jobs will be submitted for this request."""

    def serve_external_requests(self, parent: ParentManager) -> None:  # noqa: B027
        """Once per step: answer whoever asks this tier for blocks of the primary."""

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: B027
        """Once per step, after the step's loads were submitted."""

    def get_stats(self) -> Mapping[str, float]:
        """Counters and gauges by name; a counter with a cause is ``name.cause``."""
        return {}

    def shutdown(self) -> None:  # noqa: B027
        """Let go of everything. Safe to call twice."""
