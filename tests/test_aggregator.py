"""The ``take_events()`` contract across sockets: primary first, then the secondaries, round by round."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from kvbus.aggregator import PATIENCE, Aggregator
from kvbus.events import BlockRemoved, EventBatch, Undecodable
from kvbus.log import Entry, EpochBegan, LastBatch, Loss, Received, SourceId, Standing, Stray
from kvbus.rounds import Round, emitted
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


def line(rounds: list[Round]) -> str:
    """The same, without the rounds."""
    return " ".join(word for one in told(rounds) for word in one)


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
            shares[tier].append(share(tier, number, 1.0 + number / 8, *numbers))
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


def standing(position: int, ts: float, *, epoch: int = 0, last_epoch: int = 0, at_ns: int = 0) -> Standing:
    """A stream in ``epoch`` whose last batch, of ``last_epoch``, is at ``position``."""
    return Standing(epoch, 1, ts, "", {}, LastBatch(position, last_epoch, ts, at_ns, False))


def standings_of(entries: list[Entry]) -> dict[SourceId, Standing]:
    """Where the streams of a log stand."""
    standings = Standings()
    for entry in entries:
        standings.add(entry)
    return standings.result()


def test_standings_say_what_is_out() -> None:
    """The rest of a round that a log has half of comes at once; a share whose place it has passed is late."""
    half = {
        SourceId("cpu"): standing(8, 5.0),
        SourceId("fs"): standing(7, 4.0),
        SourceId("x"): standing(9, 9),
    }
    assert told(feed(Aggregator(("cpu", "fs"), standings=half), share("fs", 1, 5.0))) == [["fs1"]]
    passed = {SourceId("cpu"): standing(0, 4.0), SourceId("fs"): standing(1, 5.0)}
    late = feed(Aggregator(("cpu", "fs"), standings=passed), share("cpu", 1, 5.0))
    assert told(late) == [["lost cpu1", "stray cpu1"]]
    nothing = {SourceId("cpu"): Standing(0, 1, 0.0, "", {}), SourceId("fs"): Standing(0, 0, math.nan, "", {})}
    assert feed(Aggregator(("cpu", "fs"), standings=nothing), share("fs", 1, -1.0)) == []


def test_an_epoch_without_a_batch_hides_nothing_of_what_is_out() -> None:
    """A log that ends with the sight of a new process still has the last batch of the old one."""
    log: list[Entry] = [share("cpu", 0, 1.0), share("fs", 0, 1.0), share("fs", 1, 5.0), began("fs", 1)]
    merge = Aggregator(("cpu", "fs"), standings=standings_of(log))
    assert told(feed(merge, share("cpu", 1, 4.0))) == [["lost cpu1", "stray cpu1"]]
    feed(merge, share("fs", 0, 6.0, epoch=1))
    assert told(feed(merge, share("cpu", 2, 6.0))) == [["cpu2", "fs0"]]


def test_whoever_goes_on_after_a_clock_was_set_back_goes_on_in_the_new_time() -> None:
    """The last batch of the log counts, not the latest time in it: a tier that was away is not what the
    others wait for, and comes back into the new time."""
    log: list[Entry] = [share("cpu", 0, 100.0), share("fs", 0, 100.0), began("cpu", 1)]
    log.append(share("cpu", 0, 50.0, epoch=1))
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND, standings=standings_of(log))
    feed(merge, share("cpu", 1, 51.0, epoch=1))
    assert told(merge.tick(SECOND)) == [["cpu1"]]
    feed(merge, share("cpu", 2, 52.0, epoch=1), began("fs", 1))
    assert told(feed(merge, share("fs", 0, 52.0, epoch=1))) == [["cpu2", "epoch fs1", "fs0"]]
    assert merge.counts["late"] == 0


def test_what_the_old_life_still_had_to_say_comes_before_the_new_one() -> None:
    """A clock set back while a tier's last shares are under way: they are waited for, and are in their place;
    where the wait was too long, they are declared, also after a restart of the reader."""
    new: list[Entry] = [began("cpu", 1), share("cpu", 0, 50.0, epoch=1), share("cpu", 1, 51.0, epoch=1)]
    old = [share("fs", 1, 99.0), share("fs", 2, 100.0)]
    back: list[Entry] = [began("fs", 1), share("fs", 0, 50.0, epoch=1), share("fs", 1, 51.0, epoch=1)]
    begin = [share("cpu", 0, 98.0), share("fs", 0, 98.0)]
    begin += [share("cpu", 1, 99.0), share("cpu", 2, 100.0)]
    whole = "cpu0 fs0 cpu1 fs1 cpu2 fs2 epoch cpu1 cpu0 epoch fs1 fs0 cpu1 fs1"
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    assert line(feed(merge, *begin, *new, *old, *back)) == whole
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    out = feed(merge, *begin, *new)
    out += merge.tick(SECOND)
    again = Aggregator(("cpu", "fs"), lateness_ns=SECOND, standings=standings_of(entries_of(out)))
    for one in (merge, again):
        late = "lost fs1 stray fs1 lost fs2 stray fs2 epoch fs1 lost fs0 stray fs0 fs1"
        assert line(feed(one, *old, *back)) == late


def test_a_tier_whose_clock_was_not_set_back_is_late_for_a_while_only() -> None:
    """One tier's process speaks of an earlier time and the others do not: they cannot be told from a life
    that is over until they have gone on for longer than anything is on its way."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(
        merge, share("cpu", 0, 100.0), share("fs", 0, 100.0), began("cpu", 1), share("cpu", 0, 99.0, epoch=1)
    )
    merge.tick(SECOND)
    assert told(feed(merge, share("fs", 1, 101.0, at_ns=SECOND))) == [["lost fs1", "stray fs1"]]
    later = (1 + PATIENCE) * SECOND
    feed(merge, share("fs", 2, 111.0, at_ns=later))
    assert told(feed(merge, share("cpu", 1, 111.0, epoch=1, at_ns=later))) == [["cpu1", "fs2"]]


