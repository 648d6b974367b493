"""Which requests the composing manager knows, and what each still waits for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tiers.errors import UnknownRequestError
from tiers.request import ReqContext


@dataclass
class LiveRequest:
    """``pending_primary_stores``: stores begun and not completed. ``exclude_tier_idx``: who brought it."""

    req_context: ReqContext
    request_level_tiers: tuple[int, ...] = ()
    exclude_tier_idx: int | None = None
    pending_primary_stores: int = 0
    is_finished: bool = False

    @property
    def is_over(self) -> bool:
        """Nothing more will be cascaded for it."""
        return self.is_finished and self.pending_primary_stores == 0


class LiveRequests:
    """Requests by their ids, from ``on_new_request`` until they are over."""

    def __init__(self) -> None:
        self._requests: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._requests.values()))

    def get(self, req_id: str) -> LiveRequest | None:
        return self._requests.get(req_id)

    def begin(
        self, req_context: ReqContext, *, request_level_tiers: Collection[int], exclude_tier_idx: int | None
    ) -> None:
        """A request came, or came again: then what it waits for stays."""
        live = self._requests.setdefault(req_context.req_id, LiveRequest(req_context))
        live.req_context = req_context
        live.request_level_tiers = tuple(request_level_tiers)
        live.exclude_tier_idx = exclude_tier_idx
        live.is_finished = False

    def known(self, req_id: str) -> LiveRequest:
        """Raises ``UnknownRequestError`` (a ``KeyError``)."""
        if (live := self._requests.get(req_id)) is None:
            raise UnknownRequestError(
                f"request {req_id!r} is not known", next_step="Call on_new_request before its first store."
            )
        return live

    def end(self, live: LiveRequest) -> None:
        del self._requests[live.req_context.req_id]
