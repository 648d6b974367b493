"""One stream's place: order, holes, and numbers that go back."""

from __future__ import annotations

import pytest
from msgspec import Raw

from kvbus.arrival import Arrival, Limits
from kvbus.events import EventBatch, Undecodable
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Standing, Stray
from kvbus.sequence import Cursor
from kvbus.wire import PublisherInfo

SOURCE = SourceId("engine", b"kv", 0)
SECOND = 1_000_000_000


def at(seq: int, ts: float | None = None, *, said: str = "", replayed: bool = False) -> Arrival:
    """Batch ``seq``; its clock is its number unless told otherwise, its bytes tell ``said`` apart."""
    clock = float(seq) if ts is None else ts
    payload = f"{seq}/{clock}/{said}".encode()
    batch = EventBatch(ts=clock, events=[], data_parallel_rank=0)
    return Arrival(b"kv", seq, payload, int(clock * SECOND), batch, "map", replayed=replayed)


def replay(*seqs: int) -> list[Arrival]:
    return [at(seq, replayed=True) for seq in seqs]


def cursor(*, can_ask: bool = True, **options: object) -> Cursor:
    return Cursor(SOURCE, can_ask=can_ask, **options)  # type: ignore[arg-type]


def feed(into: Cursor, *arrivals: Arrival) -> list[Entry]:
    entries: list[Entry] = []
    for arrival in arrivals:
        entries += into.replayed(arrival) if arrival.replayed else into.live(arrival)
        into.check_integrity()
    return entries


def told(entries: list[Entry]) -> list[str]:
    """Entries in shorthand: ``3``, ``lost 4-6 too_old``, ``epoch 1 seq``, ``stray 2 late``."""
    words = []
    for entry in entries:
        match entry:
            case Received():
                words.append(str(entry.seq))
            case Loss():
                words.append(f"lost {entry.first_seq}-{entry.last_seq} {entry.reason}")
            case EpochBegan():
                words.append(f"epoch {entry.epoch} {entry.because}")
            case Stray():
                words.append(f"stray {entry.seq} {entry.reason}")
    return words


def end(into: Cursor, *, complete: bool = True, info: PublisherInfo | None = None) -> list[Entry]:
    return into.ended(complete=complete, info=info, now_ns=0)


def test_a_stream_from_its_beginning_is_delivered_as_it_comes() -> None:
    """Batches in order are delivered at once, after the word that their epoch began."""
    assert told(feed(cursor(), at(0), at(1), at(2))) == ["epoch 0 first_sight", "0", "1", "2"]


def test_a_late_joiner_asks_from_the_beginning() -> None:
    """A stream first seen at 5 waits, wants a replay from 0, and is whole when that has come."""
    late = cursor()
    assert told(feed(late, at(5))) == ["epoch 0 first_sight"]
    assert late.ask_from == 0
    late.asked()
    assert told(feed(late, *replay(0, 1, 2, 3, 4, 5))) == ["0", "1", "2", "3", "4", "5"]
    assert told(end(late)) == []
    assert late.ask_from is None


def test_a_late_joiner_with_nobody_to_ask_says_what_it_missed() -> None:
    """Without a replay socket the batches before the first one seen are a Loss with the reason late_join."""
    late = cursor(can_ask=False)
    feed(late, at(5))
    assert told(late.tick(6 * SECOND)) == ["lost 0-4 late_join", "5"]


def test_a_hole_is_asked_for_with_an_overlap_of_one() -> None:
    """The request begins at the last batch we have: its bytes prove that the answer is the same process's."""
    gap = cursor()
    feed(gap, at(0), at(1), at(4))
    assert gap.ask_from == 1
    gap.asked()
    assert told(feed(gap, *replay(1, 2, 3, 4))) == ["2", "3", "4"]
    assert gap.counts == {"overlap": 2}


def test_a_replay_that_begins_later_is_too_old() -> None:
    """A complete replay that starts after the hole's beginning says that the rest is gone for good."""
    gap = cursor()
    feed(gap, at(0), at(9))
    gap.asked()
    feed(gap, *replay(6, 7, 8, 9))
    assert told(end(gap)) == ["lost 1-5 too_old", "6", "7", "8", "9"]


def test_a_number_missing_from_two_complete_replays_was_burned() -> None:
    """One complete replay without a batch could be a publisher's full socket; the second makes it a Loss."""
    gap = cursor()
    feed(gap, at(0), at(2))
    for expected in ([], ["lost 1-1 absent_from_replay", "2"]):
        gap.asked()
        feed(gap, *replay(0, 2))
        assert told(end(gap)) == expected


