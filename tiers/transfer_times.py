"""How long a tier's transfers in one direction took. Values only; whoever transfers adds to them.

Time in which several were under way counts once, so that bytes a second are those of the tier and not of one
of its threads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

RECENT: Final = 4_096


@dataclass(slots=True)
class TransferTimes:
    """``bytes`` of all transfers; ``seconds`` with at least one under way; ``recent``: seconds of each, the
    last 4 096.
    """

    bytes: int = 0
    seconds: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    under_way: int = 0
    counted_to: float = 0.0

    def begin(self, now: float) -> None:
        """One transfer more is under way; ``now`` in a clock's seconds."""
        if not self.under_way:
            self.counted_to = now
        self.under_way += 1

    def end(self, now: float, num_bytes: int, took: float | None) -> None:
        """One that has begun is over. ``took``: seconds in which it moved bytes; None if it moved none."""
        self.under_way -= 1
        self.seconds += now - self.counted_to
        self.counted_to = now
        self.bytes += num_bytes
        if took is not None:
            self.recent.append(took)

    def add(self, num_bytes: int, seconds: float) -> None:
        """One that was under way alone."""
        self.bytes += num_bytes
        self.seconds += seconds
        self.recent.append(seconds)

    def quantile(self, share: float) -> float | None:
        """The time that this share of the recent ones did not exceed (nearest rank); None without any."""
        ordered = sorted(self.recent)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
