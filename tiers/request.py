"""A request, as tiers see it, and the end of a scheduling step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

from tiers.medium import TierFilter

T = TypeVar("T")


@dataclass
class ReqContext:
    """One request. The same object accompanies it from ``on_new_request`` to its last completion.

    ``kv_transfer_params`` is what the client sent along, unread here. ``load_tier_filter`` says which
    secondary tiers may serve it.
    """

    req_id: str
    kv_transfer_params: Mapping[str, object] | None = None
    load_tier_filter: TierFilter = TierFilter.ALL
    _state: dict[type, object] = field(default_factory=dict, repr=False, init=False, compare=False)

    def set_state(self, val: object) -> None:
        """Keep a tier's own note on this request: one of each type, the last one set."""
        self._state[type(val)] = val

    def get_state(self, cls: type[T]) -> T | None:
        """The note of exactly this type, or None."""
        found = self._state.get(cls)
        return found if isinstance(found, cls) else None


class OffloadPolicy(StrEnum):
    """Which blocks of a request are to be stored."""

    BLOCK_LEVEL = "block_level"
    """Only blocks computed anew."""
    CHUNK_LEVEL = "block_level"  # the same under vLLM's later name
    REQUEST_LEVEL = "request_level"
    """All blocks of the request, those it found cached too."""


@dataclass(frozen=True)
class RequestOffloadingContext:
    """A manager's answer to a new request."""

    policy: OffloadPolicy = OffloadPolicy.BLOCK_LEVEL


class ScheduleEndContext(NamedTuple):
    """What a scheduling step ended with."""

    new_req_ids: Collection[str] = ()
    preempted_req_ids: Collection[str] = ()