def test_a_hole_that_opened_after_the_request_is_not_held_against_the_answer() -> None:
    """An answer can only lack what was there when it was asked."""
    gap = cursor()
    feed(gap, at(0), at(2))
    gap.asked()
    feed(gap, *replay(0, 1, 2), at(5))
    assert told(end(gap)) == []
    gap.asked()
    feed(gap, *replay(2, 5))
    assert told(end(gap)) == []


def test_without_an_end_marker_nothing_is_concluded_until_tries_are_over() -> None:
    """Three answers without an end marker end in replay_incomplete, never in a claim about the publisher."""
    gap = cursor()
    feed(gap, at(0), at(3))
    for expected in ([], [], ["lost 1-2 replay_incomplete", "3"]):
        assert gap.ask_from == 0
        gap.asked()
        feed(gap, *replay(3))
        assert told(end(gap, complete=False)) == expected


def test_exact_duplicates_are_counted_and_not_delivered() -> None:
    """The same number with the same bytes is a duplicate, live or waiting."""
    stream = cursor()
    feed(stream, at(0), at(1), at(1), at(0), at(4), at(4))
    assert stream.counts == {"duplicate": 3}


def test_the_same_number_with_other_bytes_is_kept_aside() -> None:
    """Of two batches under one number the first stays, the second is a stray once the stream goes on."""
    stream = cursor()
    feed(stream, at(0), at(1))
    assert told(feed(stream, at(1, ts=0.5, said="other"), at(2))) == ["stray 1 conflict", "2"]


def test_seq_0_under_a_newer_clock_is_a_restart() -> None:
    """Dead at 290 and back at 0: a new epoch at once, and nothing of it is taken for a duplicate."""
    stream = cursor()
    feed(stream, *[at(seq) for seq in range(290)])
    again = feed(stream, at(0, ts=400.0), at(1, ts=401.0))
    assert told(again) == ["epoch 1 seq", "0", "1"]


def test_one_number_from_the_past_is_only_a_suspicion() -> None:
    """A lone older number waits for a second witness; two make a new epoch, whose beginning is then
    wanted.
    """
    stream = cursor()
    feed(stream, *[at(seq) for seq in range(100)])
    assert told(feed(stream, at(3, ts=200.0))) == []
    assert stream.ask_from == 99
    assert told(feed(stream, at(4, ts=201.0))) == ["epoch 1 seq"]
    assert stream.ask_from == 0


def test_other_bytes_under_our_last_number_are_a_restart() -> None:
    """A publisher that restarted and ran past our place is found out by the overlap, whatever its numbers
    say.
    """
    stream = cursor()
    feed(stream, at(0), at(1), at(7, ts=107.0))
    stream.asked()
    answer = [at(seq, ts=100.0 + seq, replayed=True) for seq in range(1, 8)]
    assert told(feed(stream, *answer)) == ["epoch 1 content"]
    stream.asked()
    whole = [at(seq, ts=100.0 + seq, replayed=True) for seq in range(8)]
    assert told(feed(stream, *whole)) == [str(seq) for seq in range(8)]


def test_a_replay_without_our_last_batch_is_another_process() -> None:
    """A publisher keeps its last batch, so an empty answer after a reconnect means that it started anew."""
    stream = cursor()
    feed(stream, at(0), at(1))
    stream.probe(5 * SECOND)
    stream.asked()
    assert told(end(stream)) == []
    assert told(feed(stream, at(0, ts=50.0))) == ["epoch 1 replay_empty", "0"]


def test_after_a_reconnect_the_right_number_must_be_proved() -> None:
    """Until the overlap is compared, a batch with the number we wait for may be another process's."""
    stream = cursor()
    feed(stream, at(0), at(1))
    stream.probe(2 * SECOND)
    assert told(feed(stream, at(2))) == []
    stream.asked()
    assert told(feed(stream, *replay(1, 2))) == ["2"]


def test_a_publishers_own_word_ends_an_epoch() -> None:
    """A hello with another incarnation is a restart."""
    stream = cursor()
    stream.hello(PublisherInfo("a", 0, 2))
    feed(stream, at(0), at(1))
    stream.hello(PublisherInfo("b", None, 0))
    began = feed(stream, at(0, ts=9.0))
    assert told(began) == ["epoch 1 incarnation", "0"]
    assert isinstance(began[0], EpochBegan)
    assert began[0].incarnation == "b"


