"""Thousands of bad networks: whatever happens on the way, nothing is doubled, invented or lost in silence."""

from __future__ import annotations

from collections import defaultdict

import pytest

from kvbus.log import Entry, EpochBegan, Loss, Received, Stray
from tests.simulation.network import SimulatedPublisher, Weather, simulate


def delivered(entries: list[Entry]) -> dict[int, list[tuple[int, bytes]]]:
    """What was delivered, by epoch."""
    epochs: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, Received):
            epochs[entry.epoch].append((entry.seq, entry.payload))
    return dict(epochs)


def losses(entries: list[Entry]) -> list[Loss]:
    return [entry for entry in entries if isinstance(entry, Loss)]


def said(publisher: SimulatedPublisher) -> dict[int, list[tuple[int, bytes]]]:
    """What the publisher really published, by life."""
    lives: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for life, seq, payload in publisher.said:
        lives[life].append((seq, payload))
    return dict(lives)


def check_accounts(entries: list[Entry]) -> None:
    """Each number below the last one of an epoch is delivered or declared lost, once, in rising order."""
    place: dict[int, int] = {}
    for entry in entries:
        match entry:
            case EpochBegan():
                assert entry.epoch not in place
                assert all(epoch < entry.epoch for epoch in place)
                place[entry.epoch] = 0
            case Received():
                assert entry.seq == place[entry.epoch]
                place[entry.epoch] = entry.seq + 1
            case Loss():
                assert entry.first_seq == place[entry.epoch]
                assert entry.last_seq >= entry.first_seq
                place[entry.epoch] = entry.last_seq + 1


@pytest.mark.parametrize("seed", range(150))
def test_lost_doubled_and_reordered_messages_are_healed_by_the_replay(seed: int) -> None:
    """With a replay socket that answers, a lossy, doubling, reordering network changes nothing in what is
    delivered.
    """
    weather = Weather(
        lose=0.1, double=0.1, delay=0.1, slow_replay=0.1 * (seed % 3), topic_in_replay=seed % 2 == 0
    )
    publisher, entries, _ = simulate(seed, weather)
    check_accounts(entries)
    assert not losses(entries)
    got, sent = delivered(entries)[0], said(publisher)[0]
    # What is lost at the very end shows to nobody: no later number reveals it.
    assert got == sent[: len(got)]
    assert len(got) >= len(sent) - 20


@pytest.mark.parametrize("seed", range(150))
def test_replays_that_are_cut_or_have_holes_are_asked_again(seed: int) -> None:
    """Replays that end early, lack batches or lack the end marker cost time, not batches."""
    weather = Weather(lose=0.05, cut_replay=0.2, hole_in_replay=0.2, lose_marker=0.1)
    publisher, entries, _ = simulate(seed, weather)
    check_accounts(entries)
    got, sent = delivered(entries)[0], said(publisher)[0]
    assert set(got) <= set(sent)
    missing = {seq for seq, _ in sent[: len(got)]} - {seq for seq, _ in got}
    assert missing <= {s for loss in losses(entries) for s in range(loss.first_seq, loss.last_seq + 1)}
    assert all(loss.reason in ("replay_incomplete", "absent_from_replay") for loss in losses(entries))


@pytest.mark.parametrize("seed", range(100))
def test_burned_numbers_are_losses_and_nothing_else_is(seed: int) -> None:
    """A number that the publisher never sent becomes a Loss with the reason absent_from_replay, exactly
    those do.
    """
    publisher, entries, _ = simulate(seed, Weather(lose=0.05, burn=0.03))
    check_accounts(entries)
    got, sent = delivered(entries)[0], said(publisher)[0]
    assert got == sent[: len(got)]
    burned = set(range(got[-1][0])) - {seq for seq, _ in got}
    lost = {s for loss in losses(entries) for s in range(loss.first_seq, loss.last_seq + 1)}
    assert lost == burned
    assert {loss.reason for loss in losses(entries)} <= {"absent_from_replay", "too_old"}


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("says_hello", [False, True])
def test_each_life_of_a_publisher_is_one_epoch(seed: int, says_hello: bool) -> None:
    """Batches of two lives never share an epoch, and no batch of a new life is taken for a duplicate of the
    old one's.
    """
    each_life_is_one_epoch(seed, says_hello=says_hello)


