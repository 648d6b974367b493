"""The same bad networks, many more of them: `make soak`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import test_bad_networks as networks

SEEDS = range(10_000, 13_000)
LEAST_LIFE = 80
"""Batches that a publisher process lives for. One that dies again before its first death is settled, within a
few batches, can be taken for the one before or after it: nothing on the wire tells them apart."""


@pytest.mark.soak
@pytest.mark.parametrize(
    "holds",
    [
        networks.test_lost_doubled_and_reordered_messages_are_healed_by_the_replay,
        networks.test_replays_that_are_cut_or_have_holes_are_asked_again,
        networks.test_burned_numbers_are_losses_and_nothing_else_is,
        lambda seed: networks.each_life_is_one_epoch(seed, says_hello=False, least_life=LEAST_LIFE),
        lambda seed: networks.each_life_is_one_epoch(seed, says_hello=True, least_life=LEAST_LIFE),
        networks.test_without_a_replay_socket_each_hole_is_declared,
    ],
    ids=["healed", "cut replays", "burned", "restarts", "restarts with hello", "no replay"],
)
def test_thousands_more_bad_networks(holds: Callable[[int], None]) -> None:
    """What holds for the seeds of every day holds for thousands of others."""
    for seed in SEEDS:
        try:
            holds(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
