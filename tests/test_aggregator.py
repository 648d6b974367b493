"""The ``take_events()`` contract across sockets: primary first, then the secondaries, round by round."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from kvbus.aggregator import PATIENCE, Aggregator, Round, emitted
from kvbus.events import BlockRemoved, EventBatch, Undecodable
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Standing, Stray
from sinks.ledger import Ledger, Standings

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
    """Rounds in shorthand: each entry as tier and (first) seq; an epoch with its number."""
    return [[_word(entry) for entry in one.entries] for one in rounds]


def _word(entry: Entry) -> str:
    tier = entry.source.source
    match entry:
        case Received():
            return f"{tier}{entry.seq}"
        case Loss():
            return f"lost {tier}{entry.first_seq}"
        case Stray():
            return f"stray {tier}{entry.seq}"
        case EpochBegan():
            return f"epoch {tier}{entry.epoch}"


def feed(into: Aggregator, *entries: Entry) -> list[Round]:
    rounds: list[Round] = []
    for entry in entries:
        rounds += into.add(entry)
        into.check_integrity()
    return rounds


def test_a_round_names_the_tiers_that_went_on_without_a_share_of_it() -> None:
    """A publisher that died and is back before anybody stopped waiting left no share, and no number to miss:
    the round itself says whose share is not in it.
    """
    merge = Aggregator(TIERS)
    feed(merge, share("cpu", 0, 1.0), share("fs", 0, 1.0), share("s3", 0, 1.0))
    feed(merge, share("cpu", 1, 2.0), share("s3", 1, 2.0), share("cpu", 2, 3.0), share("s3", 2, 3.0))
    rounds = feed(merge, began("fs", 1), share("fs", 0, 3.0, epoch=1))
    assert told(rounds) == [["cpu1", "s31"], ["cpu2", "epoch fs1", "fs0", "s32"]]
    assert [one.skipped_by for one in rounds] == [("fs",), ()]
    assert all(one.absent == () for one in rounds)
    assert merge.counts["skipped"] == 1


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
    """A share whose place is behind what is out is never put in after the fact."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0), share("cpu", 1, 2.0))
    assert told(merge.tick(SECOND)) == [["cpu0"], ["cpu1"]]
    assert told(feed(merge, share("fs", 0, 1.0))) == [["lost fs0", "stray fs0"]]
    assert merge.counts == {"not_waited_for": 2, "late": 1}
    assert told(feed(merge, share("cpu", 2, 3.0), share("fs", 1, 3.0))) == [["cpu2", "fs1"]]


def test_a_share_that_still_finds_its_place_is_not_late() -> None:
    """As long as nothing that belongs behind it is out, a share that was given up comes in its order."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0))
    assert told(merge.tick(SECOND)) == [["cpu0"]]
    assert told(feed(merge, share("fs", 0, 1.0))) == [["fs0"]]
    feed(merge, share("fs", 1, 2.0, at_ns=SECOND))
    assert told(merge.tick(2 * SECOND)) == [["fs1"]]
    assert told(feed(merge, share("cpu", 1, 2.0))) == [["lost cpu1", "stray cpu1"]]


def test_a_tier_that_speaks_is_waited_for_longer_but_not_for_ever() -> None:
    """Who is behind and catches up is not silent; a tier whose clock lags holds a round back ten times as
    long at most."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 100.0))
    for number in range(PATIENCE - 1):
        feed(merge, share("fs", number, 1.0 + number, at_ns=(number + 1) * SECOND - 1))
        assert merge.tick((number + 1) * SECOND) == []
    feed(merge, share("fs", PATIENCE, 50.0, at_ns=PATIENCE * SECOND - 1))
    assert told(merge.tick(PATIENCE * SECOND)) == [["cpu0"]]


