"""Whether a tier's medium keeps up with what is stored on it. Pure: fed with seconds and bytes.

A block under a store pins a slot of the primary tier, so a slow medium eats the primary's memory. The mean
time a MiB takes to be stored, weighted towards the recent, is held against two marks: above the upper one
the tier asks for no more stores, until it is below the lower one. Loads are not its business. The rule and
its figures are vLLM's (PR 50045).
"""

from __future__ import annotations

from typing import Final, Self

from tiers.errors import TierValueError
from tiers.medium import Locality

MIB: Final = 1 << 20


class Backpressure:
    """Pressed from a mean above ``high`` until it is below ``low``, in seconds a MiB.

    ``alpha`` is the weight of the newest figure. The first ``warm_up`` figures only seed the mean. Raises
    ``TierValueError`` for marks that cross, or weights that are none.
    """

    def __init__(self, *, high: float, low: float, alpha: float = 0.3, warm_up: int = 3) -> None:
        if not (0 <= low <= high and 0 < alpha <= 1 and warm_up >= 1):
            raise TierValueError(
                f"backpressure with high {high}, low {low}, alpha {alpha}, warm_up {warm_up}",
                next_step="Give 0 ≤ low ≤ high, 0 < alpha ≤ 1 and warm_up ≥ 1.",
            )
        self.high = high
        self.low = low
        self.alpha = alpha
        self.warm_up = warm_up
        self.reset()

    @classmethod
    def of(cls, locality: Locality) -> Self:
        """For a medium of this machine: 5 ms and 1 ms a MiB; behind a network: 20 ms and 5 ms."""
        if locality is Locality.REMOTE:
            return cls(high=0.020, low=0.005)
        return cls(high=0.005, low=0.001)

    def reset(self) -> None:
        """Know nothing."""
        self.is_pressed = False
        self.mean: float | None = None
        """Seconds a MiB; None until warm."""
        self._seeds: list[float] = []

    def stored(self, seconds: float, num_bytes: int) -> None:
        """Storing ``num_bytes``, all of them or in vain, took so long. No bytes say nothing."""
        if num_bytes <= 0:
            return
        figure = seconds * MIB / num_bytes
        if self.mean is not None:
            self.mean += self.alpha * (figure - self.mean)
        else:
            self._seeds.append(figure)
            if len(self._seeds) < self.warm_up:
                return
            self.mean = sum(self._seeds) / self.warm_up
            self._seeds.clear()
        self.is_pressed = self.mean > (self.low if self.is_pressed else self.high)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        assert len(self._seeds) < self.warm_up, "more seeds than asked for"
        assert self.mean is None or not self._seeds, "warm, and still warming up"
        assert not self.is_pressed or (self.mean is not None and self.mean > self.low), "pressed by nothing"