def test_a_process_that_comes_back_after_the_clock_was_set_back_is_in_the_new_life() -> None:
    """Long away, it remembers less than the old time had: it would be late there, and is not."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("fs", 0, 4.0), share("cpu", 0, 4.0), share("cpu", 1, 9.0))
    assert told(merge.tick(SECOND)) == [["cpu1"]]
    assert feed(merge, began("cpu", 1), share("cpu", 0, 5.0, epoch=1)) == []
    rounds = feed(merge, began("fs", 1), share("fs", 0, 5.0, epoch=1))
    assert told(rounds) == [["epoch cpu1", "cpu0", "epoch fs1", "fs0"]]


def test_two_lives_may_be_over_before_a_tier_has_caught_up() -> None:
    """An engine that dies twice in a row, its clock set back each time: a tier that lags goes through the
    same lives as the others, in their order."""
    merge = Aggregator(("cpu", "fs"))
    lives: list[list[Entry]] = [
        [*([began(tier, epoch)] if epoch else []), share(tier, 0, 9.0 - epoch, epoch=epoch)]
        for tier in ("cpu", "fs")
        for epoch in range(3)
    ]
    rounds = feed(merge, *(entry for life in lives for entry in life))
    assert told(rounds) == [
        ["cpu0", "fs0"],
        ["epoch cpu1", "cpu0", "epoch fs1", "fs0"],
        ["epoch cpu2", "cpu0", "epoch fs2", "fs0"],
    ]


def test_a_time_far_ahead_of_all_others_is_not_believed() -> None:
    """One wrong stamp does not make all that the others say late: it has no drain, and comes with the next
    batch of its tier, or alone. It is counted."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0), share("fs", 0, 1.0), share("fs", 1, 4e9), share("fs", 2, 2.0))
    assert told(feed(merge, share("cpu", 1, 2.0))) == [["cpu1", "fs1", "fs2"]]
    feed(merge, share("fs", 3, 4e9))
    alone = merge.tick(SECOND)
    assert told(alone) == [["fs3"]]
    assert merge.ahead == {"fs": 2}
    log = entries_of(alone)
    feed(merge, share("cpu", 2, 3.0))
    assert told(merge.tick(2 * SECOND)) == [["cpu2"]]
    log = [share("cpu", 1, 2.0), *log]
    again = Aggregator(("cpu", "fs"), lateness_ns=SECOND, standings=standings_of(log))
    assert feed(again, share("cpu", 2, 3.0)) == []
    assert told(feed(again, share("fs", 4, 3.0))) == [["cpu2", "fs4"]]
    assert merge.counts["late"] == again.counts["late"] == 0


def test_what_is_only_old_makes_nobody_run_ahead() -> None:
    """A replay, an engine that was idle for an hour, and a past that is played fast are no reason to doubt a
    clock."""
    hour = 3600
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    old = [
        msgspec.structs.replace(share("cpu", n, float(n), at_ns=hour * SECOND), replayed=True) for n in (0, 1)
    ]
    feed(merge, *old, share("fs", 0, 1.0 + hour, at_ns=hour * SECOND))
    assert told(feed(merge, share("cpu", 2, 1.0 + hour, at_ns=hour * SECOND)))[-1] == ["cpu2", "fs0"]
    ahead = 5 * hour
    feed(merge, share("fs", 1, 2.0 + ahead, at_ns=(ahead + 2) * SECOND))
    assert told(feed(merge, share("cpu", 3, 2.0 + ahead, at_ns=(ahead + 2) * SECOND))) == [["cpu3", "fs1"]]
    fast = [share("cpu", 4 + n, 100.0 * n + 3 * ahead, at_ns=10 * ahead * SECOND) for n in range(9)]
    feed(merge, *fast)
    assert merge.ahead.total() == 0


def test_a_tier_that_is_held_back_is_not_silent() -> None:
    """Whose batches wait for what is missing before them is waited for as long as one that speaks."""
    merge = Aggregator(("cpu", "fs"), lateness_ns=SECOND)
    feed(merge, share("cpu", 0, 1.0))
    for passed in range(1, PATIENCE):
        assert merge.tick(passed * SECOND, holding={"fs", "other"}) == []
    assert told(merge.tick(PATIENCE * SECOND, holding={"fs"})) == [["cpu0"]]


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
        share(tier, next(seqs[tier]), 1.0 + number / 8)
        for number, tiers in enumerate(spoken)
        for tier in TIERS
        if tier in tiers
    ]
    whole = played(Aggregator(TIERS), shares, rng)
    assert whole == shares
    cut = data.draw(st.integers(0, len(whole)))
    rest = [one for one in shares if one not in whole[:cut]]
    again = Aggregator(TIERS, standings=standings_of(whole[:cut]))
    assert whole[:cut] + played(again, rest, rng) == whole


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