def test_what_has_no_readable_time_waits_for_the_batch_after_it() -> None:
    """An undecodable payload, or a time that is no number, has no drain of its own and is no reason to lose
    or to reorder anything."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    torn = Received(SourceId("cpu"), 0, 1, b"x", 0, False, Undecodable("torn", Raw(b"x")), "map")
    assert told(feed(merge, share("cpu", 0, 1.0), share("fs", 0, 1.0), torn)) == [["cpu0", "fs0"]]
    assert merge.waiting == 1
    assert told(feed(merge, share("cpu", 2, 2.0), share("fs", 1, 2.0))) == [["cpu1", "cpu2", "fs1"]]
    assert feed(merge, share("fs", 2, math.nan), share("cpu", 3, math.inf)) == []
    assert told(merge.tick(SECOND)) == [["cpu3", "fs2"]]
    assert told(feed(merge, share("cpu", 4, 3.0), share("fs", 3, 3.0))) == [["cpu4", "fs3"]]


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


def test_a_whole_engine_may_come_back_with_its_clock_set_back() -> None:
    """What waits of the old time comes out first; then rounds are complete again, and nothing is late."""
    merge = Aggregator(("cpu", "fs"))
    feed(merge, share("cpu", 0, 100.0), share("fs", 0, 100.0), share("fs", 1, 101.0))
    again = feed(merge, began("cpu", 1), share("cpu", 0, 50.0, epoch=1))
    assert told(again) == [["fs1"]]
    rest = feed(merge, began("fs", 1), share("fs", 0, 50.0, epoch=1), share("fs", 1, 51.0, epoch=1))
    assert told(rest) == [["epoch cpu1", "cpu0", "epoch fs1", "fs0"]]
    assert told(feed(merge, share("cpu", 1, 51.0, epoch=1))) == [["cpu1", "fs1"]]
    assert merge.counts["late"] == 0


def test_a_restarted_tier_is_late_where_others_would_be() -> None:
    """A new life is no excuse: its share of a round that others have passed is declared."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0), share("fs", 0, 1.0), share("cpu", 1, 2.0), share("cpu", 2, 3.0))
    merge.tick(SECOND)
    late = feed(merge, began("fs", 1), share("fs", 0, 2.0, epoch=1))
    assert told(late) == [["epoch fs1", "lost fs0", "stray fs0"]]


def test_a_clock_that_is_set_back_in_one_life_loses_nothing() -> None:
    """A publisher's time that goes back keeps its batches in their order, whether the one before waits."""
    merge = Aggregator(("cpu", "fs"))
    assert told(feed(merge, share("cpu", 0, 5.0), share("fs", 0, 5.0))) == [["cpu0", "fs0"]]
    assert feed(merge, share("cpu", 1, 3.0), share("cpu", 2, 2.0)) == []
    assert told(feed(merge, share("fs", 1, 4.0))) == [["cpu1", "cpu2"]]
    assert merge.counts["clock_back"] == 2
    assert merge.counts["late"] == 0


def test_our_own_clock_may_be_set_back() -> None:
    """A round then waits as long again, not until the clock is where it was."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0, at_ns=100 * SECOND), began("fs", 0))
    assert merge.tick(10 * SECOND) == []
    assert told(merge.tick(11 * SECOND)) == [["cpu0"], ["epoch fs0"]]


def test_marks_that_no_batch_follows_come_out_in_time() -> None:
    """A loss at the end of a stream does not wait for a batch that may never come."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, Loss(SourceId("fs"), 0, 0, 4, "too_old", 0))
    assert merge.tick(SECOND - 1) == []
    assert told(merge.tick(SECOND)) == [["lost fs0"]]


def test_what_waits_is_bounded() -> None:
    """Beyond the limits, in entries or bytes, the oldest rounds come out as they are, and are counted."""
    few = Aggregator(("cpu", "fs"), entries_max=2)
    rounds = feed(few, *(share("cpu", number, 1.0 + number) for number in range(5)))
    assert told(rounds) == [["cpu0"], ["cpu1"], ["cpu2"]]
    assert rounds[0].absent == ("fs",)
    assert few.counts == {"no_room": 3, "not_waited_for": 3}
    size = len(share("cpu", 0, 1.0).payload)
    small = Aggregator(("cpu", "fs"), bytes_max=size)
    assert told(feed(small, share("cpu", 0, 1.0), share("cpu", 1, 2.0))) == [["cpu0"]]
    marks = Aggregator(("cpu", "fs"), entries_max=1)
    assert told(feed(marks, began("cpu", 0), began("fs", 0))) == [["epoch cpu0", "epoch fs0"]]


def test_at_the_end_all_that_waits_comes_out() -> None:
    """Nothing is kept back for a tier that will never speak again."""
    merge = Aggregator(("cpu", "fs"))
    feed(merge, share("cpu", 0, 1.0), share("cpu", 1, 2.0), began("fs", 0))
    assert told(merge.finish()) == [["cpu0"], ["cpu1"], ["epoch fs0"]]


