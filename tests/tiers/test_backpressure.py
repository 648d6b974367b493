"""When a tier asks for no more stores, and when it does again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.errors import TierValueError
from tiers.medium import Locality
from tiers.storage.backpressure import MIB, Backpressure


def fed(*figures: float, high: float = 5.0, low: float = 1.0, alpha: float = 0.5) -> Backpressure:
    """After one MiB in each of so many seconds."""
    made = Backpressure(high=high, low=low, alpha=alpha)
    for seconds in figures:
        made.stored(seconds, MIB)
        made.check_integrity()
    return made


def test_three_figures_warm_it_up() -> None:
    """Until three stores are known nothing is said; then their mean is the first value."""
    assert fed(100, 100).mean is None
    assert not fed(100, 100).is_pressed
    assert fed(3, 6, 9).mean == 6
    assert fed(3, 6, 9).is_pressed


def test_the_newest_weighs_alpha() -> None:
    """Afterwards the mean goes a share of the way to each new figure."""
    assert fed(2, 2, 2, 4).mean == 3
    assert fed(2, 2, 2, 4, alpha=0.25).mean == 2.5


def test_between_the_marks_it_stays_as_it_is() -> None:
    """Pressed above the upper mark, and until below the lower one: no flutter in between."""
    assert not fed(4, 4, 4).is_pressed
    assert fed(8, 8, 8, 0).mean == 4
    assert fed(8, 8, 8, 0).is_pressed
    assert not fed(8, 8, 8, 0, 0, 0, 0).is_pressed


def test_it_is_a_matter_of_bytes() -> None:
    """Seconds count a MiB; a store of no bytes says nothing."""
    made = Backpressure(high=5.0, low=1.0, warm_up=1)
    made.stored(1.0, 0)
    assert made.mean is None
    made.stored(1.0, MIB // 2)
    assert made.mean == 2.0


def test_reset_knows_nothing() -> None:
    """After a reset it is not pressed, and warms up anew."""
    made = fed(8, 8, 8)
    made.reset()
    made.check_integrity()
    assert (made.is_pressed, made.mean) == (False, None)


def test_the_marks() -> None:
    """A local medium is pressed above 5 ms a MiB until below 1 ms, one behind a network above 20 until 5."""
    local, network = Backpressure.of(Locality.LOCAL), Backpressure.of(Locality.REMOTE)
    assert (local.high, local.low) == (0.005, 0.001)
    assert (network.high, network.low) == (0.020, 0.005)
    for wrong in ({"high": 1, "low": 2}, {"high": 1, "low": -1}):
        with pytest.raises(TierValueError):
            Backpressure(**wrong)
    with pytest.raises(TierValueError):
        Backpressure(high=1, low=1, alpha=0)
    with pytest.raises(TierValueError):
        Backpressure(high=1, low=1, warm_up=0)


@given(st.lists(st.floats(0, 10), min_size=3))
def test_the_mean_is_between_what_was_seen(figures: list[float]) -> None:
    """The mean never leaves the range of its figures, and pressed is what the marks say."""
    made = fed(*figures)
    assert made.mean is not None
    assert min(figures) - 1e-9 <= made.mean <= max(figures) + 1e-9
    assert not (made.is_pressed and made.mean <= 1)
    assert made.is_pressed or made.mean <= 5
