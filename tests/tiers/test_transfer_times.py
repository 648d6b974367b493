"""Times of transfers, added up and ranked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


def test_time_of_several_at_once_counts_once() -> None:
    """Seconds are those with at least one under way; what moved no bytes has no time of its own."""
    times = TransferTimes()
    times.begin(1.0)
    times.begin(2.0)
    times.end(4.0, 10, 1.5)
    assert (times.seconds, times.bytes) == (3.0, 10)
    times.end(5.0, 20, None)
    times.begin(100.0)
    times.end(101.0, 0, 0.5)
    assert (times.seconds, times.bytes, list(times.recent)) == (5.0, 30, [1.5, 0.5])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8))
def test_seconds_are_those_of_the_union(spans: list[tuple[int, int]]) -> None:
    """However transfers overlap, the seconds are the length of the union of their spans."""
    times, spans = TransferTimes(), [(min(span), max(span)) for span in spans]
    moments = [(begin, 0) for begin, _ in spans] + [(end, 1) for _, end in spans]
    for now, is_end in sorted(moments):
        if is_end:
            times.end(float(now), 0, None)
        else:
            times.begin(float(now))
    assert times.seconds == len({n for begin, end in spans for n in range(begin, end)})
