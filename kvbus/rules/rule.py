"""What every rule is and says of itself, and the few judgements that rules share.

No rule is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kvbus.events import counts_from_one
from kvbus.log import LOSS_REASONS, Loss, PositionedEntry, Received, SourceId
from kvbus.residency import Remark
from kvbus.verdict import RuleVerdict


class About(Struct, frozen=True):
    """What a rule is: ``id`` as in WIRE.md §10, what it means, what makes it UNKNOWN, where it comes from."""

    id: str
    name: str
    means: str
    clouded_by: str
    source: str


class Rule(Protocol):
    """One rule over one log, in one pass. ``verdict`` may be asked at any time and changes nothing."""

    @property
    def about(self) -> About: ...

    def observe(self, at: PositionedEntry, remarks: Sequence[Remark], /) -> None:
        """Take the next entry, with what ``Residency.fold`` remarked on it."""
        ...

    def verdict(self) -> RuleVerdict: ...


class RuleMaker(Protocol):
    """Makes a rule that has seen nothing; ``examples``: findings it shows in full."""

    def __call__(self, *, examples: int = ...) -> Rule: ...


def reasons(losses: Sequence[Loss]) -> str:
    """Why batches are missing, each reason once; empty without losses."""
    words = (f"{loss.reason}: {LOSS_REASONS.get(loss.reason, 'no more is known')}" for loss in losses)
    return "; ".join(dict.fromkeys(words))


def begins_epoch(first: Received) -> bool:
    """Whether an epoch's first batch is the publisher's first: engines count from 0, Mooncake from 1."""
    return first.seq == 0 or (first.seq == 1 and counts_from_one(first.batch))


def named(source: SourceId) -> str:
    """A source as sentences call it."""
    return source.source if source.rank < 0 else f"{source.source} rank {source.rank}"


def numbers(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"
