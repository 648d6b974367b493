"""The primary tier's memory as a storage tier sees it: a row a slot, and which slots there are. No copies.

A tier that only keeps books gets an empty view: then every slot is there, and its row is empty.
"""

from __future__ import annotations

import sys

from tiers.errors import TierValueError
from tiers.jobs import TransferJob


class PrimaryRows:
    """``view`` has the shape (slots, bytes a slot)."""

    def __init__(self, view: memoryview) -> None:
        self._bytes = view.cast("B") if view.nbytes else memoryview(b"")
        self.row_bytes = view.strides[0] if view.strides else 0
        self._slots = len(self._bytes) // self.row_bytes if self._bytes else sys.maxsize

    def row(self, slot: int) -> memoryview:
        """The bytes of a slot, one dimension."""
        return self._bytes[slot * self.row_bytes : (slot + 1) * self.row_bytes]

    def check(self, job: TransferJob) -> None:
        """Raise ``TierValueError`` unless each key of the job has a slot that is there."""
        slots = job.block_ids
        if slots.shape != (len(job.keys),) or slots.dtype.kind not in "iu":
            raise TierValueError(
                f"job {job.job_id} has {len(job.keys)} keys, block_ids {slots.dtype} of shape {slots.shape}",
                next_step="Give one slot for each key, a whole number.",
            )
        if slots.size and not 0 <= slots.min() <= slots.max() < self._slots:
            raise TierValueError(
                f"job {job.job_id} has slots from {slots.min()} to {slots.max()}",
                next_step=f"Slots of the primary go from 0 to {self._slots - 1}.",
            )
