"""Transfers under way, and what became of them: values that pass between a manager and its tiers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tiers.keys import OffloadKey
from tiers.request import ReqContext
from tiers.specs import BlockIds


@dataclass
class TransferJob:
    """Blocks to copy between the primary tier and a secondary one.

    ``keys[i]`` lies in (or goes to) slot ``block_ids[i]`` of the primary tier. The slots stay pinned until
    the job is reported by ``get_finished_jobs``. ``is_promotion``: secondary → primary.
    """

    job_id: int
    keys: Sequence[OffloadKey]
    block_ids: BlockIds
    is_promotion: bool
    req_context: ReqContext


@dataclass
class JobResult:
    """A job's end. ``successful_keys`` is for promotions that failed in part: those that did arrive.

    None means that all keys share ``success``. ``transfer_time`` is in seconds.
    """

    job_id: int
    success: bool
    successful_keys: Collection[OffloadKey] | None = None
    transfer_time: float | None = None


@dataclass
class TransferResult:
    """The end of a copy between the GPU and the CPU tier; ``transfer_size`` in bytes, time in seconds."""

    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None
