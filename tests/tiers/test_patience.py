"""Waiting for others: longer each time, anew with progress, and not for ever."""

from __future__ import annotations

from typing import NoReturn

import pytest

from tiers.errors import TierStalledError
from tiers.serving.patience import LONGEST_S, Patience


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def test_the_first_wait_is_none() -> None:
    """What is done at once costs no sleep; then each sleep is twice the last, up to 2 ms."""
    clock = Clock()
    patience = Patience("blocks", 10.0, clock=clock, sleep=clock.sleep)
    for _ in range(10):
        patience.wait()
    assert clock.slept[:3] == pytest.approx([50e-6, 100e-6, 200e-6])
    assert clock.slept[-1] == LONGEST_S


def test_progress_begins_the_waiting_anew() -> None:
    """With progress it can go on for longer than the limit, and the next wait is short again."""
    clock = Clock()
    patience = Patience("blocks", 0.01, clock=clock, sleep=clock.sleep)
    for progress in range(100):
        for _ in range(5):
            patience.wait(progress)
    assert clock.now > 0.05
    assert max(clock.slept) < LONGEST_S


def test_waiting_without_progress_has_an_end() -> None:
    """After the limit it is an error that names what was waited for, and a TimeoutError."""
    clock = Clock()
    patience = Patience("12 blocks", 0.01, clock=clock, sleep=clock.sleep)
    with pytest.raises(TierStalledError, match="12 blocks: no progress") as raised:
        wait_for_ever(patience)
    assert isinstance(raised.value, TimeoutError)
    assert clock.now < 0.02


def wait_for_ever(patience: Patience) -> NoReturn:
    while True:
        patience.wait()