def test_who_goes_on_another_time_leaves_rounds_that_have_only_begun() -> None:
    """Of a stream in full flow the next tier's share is only on its way: a round that began after the stop is
    not torn, one that had begun is kept as it is."""
    merge = Aggregator(("cpu", "fs"))
    feed(merge, share("fs", 0, 1.0, at_ns=5), share("fs", 1, 2.0, at_ns=6), began("cpu", 0))
    assert merge.waited_for(until_ns=4) == []
    assert merge.waited_for(until_ns=5) == ["cpu"]
    assert told(merge.finish(until_ns=5)) == [["fs0"], ["epoch cpu0"]]
    assert merge.waiting == 1


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


def standing(last_ts: float) -> Standing:
    return Standing(0, 1, last_ts, "", {})


def test_standings_say_what_is_out() -> None:
    """The rest of a round that a log has half of comes at once; a share whose place it has passed is late."""
    half = {SourceId("cpu"): standing(5.0), SourceId("fs"): standing(4.0), SourceId("other"): standing(9.0)}
    assert told(feed(Aggregator(("cpu", "fs"), standings=half), share("fs", 1, 5.0))) == [["fs1"]]
    passed = {SourceId("cpu"): standing(4.0), SourceId("fs"): standing(5.0)}
    late = feed(Aggregator(("cpu", "fs"), standings=passed), share("cpu", 1, 5.0))
    assert told(late) == [["lost cpu1", "stray cpu1"]]
    nothing = {SourceId("cpu"): standing(0.0), SourceId("fs"): standing(math.nan)}
    assert feed(Aggregator(("cpu", "fs"), standings=nothing), share("fs", 1, -1.0)) == []


def entries_of(rounds: list[Round]) -> list[Entry]:
    return [entry for one in rounds for entry in one.entries]


@given(
    spoken=st.lists(st.sets(st.sampled_from(TIERS), min_size=1), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_whoever_goes_on_from_a_log_goes_on_as_if_it_had_never_stopped(
    spoken: list[set[str]], seed: int, data: st.DataObject
) -> None:
    """Cut after any entry, in the middle of a round too: with the log's standings the rest comes as it would
    have come, however the sockets interleave, also where a tier had nothing to say."""
    rng = random.Random(seed)
    seqs = {tier: itertools.count() for tier in TIERS}
    shares = [
        share(tier, next(seqs[tier]), 1.0 + number, at_ns=0)
        for number, tiers in enumerate(spoken)
        for tier in TIERS
        if tier in tiers
    ]
    whole = played(Aggregator(TIERS), shares, rng)
    assert whole == shares
    cut = data.draw(st.integers(0, len(whole)))
    standings = Standings()
    for entry in whole[:cut]:
        standings.add(entry)
    rest = [one for one in shares if one not in whole[:cut]]
    assert whole[:cut] + played(Aggregator(TIERS, standings=standings.result()), rest, rng) == whole


def played(merge: Aggregator, shares: list[Received], rng: random.Random) -> list[Entry]:
    """The shares through an aggregator, the sources interleaved at random."""
    left = {tier: [one for one in shares if one.source.source == tier] for tier in TIERS}
    rounds: list[Round] = []
    while any(left.values()):
        tier = rng.choice([name for name, queue in left.items() if queue])
        rounds += feed(merge, left[tier].pop(0))
    return entries_of(rounds + merge.finish())


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(TIERS), st.floats(allow_nan=True), st.booleans(), st.integers(0, 3)),
        max_size=60,
    )
)
def test_whatever_clocks_say_every_batch_comes_out_once_and_in_its_order(
    steps: list[tuple[str, float, bool, int]],
) -> None:
    """Times that are no numbers, go back or run ahead, restarts and waiting: each batch leaves as itself or
    as a loss, and a sink takes them all."""
    merge = Aggregator(TIERS, lateness_ns=2, entries_max=8)
    seqs, epochs, out, now_ns = dict.fromkeys(TIERS, 0), dict.fromkeys(TIERS, 0), [], 0
    for tier, ts, restarts, passes in steps:
        now_ns += passes
        if restarts:
            epochs[tier] += 1
            seqs[tier] = 0
            out += feed(merge, began(tier, epochs[tier]))
        out += feed(merge, share(tier, seqs[tier], ts, epoch=epochs[tier], at_ns=now_ns))
        seqs[tier] += 1
        out += merge.tick(now_ns)
        merge.check_integrity()
    entries = entries_of(out + merge.finish())
    Ledger().admit(entries)
    assert merge.waiting == 0
    assert sum(isinstance(entry, Received | Loss) for entry in entries) == len(steps)
