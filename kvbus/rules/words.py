"""How rules name sources, numbers and places in their sentences. Words only."""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.log import LOSS_REASONS, Loss, SourceId


def reasons(losses: Sequence[Loss]) -> str:
    """Why batches are missing, each reason once; empty without losses."""
    words = (f"{loss.reason}: {LOSS_REASONS.get(loss.reason, 'no more is known')}" for loss in losses)
    return "; ".join(dict.fromkeys(words))


def named(source: SourceId) -> str:
    """A source as sentences call it."""
    return source.source if source.rank < 0 else f"{source.source} rank {source.rank}"


def numbers(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def tier(medium: str, group: int | None) -> str:
    return medium if group is None else f"{medium} group {group}"


def uncertain(source: SourceId, epoch: int, why: str) -> str:
    return f"{named(source)} epoch {epoch}: {why}; its counts are uncertain from there on"