def test_what_waited_behind_a_hole_when_the_publisher_died_is_kept() -> None:
    """A restart declares the hole lost with its reason and delivers what had already come."""
    stream = cursor()
    feed(stream, at(0), at(3))
    assert told(feed(stream, at(0, ts=90.0))) == ["lost 1-2 restart", "3", "epoch 1 seq", "0"]


def test_an_answer_of_a_dead_process_does_not_reach_the_new_epoch() -> None:
    """What still arrives of an answer asked before a restart is dropped and counted."""
    stream = cursor()
    feed(stream, at(0), at(5))
    stream.asked()
    feed(stream, *replay(0, 1), at(0, ts=50.0))
    assert told(feed(stream, *replay(2, 3, 4, 5))) == []
    assert stream.counts["stale_reply"] == 4


def test_an_answer_that_holds_two_lives_is_told_apart() -> None:
    """A forwarder that kept both lives of an engine replays them one after the other: two epochs."""
    stream = cursor()
    stream.asked()
    first = [at(seq, replayed=True) for seq in range(5)]
    second = [at(seq, ts=50.0 + seq, replayed=True) for seq in range(3)]
    assert told(feed(stream, *first, *second)) == [
        "epoch 0 first_sight", "0", "1", "2", "3", "4", "epoch 1 content", "0", "1", "2",
    ]  # fmt: skip


def test_a_batch_that_comes_after_it_was_declared_lost_is_kept_aside() -> None:
    """A Loss once said stays said; the late batch is a stray."""
    stream = cursor(can_ask=False)
    feed(stream, at(0), at(2))
    stream.tick(10 * SECOND)
    assert told(feed(stream, at(1))) == ["stray 1 late"]


def test_reordered_batches_wait_where_nobody_can_be_asked() -> None:
    """Without a replay socket an early batch waits a moment for the one before it."""
    stream = cursor(can_ask=False)
    assert told(feed(stream, at(0), at(2), at(1), at(3))) == ["epoch 0 first_sight", "0", "1", "2", "3"]


def test_a_resumed_stream_goes_on_when_the_overlap_is_ours() -> None:
    """After a restart of the reader the last payload in the log is compared, then the stream goes on."""
    standing = Standing(3, 10, 9.0, "", {9: at(9).payload})
    stream = cursor(standing=standing)
    assert stream.ask_from == 9
    stream.asked()
    assert told(feed(stream, *replay(9, 10, 11))) == ["10", "11"]
    assert stream.epoch == 3


def test_a_resumed_stream_notices_that_the_publisher_is_another() -> None:
    """Other bytes under the last number in the log begin the next epoch, which is then read from 0."""
    standing = Standing(3, 10, 9.0, "", {9: at(9).payload})
    stream = cursor(standing=standing)
    stream.asked()
    assert told(feed(stream, at(9, ts=99.0, replayed=True))) == ["epoch 4 content"]
    assert stream.ask_from == 0


def test_a_stream_without_an_origin_begins_where_it_is_seen() -> None:
    """With no origin there is no prefix to miss: nothing is asked, nothing is lost."""
    stream = cursor(origin=None)
    assert told(feed(stream, at(7), at(8))) == ["epoch 0 first_sight", "7", "8"]
    assert stream.ask_from is None


def test_what_cannot_be_read_still_has_its_place() -> None:
    """An unreadable payload keeps its number: it is delivered, with what is wrong with it."""
    stream = cursor()
    broken = Arrival(b"kv", 1, b"\xc1", SECOND, Undecodable("bad", Raw(b"\xc1")), "unreadable")
    assert told(feed(stream, at(0), broken, at(2))) == ["epoch 0 first_sight", "0", "1", "2"]


def test_early_batches_are_refused_beyond_the_limit_and_fetched_later() -> None:
    """Memory is bounded: what finds no room is counted and left to the next replay."""
    stream = cursor(limits=Limits(waiting_batches=2))
    feed(stream, at(0), at(2), at(3), at(4))
    assert stream.waiting == 2
    assert stream.counts == {"refused": 1}
    stream.asked()
    assert told(feed(stream, *replay(0, 1, 2, 3, 4))) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("can_ask", [True, False])
