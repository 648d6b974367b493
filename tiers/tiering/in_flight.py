"""Which copies between the primary tier and the secondary ones are under way. Pure.

A promotion (secondary → primary) is first *staged*: its slot is taken at once, so that a second lookup in
the step sees it coming, but it is submitted with the others of its tier and request at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tiers.errors import TierContractError
from tiers.jobs import TransferJob
from tiers.keys import OffloadKey
from tiers.request import ReqContext
from tiers.specs import BlockIds


@dataclass
class Staged:
    """Promotions from one tier for one request, not yet submitted."""

    req_context: ReqContext
    keys: list[OffloadKey] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)


class InFlight:
    """Jobs by number, each with its tier, from 0 up; and what is staged."""

    def __init__(self) -> None:
        self._next_job_id = 0
        self._jobs: dict[int, tuple[TransferJob, int]] = {}
        self._staged: dict[int, dict[str, Staged]] = {}
        self.coming: dict[OffloadKey, int] = {}
        """Blocks on their way up, staged or submitted, each with the tier it comes from."""

    def __len__(self) -> int:
        """Jobs submitted and not finished."""
        return len(self._jobs)

    @property
    def promotions(self) -> int:
        return sum(job.is_promotion for job, _ in self._jobs.values())

    def tiers(self) -> set[int]:
        """The tiers that owe a result."""
        return {tier_idx for _, tier_idx in self._jobs.values()}

    def begin(
        self,
        tier_idx: int,
        keys: list[OffloadKey],
        *,
        block_ids: BlockIds,
        is_promotion: bool,
        req_context: ReqContext,
    ) -> TransferJob:
        """A new job under the next number."""
        job = TransferJob(self._next_job_id, keys, block_ids, is_promotion, req_context)
        self._next_job_id += 1
        self._jobs[job.job_id] = (job, tier_idx)
        return job

    def end(self, job_id: int, *, tier_idx: int) -> TransferJob:
        """The job of this number, out of the books. ``TierContractError`` unless it is this tier's."""
        job, owner = self._jobs.get(job_id, (None, None))
        if job is None or owner != tier_idx:
            what = "is not under way" if job is None else f"belongs to secondary tier {owner}"
            raise TierContractError(
                f"secondary tier {tier_idx} reported job {job_id}, which {what}",
                next_step="A tier reports each job that it was given once, and no other.",
            )
        del self._jobs[job_id]
        if job.is_promotion:
            self._no_longer_coming(job.keys)
        return job

    def stage(self, tier_idx: int, key: OffloadKey, *, block_id: int, req_context: ReqContext) -> None:
        batches = self._staged.setdefault(tier_idx, {})
        batch = batches.setdefault(req_context.req_id, Staged(req_context))
        batch.keys.append(key)
        batch.block_ids.append(block_id)
        self.coming[key] = tier_idx

    def submit_staged(self) -> Iterator[tuple[int, TransferJob]]:
        """Make one job of each (tier, request), tiers in order, requests as they came first."""
        staged, self._staged = self._staged, {}
        for tier_idx in sorted(staged):
            for batch in staged[tier_idx].values():
                block_ids = np.array(batch.block_ids, dtype=np.int64)
                yield (
                    tier_idx,
                    self.begin(
                        tier_idx,
                        batch.keys,
                        block_ids=block_ids,
                        is_promotion=True,
                        req_context=batch.req_context,
                    ),
                )

    def forget_staged(self) -> None:
        for batches in self._staged.values():
            for batch in batches.values():
                self._no_longer_coming(batch.keys)
        self._staged = {}

    def _no_longer_coming(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            del self.coming[key]

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        batches = [batch for batches in self._staged.values() for batch in batches.values()]
        assert all(0 <= job_id < self._next_job_id for job_id in self._jobs), "a job from the future"
        assert all(len(batch.keys) == len(batch.block_ids) > 0 for batch in batches), "keys without slots"
        coming = [key for batch in batches for key in batch.keys]
        coming += [key for job, _ in self._jobs.values() if job.is_promotion for key in job.keys]
        assert len(coming) == len(set(coming)), "a block is promoted twice"
        assert set(coming) == self.coming.keys(), "what comes is not what is staged or submitted"
