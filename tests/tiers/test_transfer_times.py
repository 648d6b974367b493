"""Times of transfers, added up and ranked."""

from __future__ import annotations

from tiers.transfer_times import RECENT, TransferTimes


def test_quantiles_are_times_that_were() -> None:
    """The half and the hundredth, by nearest rank; none of nothing."""
    times = TransferTimes()
    assert times.quantile(0.5) is None
    for milliseconds in range(100, 0, -1):
        times.add(1_000, milliseconds / 1_000)
    assert (times.bytes, round(times.seconds, 9)) == (100_000, 5.05)
    assert (times.quantile(0.0), times.quantile(0.5), times.quantile(0.99)) == (0.001, 0.051, 0.1)
    assert times.quantile(1.0) == 0.1


def test_only_the_recent_ones_are_kept() -> None:
    """However long a run is, it keeps 4 096 times; the sums go on."""
    times = TransferTimes()
    for number in range(RECENT + 10):
        times.add(1, float(number))
    assert (len(times.recent), times.quantile(0.0), times.bytes) == (RECENT, 10.0, RECENT + 10)
