"""The copies between the primary tier and those behind it: begun, handed over, reported, accounted for.

The primary's slots stay pinned (or unreadable, for a block on its way in) from the moment a job is made
until its tier has reported it. A job that fails is given back and counted with its cause; it is not tried
again. Which blocks are copied, and when, is decided elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from kvbus.errors import KvbusError
from tiers.cpu import CPUOffloadingManager
from tiers.errors import TierContractError
from tiers.jobs import JobResult, TransferJob
from tiers.keys import OffloadKey
from tiers.request import ReqContext
from tiers.secondary import SecondaryTierManager
from tiers.specs import block_ids
from tiers.tiering.in_flight import InFlight


class Copies:
    """Between ``primary`` and ``secondaries``, which are known by their index; ``labels`` name them."""

    def __init__(
        self,
        primary: CPUOffloadingManager,
        secondaries: Sequence[SecondaryTierManager],
        *,
        labels: Sequence[str],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.in_flight = InFlight()
        self._primary = primary
        self._secondaries = secondaries
        self._labels = labels

    def stage_promotion(self, tier_idx: int, key: OffloadKey, *, req_context: ReqContext) -> bool:
        """Take a slot for a block that a tier has. False if the primary has no room."""
        output = self._primary.prepare_store([key], req_context)
        if output is None:
            self.counts["promotion_allocation_failures"] += 1
            return False
        (block_id,) = block_ids(output.store_spec).tolist()
        self.in_flight.stage(tier_idx, key, block_id=block_id, req_context=req_context)
        return True

    def submit_staged(self) -> None:
        for tier_idx, job in self.in_flight.submit_staged():
            self._submit(tier_idx, job)

    def create_store_job(
        self, keys: Collection[OffloadKey], req_context: ReqContext, *, tier_idx: int
    ) -> TransferJob:
        """Pin blocks of the primary for a copy to a tier, under a new job number."""
        ordered = list(keys)
        slots = block_ids(self._primary.prepare_load(ordered, req_context))
        return self.in_flight.begin(
            tier_idx, ordered, block_ids=slots, is_promotion=False, req_context=req_context
        )

    def cascade(self, keys: Collection[OffloadKey], req_context: ReqContext, *, tier_idx: int) -> None:
        """Copy blocks of the primary to a tier, unless it refuses: then nothing is pinned."""
        if not keys:
            return
        if reason := self._secondaries[tier_idx].refuses_stores():
            self.counts[f"stores_dropped.{self._labels[tier_idx]}.{reason}"] += 1
            self.counts[f"blocks_dropped.{self._labels[tier_idx]}.{reason}"] += len(keys)
            return
        self._submit(tier_idx, self.create_store_job(keys, req_context, tier_idx=tier_idx))

    def _submit(self, tier_idx: int, job: TransferJob) -> None:
        """Hand a job over. A tier that cannot take it has failed it; an error nobody foresaw goes on up."""
        tier = self._secondaries[tier_idx]
        taken = False
        try:
            (tier.submit_load if job.is_promotion else tier.submit_store)(job)
            taken = True
        except (OSError, KvbusError) as error:
            self._count_failure(tier_idx, job, type(error).__name__)
        finally:
            if not taken:
                self.in_flight.end(job.job_id, tier_idx=tier_idx)
                self._release(job, arrived=[])

    def poll(self, *, dropping: bool = False) -> None:
        """Ask every tier, in order, what is finished.

        ``dropping``: blocks that arrive are about to be forgotten, so they never become readable.
        """
        for tier_idx, tier in enumerate(self._secondaries):
            for result in tier.get_finished_jobs():
                job = self.in_flight.end(result.job_id, tier_idx=tier_idx)
                arrived = arrivals(job, result)
                if not result.success:
                    self._count_failure(tier_idx, job, "partial" if arrived else "failed")
                kind = "promoted_blocks" if job.is_promotion else "cascaded_blocks"
                self.counts[f"{kind}.{self._labels[tier_idx]}"] += len(arrived)
                self._release(job, arrived=[] if dropping else arrived)

    def drain(self, *, dropping: bool = False) -> None:
        """Block until no tier touches the primary's memory. ``TierContractError`` if one comes back from
        its ``drain_jobs`` and still owes a result.
        """
        for tier in self._secondaries:
            tier.drain_jobs()
        self.poll(dropping=dropping)
        if len(self.in_flight):
            owing = ", ".join(self._labels[tier_idx] for tier_idx in sorted(self.in_flight.tiers()))
            raise TierContractError(
                f"{len(self.in_flight)} jobs without result after drain_jobs, of {owing}",
                next_step="drain_jobs returns when get_finished_jobs can report every job.",
            )

    def _release(self, job: TransferJob, *, arrived: Collection[OffloadKey]) -> None:
        """Give the primary its slots back: those of a promotion as blocks where the bytes are there."""
        if not job.is_promotion:
            self._primary.complete_load(job.keys, job.req_context)
            return
        landed = set(arrived)
        lost = [key for key in job.keys if key not in landed]
        if arrived:
            self._primary.complete_store(arrived, job.req_context, True)
        if lost:
            self._primary.complete_store(lost, job.req_context, False)

    def _count_failure(self, tier_idx: int, job: TransferJob, cause: str) -> None:
        kind = "promotion_failures" if job.is_promotion else "cascade_failures"
        self.counts[f"{kind}.{self._labels[tier_idx]}.{cause}"] += 1


def arrivals(job: TransferJob, result: JobResult) -> list[OffloadKey]:
    """The keys that a result says were copied, in the job's order. ``TierContractError`` for others."""
    if result.success:
        return list(job.keys)
    successful = set(result.successful_keys or ())
    if unknown := successful.difference(job.keys):
        raise TierContractError(
            f"job {job.job_id} was reported with {len(unknown)} keys that are not in it",
            next_step="successful_keys names keys of the job.",
        )
    return [key for key in job.keys if key in successful]
