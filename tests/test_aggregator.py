"""The ``take_events()`` contract across sockets: primary first, then the secondaries, round by round."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.aggregator import Aggregator, Round, emitted
from kvbus.events import BlockRemoved, EventBatch
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

TIERS = ("cpu", "fs", "s3")
SECOND = 1_000_000_000


def share(tier: str, seq: int, ts: float, *emit_seqs: int, epoch: int = 0, at_ns: int = 0) -> Received:
    """One tier's share of the drain at ``ts``; an event for each of ``emit_seqs``."""
    events = [BlockRemoved([number], medium=tier.upper(), emit_seq=number) for number in emit_seqs]
    batch = EventBatch(ts=ts, events=list(events), data_parallel_rank=0)
    payload = f"{tier}/{epoch}/{seq}/{ts}".encode()
    return Received(SourceId(tier), epoch, seq, payload, at_ns, False, batch, "map")


def began(tier: str, epoch: int) -> EpochBegan:
    return EpochBegan(SourceId(tier), epoch, "first_sight", "", 0)


def told(rounds: list[Round]) -> list[list[str]]:
    """Rounds in shorthand: each entry as tier and seq (marks without one: epoch)."""
    words = {Received: "", Loss: "lost ", Stray: "stray ", EpochBegan: "epoch "}
    return [
        [
            f"{words[type(entry)]}{entry.source.source}{getattr(entry, 'seq', getattr(entry, 'epoch', ''))}"
            for entry in one.entries
        ]
        for one in rounds
    ]


def feed(into: Aggregator, *entries: Entry) -> list[Round]:
    rounds: list[Round] = []
    for entry in entries:
        rounds += into.add(entry)
        into.check_integrity()
    return rounds


def test_a_round_comes_out_primary_first_whatever_came_first() -> None:
    """Sockets deliver as they like; the round is in the configured order and comes when all have spoken."""
    merge = Aggregator(TIERS)
    assert feed(merge, share("s3", 0, 1.0), share("fs", 0, 1.0)) == []
    assert told(feed(merge, share("cpu", 0, 1.0))) == [["cpu0", "fs0", "s30"]]


def test_a_later_share_says_that_there_was_none() -> None:
    """A tier that has gone on to a later drain has nothing more to say of the earlier one."""
    merge = Aggregator(("cpu", "fs"))
    assert feed(merge, share("cpu", 0, 1.0)) == []
    assert told(feed(merge, share("fs", 0, 2.0))) == [["cpu0"]]
    assert told(feed(merge, share("cpu", 1, 2.0))) == [["cpu1", "fs0"]]


def test_a_silent_tier_holds_the_others_back_for_a_while_only() -> None:
    """After the lateness the round comes out without it, and names it."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0, at_ns=0))
    assert merge.tick(SECOND - 1) == []
    rounds = merge.tick(SECOND)
    assert told(rounds) == [["cpu0"]]
    assert rounds[0].absent == ("fs",)


def test_what_comes_too_late_is_declared_lost_and_kept_aside() -> None:
    """A share of a round that is out is never put in after the fact."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0))
    merge.tick(SECOND)
    assert told(feed(merge, share("fs", 0, 1.0))) == [["lost fs0", "stray fs0"]]
    assert merge.counts == {"not_waited_for": 1, "late": 1}
    assert told(feed(merge, share("cpu", 1, 2.0), share("fs", 1, 2.0))) == [["cpu1", "fs1"]]


def test_losses_and_epochs_stand_before_the_batch_they_came_with() -> None:
    """What a stream says about itself stays at its place in the tier's own order."""
    merge = Aggregator(("cpu", "fs"))
    lost = Loss(SourceId("fs"), 0, 0, 4, "too_old", 0)
    rounds = feed(merge, began("fs", 0), lost, share("fs", 5, 1.0), began("cpu", 0), share("cpu", 0, 1.0))
    assert told(rounds) == [["epoch cpu0", "cpu0", "epoch fs0", "lost fs0", "fs5"]]


def test_one_tier_may_restart_and_the_others_go_on() -> None:
    """A restarted secondary is a new epoch in its place; the primary is unharmed."""
    merge = Aggregator(("cpu", "fs"))
    feed(merge, share("cpu", 0, 1.0), share("fs", 0, 1.0))
    again = feed(merge, share("cpu", 1, 2.0), began("fs", 1), share("fs", 0, 2.0, epoch=1))
    assert told(again) == [["cpu1", "epoch fs1", "fs0"]]


def test_an_engine_that_comes_back_with_its_clock_set_back_is_not_late() -> None:
    """A new process's first batch begins a new time; nothing of it is declared lost."""
    merge = Aggregator(("cpu",))
    feed(merge, share("cpu", 0, 100.0))
    assert told(feed(merge, began("cpu", 1), share("cpu", 0, 50.0, epoch=1))) == [["epoch cpu1", "cpu0"]]


def test_at_the_end_all_that_waits_comes_out() -> None:
    """Nothing is kept back for a tier that will never speak again."""
    merge = Aggregator(("cpu", "fs"))
    feed(merge, share("cpu", 0, 1.0), share("cpu", 1, 2.0), began("fs", 0))
    assert told(merge.finish()) == [["cpu0"], ["cpu1"], ["epoch fs0"]]


def test_the_order_of_making_is_given_back() -> None:
    """By ``emit_seq`` a secondary's store that came before a primary's removal is before it again."""
    entries = [share("cpu", 0, 1.0, 2, 5), share("fs", 0, 1.0, 1, 4)]
    assert [event.block_hashes for _, _, event in emitted(entries) if isinstance(event, BlockRemoved)] == [
        [1], [2], [4], [5],
    ]  # fmt: skip


def test_a_tier_has_one_name() -> None:
    """Two tiers of one name could not be told apart."""
    with pytest.raises(ValueError, match="twice"):
        Aggregator(("cpu", "cpu"))


@given(
    drains=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=20),
    seed=st.integers(0, 2**32),
)
def test_any_interleaving_gives_what_the_manager_drained(drains: list[list[int]], seed: int) -> None:
    """However three sockets interleave, the rounds are the drains: event for event, in order."""
    emit = itertools.count()
    shares: dict[str, list[Received]] = {tier: [] for tier in TIERS}
    drained: list[list[int]] = []
    for number, sizes in enumerate(drains):
        expected = []
        for tier, size in zip(TIERS, sizes, strict=True):
            numbers = [next(emit) for _ in range(size)]
            expected += numbers
            shares[tier].append(share(tier, number, 1.0 + number, *numbers))
        drained.append(expected)
    rng, merge, rounds = random.Random(seed), Aggregator(TIERS), []
    left = {tier: list(queue) for tier, queue in shares.items()}
    while any(left.values()):
        tier = rng.choice([name for name, queue in left.items() if queue])
        rounds += feed(merge, left[tier].pop(0))
    got = [
        [
            event.block_hashes[0]
            for entry in one.entries
            if isinstance(entry, Received) and isinstance(entry.batch, EventBatch)
            for event in entry.batch.events
            if isinstance(event, BlockRemoved)
        ]
        for one in rounds
    ]
    assert got == drained
    assert merge.waiting == 0
