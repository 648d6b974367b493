"""One primary tier and any number of tiers behind it, under the protocol of one manager.

Every store is written through to all secondary tiers; a block found only there is first copied into the
primary (a *promotion*), which alone exchanges blocks with the GPU. Eviction never moves a block down: its
copies are there already. What protects a block under a copy is its count of readers, nothing else. Events
are the tiers' own, handed on; none is made here. No tensors, no threads, no clock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from tiers.cpu import CPUOffloadingManager
from tiers.errors import TierContractError, TierValueError
from tiers.jobs import TransferJob
from tiers.keys import OffloadKey
from tiers.manager import LookupResult, OffloadingManager
from tiers.offloading_event import OffloadingEvent
from tiers.request import OffloadPolicy, ReqContext, RequestOffloadingContext, ScheduleEndContext
from tiers.secondary import SecondaryTierManager
from tiers.specs import LoadStoreSpec, PrepareStoreOutput
from tiers.tiering.copies import Copies
from tiers.tiering.live_requests import LiveRequest, LiveRequests
from tiers.tiering.parent import TierParent


class TieringOffloadingManager(OffloadingManager):
    """``secondary_tiers`` are asked, and written to, in this order. Raises ``TierValueError`` for a primary
    with a ``store_threshold``: a promotion must never be refused because it was not asked for often enough.
    """

    def __init__(
        self,
        primary_tier: CPUOffloadingManager,
        secondary_tiers: Sequence[SecondaryTierManager] | None = None,
    ) -> None:
        if primary_tier.store_threshold >= 2:
            raise TierValueError(
                f"a primary tier with store_threshold {primary_tier.store_threshold} under secondary tiers",
                next_step="Leave store_threshold at 1.",
            )
        self.primary_tier = primary_tier
        self.secondary_tiers = list(secondary_tiers or ())
        self._tiers: list[OffloadingManager | SecondaryTierManager] = [primary_tier, *self.secondary_tiers]
        self._labels = [f"{n}:{tier.tier_type}" for n, tier in enumerate(self.secondary_tiers, start=1)]
        self._copies = Copies(primary_tier, self.secondary_tiers, labels=self._labels)
        self._requests = LiveRequests()
        self._polled_this_step = False
        self._taken: list[list[OffloadingEvent]] = [[] for _ in self._tiers]
        self._counts: Counter[str] = Counter()
        self.number_events(itertools.count())

    # A request's life

    def on_new_request(
        self, req_context: ReqContext, *, exclude_tier_idx: int | None = None
    ) -> RequestOffloadingContext:
        policy = self.primary_tier.on_new_request(req_context).policy
        answers = {idx: tier.on_new_request(req_context) for idx, tier in self._others(exclude_tier_idx)}
        whole = [idx for idx, answer in answers.items() if answer.policy is OffloadPolicy.REQUEST_LEVEL]
        self._requests.begin(req_context, request_level_tiers=whole, exclude_tier_idx=exclude_tier_idx)
        return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL if whole else policy)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The primary hears it now, the others when no store of the request can cascade any more."""
        self.primary_tier.on_request_finished(req_context)
        if (live := self._requests.get(req_context.req_id)) is not None:
            live.is_finished = True
            self._end_if_over(live)

    def _end_if_over(self, live: LiveRequest) -> None:
        if live.is_over:
            self._requests.end(live)
            for _, tier in self._others(live.exclude_tier_idx):
                tier.on_request_finished(live.req_context)

    def _others(self, exclude_tier_idx: int | None) -> Iterator[tuple[int, SecondaryTierManager]]:
        return ((idx, tier) for idx, tier in enumerate(self.secondary_tiers) if idx != exclude_tier_idx)

    # Reading

    def lookup(
        self, key: OffloadKey, req_context: ReqContext, *, exclude_tier_idx: int | None = None
    ) -> LookupResult:
        """The primary's answer; else the first tier that has the block and may serve this request, which
        begins a promotion: HIT_PENDING, or MISS if the primary has no room for it.
        """
        self._poll_once()
        found = self.primary_tier.lookup(key, req_context)
        if found is not LookupResult.MISS:
            return found
        for idx, tier in self._others(exclude_tier_idx):
            if not req_context.load_tier_filter.allows(tier.medium, tier.locality):
                continue
            self._counts[f"block_queries.{self._labels[idx]}"] += 1
            answer = tier.lookup(key, req_context)
            if answer is LookupResult.HIT:
                self._counts[f"block_hits.{self._labels[idx]}"] += 1
                has_room = self._copies.stage_promotion(idx, key, req_context=req_context)
                return LookupResult.HIT_PENDING if has_room else LookupResult.MISS
            if answer is not LookupResult.MISS:
                found = LookupResult.RETRY
        return found

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self.primary_tier.prepare_load(keys, req_context)

    def supplier_of(self, key: OffloadKey) -> int | None:
        """The secondary tier (its index) that a block is being promoted from; None if it is not on its
        way up.
        """
        return self._copies.in_flight.coming.get(key)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        for tier in self._tiers:
            tier.touch(keys, req_context)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.primary_tier.complete_load(keys, req_context)

    # Writing

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Tiers that want whole requests get at once what the primary has already."""
        live = self._requests.known(req_context.req_id)
        self._poll_once()
        output = self.primary_tier.prepare_store(keys, req_context)
        if output is None:
            return None
        if output.keys_to_store:
            live.pending_primary_stores += 1
        if live.request_level_tiers:
            ready = self._in_state(LookupResult.HIT, keys, req_context)
            for idx in live.request_level_tiers:
                self._copies.cascade(ready, req_context, tier_idx=idx)
        return output

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """What has just arrived goes on to every secondary tier; a failed store goes nowhere.

        ``TierContractError`` if the request has no store under way.
        """
        live = self._requests.known(req_context.req_id)
        if live.pending_primary_stores <= 0:
            raise TierContractError(
                f"request {req_context.req_id!r} has no store to complete",
                next_step="Complete each prepare_store that had something to store once.",
            )
        # Not those on their way up: their tier says when they are here, nobody's superset does.
        coming = self._copies.in_flight.coming
        pending = self._in_state(LookupResult.HIT_PENDING, keys, req_context)
        arriving = [key for key in pending if key not in coming]
        live.pending_primary_stores -= 1
        self.primary_tier.complete_store(arriving, req_context, success)
        if success:
            for idx, _ in self._others(live.exclude_tier_idx):
                self._copies.cascade(arriving, req_context, tier_idx=idx)
        self._end_if_over(live)

    def _in_state(
        self, state: LookupResult, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> list[OffloadKey]:
        """Those of ``keys``, each once, that the primary knows in this state."""
        lookup = self.primary_tier.lookup
        return [key for key in dict.fromkeys(keys) if lookup(key, req_context) is state]

    def create_store_job(
        self, keys: Collection[OffloadKey], req_context: ReqContext, tier_idx: int = 0
    ) -> TransferJob:
        """Pin blocks of the primary for a copy to a tier, which must report the job as finished."""
        return self._copies.create_store_job(keys, req_context, tier_idx=tier_idx)

    # Steps

    def _poll_once(self) -> None:
        """The first call of a step asks the tiers what is finished; ``on_schedule_end`` opens the gate."""
        if not self._polled_this_step:
            self._polled_this_step = True
            self._copies.poll()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._poll_once()
        for idx, tier in enumerate(self.secondary_tiers):
            with TierParent(self, idx) as parent:
                tier.serve_external_requests(parent)
        self._polled_this_step = False
        self._copies.submit_staged()
        for tier in self.secondary_tiers:
            tier.on_schedule_end(context)

    def has_pending_work(self) -> bool:
        in_flight = self._copies.in_flight
        return bool(in_flight or in_flight.coming or any(t.has_pending_work() for t in self.secondary_tiers))

    def take_events(self) -> Iterable[OffloadingEvent]:
        """The primary's events, then each secondary tier's, in order."""
        return [event for share in self.take_events_by_tier() for event in share]

    def take_events_by_tier(self) -> list[list[OffloadingEvent]]:
        """Each tier's share, the primary's first. If a tier raises, what was taken before it comes with the
        next call.
        """
        for share, tier in zip(self._taken, self._tiers, strict=True):
            share.extend(tier.take_events())
        taken, self._taken = self._taken, [[] for _ in self._tiers]
        return taken

    def number_events(self, numbers: Iterator[int]) -> None:
        """One counter for all tiers, so that the order across them can be had from ``emit_seq``."""
        for tier in self._tiers:
            tier.number_events(numbers)

    def drain_jobs(self) -> None:
        """Block until no secondary tier touches the primary's memory, and account for what is done."""
        self._copies.drain()

    def reset_cache(self) -> None:
        """Forget the primary's blocks; secondary tiers keep theirs. Waits for copies under way."""
        self._copies.drain(dropping=True)
        self._copies.in_flight.forget_staged()
        for live in self._requests:
            live.pending_primary_stores = 0
            self._end_if_over(live)
        self.primary_tier.reset_cache()
        self._polled_this_step = False

    def get_stats(self) -> Mapping[str, float]:
        """Own counters, then each tier's under ``0:primary.``, ``1:<type>.`` and so on."""
        promotions = self._copies.in_flight.promotions
        stats: dict[str, float] = {**self._counts, **self._copies.counts}
        stats["active_promotion_jobs"] = promotions
        stats["active_cascade_jobs"] = len(self._copies.in_flight) - promotions
        for label, tier in zip(("0:primary", *self._labels), self._tiers, strict=True):
            stats |= {f"{label}.{name}": value for name, value in tier.get_stats().items()}
        return stats

    def shutdown(self) -> None:
        """Secondary tiers first, then the primary, each even if another one raises."""
        with ExitStack() as last_pushed_first:
            last_pushed_first.callback(self.primary_tier.shutdown)
            for tier in reversed(self.secondary_tiers):
                last_pushed_first.callback(tier.shutdown)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self.primary_tier.check_integrity()
        self._copies.in_flight.check_integrity()
        assert not any(live.is_over for live in self._requests), "a request that is over is still known"