def each_life_is_one_epoch(seed: int, *, says_hello: bool, least_life: int = 0) -> None:
    """``least_life``: how many batches a publisher process lives for at least."""
    weather = Weather(
        lose=0.05,
        double=0.05,
        restart=0.01,
        says_hello=says_hello,
        slow_replay=0.05 * (seed % 4),
        least_life=least_life,
    )
    publisher, entries, _ = simulate(seed, weather)
    check_accounts(entries)
    life_of = {payload: life for life, _, payload in publisher.said}
    for batches in delivered(entries).values():
        assert len({life_of[payload] for _, payload in batches}) == 1
    got = {payload for batches in delivered(entries).values() for _, payload in batches}
    aside = {entry.payload for entry in entries if isinstance(entry, Stray)}
    for life, sent in said(publisher).items():
        heard = [seq for seq, payload in sent if payload in got]
        if heard:
            last = max(heard)
            lost = {s for loss in losses(entries) for s in range(loss.first_seq, loss.last_seq + 1)}
            for seq, payload in sent:
                assert payload in got or payload in aside or seq in lost or seq > last, (life, seq)


@pytest.mark.parametrize("seed", range(100))
def test_without_a_replay_socket_each_hole_is_declared(seed: int) -> None:
    """With nobody to ask, what the network lost is declared lost, and what came late is in order or set
    aside.
    """
    publisher, entries, _ = simulate(seed, Weather(lose=0.05, double=0.05, delay=0.05), can_ask=False)
    check_accounts(entries)
    got, sent = delivered(entries)[0], said(publisher)[0]
    assert set(got) <= set(sent)
    lost = {s for loss in losses(entries) for s in range(loss.first_seq, loss.last_seq + 1)}
    assert lost == {seq for seq, _ in sent if seq <= got[-1][0]} - {seq for seq, _ in got}
    assert {loss.reason for loss in losses(entries)} <= {"no_replay", "late_join"}


@pytest.mark.parametrize("seed", range(50))
def test_a_replay_buffer_that_moved_on_is_said_to_be_too_old(seed: int) -> None:
    """What fell out of the publisher's buffer before it was asked is lost, and the reason says so."""
    publisher, entries, _ = simulate(seed, Weather(lose=0.3), keep=4)
    check_accounts(entries)
    got, sent = delivered(entries)[0], said(publisher)[0]
    assert set(got) <= set(sent)
    assert any(loss.reason == "too_old" for loss in losses(entries))


SKIES = {
    "hello comes late": Weather(
        lose=0.05, restart=0.02, says_hello=True, hello_late=True, slow_join=40, least_life=80
    ),
    "nobody says hello": Weather(lose=0.05, restart=0.02, slow_join=40, least_life=80),
    "clocks are set back": Weather(lose=0.05, clock_back=0.02, restart=0.01, least_life=80),
    "the next host's clock is behind": Weather(lose=0.02, restart=0.01, skew_s=5.0, least_life=80),
    "numbers are burned": Weather(
        lose=0.05, burn=0.03, restart=0.01, slow_replay=0.3, says_hello=True, hello_late=True, least_life=80
    ),
    "late batches of a dead process": Weather(
        lose=0.03, double=0.03, delay=0.03, restart=0.01, least_life=80
    ),
}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("can_ask", [True, False])
@pytest.mark.parametrize("sky", SKIES)
def test_whatever_happens_between_two_lives_each_batch_is_accounted_for_once(
    sky: str, can_ask: bool, seed: int
) -> None:
    """Reconnects, clocks set back, numbers that ran past ours: nothing doubled, no epoch of two lives, no
    life is two epochs, and no number is said to be absent that its publisher still has.
    """
    publisher, entries, _ = simulate(seed, SKIES[sky], can_ask=can_ask)
    check_accounts(entries)
    life_of = {payload: life for life, _, payload in publisher.said}
    got = [entry for entry in entries if isinstance(entry, Received)]
    assert len({entry.payload for entry in got}) == len(got)
    life_in = {entry.epoch: life_of[entry.payload] for entry in got}
    assert {(entry.epoch, life_of[entry.payload]) for entry in got} == set(life_in.items())
    assert len(set(life_in.values())) == len(life_in)
    had = {(life, seq) for life, seq, _ in publisher.said}
    for loss in losses(entries):
        if loss.reason in ("absent_from_replay", "too_old"):
            assert not any((life_in[loss.epoch], s) in had for s in range(loss.first_seq, loss.last_seq + 1))
    assert can_ask or {loss.reason for loss in losses(entries)} <= {"no_replay", "late_join", "restart"}
    delivered_payloads = {entry.payload for entry in got}
    aside = {entry.payload for entry in entries if isinstance(entry, Stray)}
    lost = {
        (life_in.get(loss.epoch), s)
        for loss in losses(entries)
        for s in range(loss.first_seq, loss.last_seq + 1)
    }
    for life, sent in said(publisher).items():
        last = max((seq for seq, payload in sent if payload in delivered_payloads), default=-1)
        for seq, payload in sent:
            accounted = payload in delivered_payloads or payload in aside or (life, seq) in lost
            assert accounted or seq > last, (life, seq)
