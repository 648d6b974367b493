"""The order of one epoch: what is next, what waits, what is declared lost."""

from __future__ import annotations

from collections import Counter

import pytest

from kvbus.arrival import Arrival, Limits
from kvbus.epoch import Epoch
from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Standing
from kvbus.reply import Reply
from kvbus.wire import PublisherInfo

SOURCE = SourceId("engine", b"kv", 0)


def at(seq: int, *, replayed: bool = False) -> Arrival:
    batch = EventBatch(ts=float(seq), events=[])
    return Arrival(b"kv", seq, b"%d" % seq, seq, batch, "map", replayed=replayed)


def epoch(*, origin: int | None = 0, limits: Limits | None = None) -> Epoch:
    return Epoch(SOURCE, because="first_sight", origin=origin, counts=Counter(), limits=limits or Limits())


def behind_a_hole(*seqs: int, limits: Limits | None = None) -> Epoch:
    """An epoch that delivered 0 and where ``seqs`` wait."""
    one = epoch(limits=limits)
    one.begin(at(0))
    one.deliver(at(0))
    for seq in seqs:
        one.wait(at(seq))
    one.check_integrity()
    return one


def answer(*, first: int | None, asked_high: int, start: int = 0) -> Reply:
    reply = Reply(start=start, asked_high=asked_high)
    reply.first = first
    return reply


def told(entries: list[Entry]) -> list[str]:
    return [
        f"lost {entry.first_seq}-{entry.last_seq} {entry.reason}"
        if isinstance(entry, Loss)
        else str(entry.seq)
        for entry in entries
        if isinstance(entry, Loss | Received)
    ]


def test_an_epoch_without_an_origin_takes_its_first_number_from_what_it_sees() -> None:
    """Its beginning is where it is seen, and the word that it began says whose and why."""
    one = epoch(origin=None)
    began = one.begin(at(7))
    assert one.next_seq == 7
    assert began == EpochBegan(SOURCE, 0, "first_sight", "", 7)


def test_the_epoch_after_counts_from_0_and_forgets() -> None:
    """A new process has the next epoch number, none of the old one's batches and no name yet."""
    info = PublisherInfo("a", None, 0)
    old = Epoch(SOURCE, because="first_sight", origin=1, info=info, counts=Counter(), limits=Limits())
    new = old.next_epoch("seq", info=None)
    assert (new.number, new.next_seq, new.incarnation, new.begun) == (1, 0, "", False)


def test_what_waits_is_delivered_when_the_hole_is_filled() -> None:
    """Early batches follow the missing one, in order."""
    one = behind_a_hole(3, 2)
    one.deliver(at(1))
    assert told(one.drain()) == ["2", "3"]
    one.check_integrity()


def test_the_end_of_an_epoch_leaves_nothing_waiting() -> None:
    """Each hole is declared lost, what waited behind it is delivered."""
    one = behind_a_hole(2, 5)
    assert told(one.end()) == ["lost 1-1 restart", "2", "lost 3-4 restart", "5"]
    assert not one.waiting
    assert [seq for seq in range(6) if one.is_lost(seq)] == [1, 3, 4]


def test_answers_without_an_end_marker_are_counted_one_after_another() -> None:
    """A complete answer starts the count anew; after the last try there is nothing more to ask."""
    one = behind_a_hole(2, limits=Limits(tries=3))
    complete = [False, True, False, False, False]
    assert [one.asks_again(complete=marked) for marked in complete] == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([answer(first=2, asked_high=3)], ["lost 1-1 too_old", "2", "3"]),
        ([answer(first=2, asked_high=3, start=2)], []),
        ([answer(first=0, asked_high=3)], []),
        ([answer(first=0, asked_high=3)] * 2, ["lost 1-1 absent_from_replay", "2", "3"]),
        ([answer(first=0, asked_high=1)] * 2, []),
        ([answer(first=None, asked_high=3)] * 2, ["lost 1-1 restart", "2", "3"]),
    ],
)
def test_a_hole_is_settled_by_what_complete_answers_lacked(answers: list[Reply], expected: list[str]) -> None:
    """Only an answer asked for the hole, and twice, or that begins after it, makes it a Loss."""
    one = behind_a_hole(2, 3)
    entries: list[Entry] = []
    for reply in answers:
        entries += one.settle_hole(reply, complete=True, now_ns=0)
    assert told(entries) == expected


def test_where_nobody_can_be_asked_a_hole_is_given_up_in_time() -> None:
    """Before the time is over nothing is lost; one hole is given up at a time."""
    one = behind_a_hole(2, 4, limits=Limits(reorder_ns=10))
    assert one.give_up_in_time(12) == []
    assert told(one.give_up_in_time(13)) == ["lost 1-1 no_replay", "2"]


def test_too_many_waiting_batches_are_a_reason_to_give_a_hole_up() -> None:
    """What waits is bounded in number where nobody can be asked."""
    one = behind_a_hole(2, 4, limits=Limits(reorder_batches=1))
    assert told(one.give_up_in_time(0)) == ["lost 1-1 no_replay", "2"]


def test_a_resumed_epoch_goes_on_under_its_number_and_name() -> None:
    """Where an earlier reader stopped, the place, the clock, the name and the last bytes are known."""
    one = epoch()
    one.resume(Standing(3, 10, 9.0, "a", {9: b"9"}))
    assert (one.number, one.next_seq, one.last_ts, one.incarnation) == (3, 10, 9.0, "a")
    assert one.recent.get(9) == b"9"
    assert one.begun
