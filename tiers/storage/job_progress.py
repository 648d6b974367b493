"""How far one job of a storage tier has come. A value that changes; it decides nothing.

A job's blocks are done one by one, on several threads; the books hear of them together, when the last one
is done. Until then its resident blocks are pinned and its new ones are not readable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tiers.jobs import JobResult, TransferJob
from tiers.keys import OffloadKey
from tiers.storage.kept import Kept


@dataclass(slots=True, eq=False)
class JobProgress:
    """``unresolved`` blocks are not done. ``failures``: a word for each block that could not be done."""

    job: TransferJob
    unresolved: int
    failures: dict[OffloadKey, str] = field(default_factory=dict)
    pins: list[tuple[OffloadKey, Kept]] = field(default_factory=list)
    """Resident blocks that the job reads, or found there already; one entry a pin."""
    landing: dict[OffloadKey, bool] = field(default_factory=dict)
    """Blocks that the job writes and that have not failed, and whether they were new to the medium."""
    blocks: int = 0
    """Blocks whose bytes have been moved."""
    begun: float = math.inf
    ended: float = -math.inf

    @property
    def kind(self) -> Literal["load", "store"]:
        return "load" if self.job.is_promotion else "store"

    def resolve(self, key: OffloadKey, failure: str | None = None) -> bool:
        """One block is done. True if it was the last."""
        if failure is not None:
            self.failures[key] = failure
        self.unresolved -= 1
        return self.unresolved == 0

    def moved(self, begun: float, ended: float) -> None:
        """Bytes were moved in this time."""
        self.begun = min(self.begun, begun)
        self.ended = max(self.ended, ended)

    @property
    def seconds(self) -> float | None:
        """From the first byte moved to the last; None if nothing was."""
        return None if self.begun > self.ended else self.ended - self.begun

    @property
    def succeeded(self) -> Sequence[OffloadKey]:
        """Keys without a failure, each once, in the job's order."""
        return [key for key in dict.fromkeys(self.job.keys) if key not in self.failures]

    def result(self) -> JobResult:
        """For the manager: of a load that failed in part, what did arrive."""
        partial = self.succeeded if self.failures and self.job.is_promotion else None
        return JobResult(self.job.job_id, not self.failures, partial, self.seconds)
