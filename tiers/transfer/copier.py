"""Who copies: the protocol of what makes a transfer's copies, and what it says when they are over.

A copier serves one direction and works through it in order. It never raises for a copy that failed: that is
an outcome, and the copies behind it go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tiers.transfer.block_copies import BlockCopies


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """``seconds`` from first byte to last, without waiting; ``failure`` is an exception's name, or None."""

    seconds: float
    failure: str | None = None


class Running(Protocol):
    """Copies that were begun."""

    def done(self) -> bool:
        """Whether they are over, one way or the other."""
        ...

    def outcome(self) -> CopyOutcome:
        """Wait until they are over."""
        ...


class Copier(Protocol):
    """Copies of one direction, one transfer after the other."""

    def begin(self, copies: BlockCopies) -> Running:
        """Queue these copies behind those begun before. Returns at once."""
        ...

    def shutdown(self) -> None:
        """Wait for what was begun; begin nothing more. Safe to call twice."""
        ...
