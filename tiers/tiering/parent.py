"""What a secondary tier is handed while it serves others: the composing manager, without the tier itself."""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tiers.errors import TierContractError
from tiers.jobs import TransferJob
from tiers.keys import OffloadKey
from tiers.manager import LookupResult
from tiers.request import ReqContext, RequestOffloadingContext
from tiers.secondary import ParentManager

if TYPE_CHECKING:
    from tiers.tiering.manager import TieringOffloadingManager


class TierParent(ParentManager):
    """Valid inside its ``with`` block; afterwards every call is a ``TierContractError``."""

    def __init__(self, manager: TieringOffloadingManager, tier_idx: int) -> None:
        self._manager: TieringOffloadingManager | None = manager
        self._tier_idx = tier_idx

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager = None

    @property
    def _open(self) -> TieringOffloadingManager:
        if self._manager is None:
            raise TierContractError(
                "a parent was used after the call it was given to",
                next_step="Keep requests, not the parent, and answer them in serve_external_requests.",
            )
        return self._manager

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return self._open.on_new_request(req_context, exclude_tier_idx=self._tier_idx)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self._open.lookup(key, req_context, exclude_tier_idx=self._tier_idx)

    def create_store_job(self, keys: Collection[OffloadKey], req_context: ReqContext) -> TransferJob:
        return self._open.create_store_job(keys, req_context, self._tier_idx)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._open.on_request_finished(req_context)
