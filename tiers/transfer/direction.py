"""One direction of a worker: which transfers are under way, in order, and what became of them.

The copier does the work; here are the books of it. Results are handed out in the order of submission, each
once. A failed copy is counted with its reason.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from tiers.errors import TierContractError
from tiers.jobs import TransferResult
from tiers.transfer.block_copies import BlockCopies
from tiers.transfer.copier import Copier, CopyOutcome, Running


@dataclass(frozen=True, slots=True)
class Transfer:
    """A job under way, or over and not delivered yet."""

    running: Running
    nbytes: int


class Direction:
    """``name`` begins the names of its counters. At most ``max_jobs`` transfers wait to be delivered."""

    def __init__(self, name: str, copier: Copier, *, max_jobs: int) -> None:
        self.name = name
        self.max_jobs = max_jobs
        self._copier = copier
        self._transfers: OrderedDict[int, Transfer] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._transfers

    def submit(self, job_id: int, copies: BlockCopies) -> None:
        """Queue copies behind those submitted before. ``TierContractError`` if there are ``max_jobs``."""
        if len(self._transfers) >= self.max_jobs:
            raise TierContractError(
                f"{self.max_jobs} {self.name} transfers are waiting to be delivered",
                next_step="Call get_finished once a step.",
            )
        self._transfers[job_id] = Transfer(self._copier.begin(copies), copies.nbytes)

    def wait(self, job_id: int) -> None:
        self._transfers[job_id].running.outcome()

    def take_finished(self) -> list[TransferResult]:
        """The results at the head of the queue, up to the first transfer that still runs."""
        results = []
        while self._transfers:
            job_id, transfer = next(iter(self._transfers.items()))
            if not transfer.running.done():
                break
            del self._transfers[job_id]
            results.append(self._result(job_id, transfer.nbytes, transfer.running.outcome()))
        return results

    def _result(self, job_id: int, nbytes: int, outcome: CopyOutcome) -> TransferResult:
        self._seconds += outcome.seconds
        if outcome.failure is not None:
            self._counts[f"{self.name}_failures.{outcome.failure}"] += 1
            return TransferResult(job_id, False, None, outcome.seconds)
        self._counts[f"{self.name}_jobs"] += 1
        self._counts[f"{self.name}_bytes"] += nbytes
        return TransferResult(job_id, True, nbytes, outcome.seconds)

    def get_stats(self) -> Mapping[str, float]:
        return {
            **self._counts,
            f"{self.name}_seconds": self._seconds,
            f"{self.name}_pending": len(self._transfers),
        }

    def shutdown(self) -> None:
        """Finish what was submitted; it can still be taken."""
        self._copier.shutdown()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert len(self._transfers) <= self.max_jobs, "more transfers than allowed"
        # Back to front: while one looks, a transfer may end, but none before those that were seen to be over.
        over = [transfer.running.done() for transfer in reversed(self._transfers.values())]
        assert over == sorted(over), "a transfer overtook another"
