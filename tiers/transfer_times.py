"""How long a tier's transfers in one direction took. Values only; whoever transfers adds to them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

RECENT: Final = 4_096


@dataclass(slots=True)
class TransferTimes:
    """``bytes`` in ``seconds``, all transfers together; ``recent``: seconds of each, the last 4 096."""

    bytes: int = 0
    seconds: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, num_bytes: int, seconds: float) -> None:
        self.bytes += num_bytes
        self.seconds += seconds
        self.recent.append(seconds)

    def quantile(self, share: float) -> float | None:
        """The time that this share of the recent ones did not exceed (nearest rank); None without any."""
        ordered = sorted(self.recent)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
