"""Which keys have been asked for often enough to be worth storing. Pure, and bounded."""

from __future__ import annotations

from collections import OrderedDict

from tiers.errors import TierValueError
from tiers.keys import OffloadKey


class ReuseTracker:
    """Counts lookups of the last ``max_size`` keys; the key asked for longest ago is forgotten first."""

    def __init__(self, threshold: int, max_size: int) -> None:
        if max_size < 1:
            raise TierValueError(
                f"a tracker of {max_size} keys", next_step="Give max_tracker_size 1 or more, or no threshold."
            )
        self.threshold = threshold
        self.max_size = max_size
        self._counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def saw(self, key: OffloadKey) -> None:
        counts = self._counts
        counts[key] = counts.pop(key, 0) + 1
        if len(counts) > self.max_size:
            counts.popitem(last=False)

    def enough(self, key: OffloadKey) -> bool:
        return self._counts.get(key, 0) >= self.threshold

    def clear(self) -> None:
        self._counts.clear()