def test_leaving_declares_what_is_missing(can_ask: bool) -> None:
    """A reader that leaves for good delivers what waits and declares the hole."""
    stream = cursor(can_ask=can_ask)
    feed(stream, at(0), at(2))
    reason = "replay_incomplete" if can_ask else "no_replay"
    assert told(stream.finish(0)) == [f"lost 1-1 {reason}", "2"]


def test_what_came_since_a_reconnect_is_of_the_process_that_says_hello() -> None:
    """Of a new process that ran past our place before it said who it is nothing ends up in the old epoch."""
    stream = cursor()
    stream.hello(PublisherInfo("old", 0, 3))
    feed(stream, at(0), at(1), at(2))
    stream.probe(5 * SECOND)
    feed(stream, at(6, 16.0), at(7, 17.0))
    assert stream.hello(PublisherInfo("new", 0, 8)) == []
    assert stream.ask_from == 2
    stream.asked()
    entries = feed(stream, *[at(seq, seq + 10.0, replayed=True) for seq in range(2, 8)])
    entries += end(stream, info=PublisherInfo("new", 0, 8))
    stream.asked()
    entries += feed(stream, *[at(seq, seq + 10.0, replayed=True) for seq in range(8)])
    assert told(entries) == ["epoch 1 content", *map(str, range(8))]
    assert stream.incarnation == "new"


def test_a_process_whose_clock_is_behind_is_another_all_the_same() -> None:
    """A restart on a host whose clock lags: the new numbers are neither duplicates nor an older life's."""
    stream = cursor()
    feed(stream, *map(at, range(5)))
    stream.probe(6 * SECOND)
    entries = feed(stream, at(1, -8.0, said="new"), at(2, -7.0, said="new"))
    stream.asked()
    entries += feed(stream, *[at(seq, seq - 9.0, said="new", replayed=True) for seq in range(3)])
    entries += end(stream)
    assert told(entries) == ["epoch 1 content", "0", "1", "2"]


def test_a_clock_set_back_while_we_join_is_no_restart() -> None:
    """A replayed batch that seems younger than a waiting one waits until the answer shows the same bytes."""
    stream = cursor()
    feed(stream, at(2, 1.5), at(3, 1.6))
    stream.asked()
    assert told(feed(stream, at(0, 2.0, replayed=True), at(1, 2.1, replayed=True))) == []
    assert told(feed(stream, at(2, 1.5, replayed=True))) == ["0", "1", "2", "3"]
    assert stream.epoch == 0


def test_an_answer_without_what_waits_is_of_another_life() -> None:
    """Younger batches below one that waits, and the answer ends without it: the publisher is another."""
    stream = cursor()
    feed(stream, at(7), at(8))
    stream.asked()
    assert told(feed(stream, at(0, 20.0, replayed=True), at(1, 21.0, replayed=True))) == []
    assert told(end(stream)) == ["lost 0-6 restart", "7", "8", "epoch 1 content", "0", "1"]


def test_what_a_dead_process_had_still_to_give_is_kept_aside() -> None:
    """Read after the new process's first batches, the old one's last are strays of the old epoch."""
    stream = cursor(can_ask=False)
    feed(stream, *map(at, range(5)))
    entries = feed(stream, at(0, 9.0), at(5, 5.0), at(1, 10.0))
    assert told(entries) == ["epoch 1 seq", "0", "stray 5 late", "1"]
    assert [entry.epoch for entry in entries if isinstance(entry, Stray)] == [0]


def test_one_pair_of_answers_settles_every_hole_it_lacked() -> None:
    """A thousand burned numbers cost two replays, not two thousand."""
    stream = cursor()
    feed(stream, at(0), *map(at, range(2, 9, 2)))
    entries: list[Entry] = []
    for _ in range(2):
        stream.asked()
        entries += feed(stream, *replay(0, 2, 4, 6, 8))
        entries += end(stream)
    lost = [f"lost {seq}-{seq} absent_from_replay" for seq in (1, 3, 5, 7)]
    assert told(entries) == [word for pair in zip(lost, "2468", strict=True) for word in pair]


def test_an_answer_with_nothing_at_all_is_not_said_to_lack_a_number() -> None:
    """A publisher keeps its last batch; one that has nothing is gone, and burned nothing."""
    stream = cursor()
    feed(stream, at(0), at(2))
    entries: list[Entry] = []
    for _ in range(2):
        stream.asked()
        entries += end(stream)
    assert told(entries) == ["lost 1-1 restart", "2"]
