"""Whose an arrival is: streams of one feed told apart by topic, rank, connection and where they stand."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from kvbus.arrival import Arrival
from kvbus.dialects import DialectReader
from kvbus.events import EventBatch, Undecodable
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId
from kvbus.sequencer import Sequencer
from kvbus.streams import STREAMS_MAX
from kvbus.wire import PublisherInfo


def message(
    seq: int,
    *,
    topic: bytes | None = b"kv",
    rank: int | None = 0,
    connection: int = 0,
    replayed: bool = False,
    ts: float | None = None,
) -> Arrival:
    clock = float(seq) if ts is None else ts
    payload = msgspec.msgpack.encode((clock, [], rank, connection))
    batch = EventBatch(ts=clock, events=[], data_parallel_rank=rank)
    return Arrival(topic, seq, payload, seq, batch, "map", connection, replayed)


def broken(seq: int, *, topic: bytes = b"kv") -> Arrival:
    return Arrival(topic, seq, b"\xc1", seq, Undecodable("bad", Raw(b"\xc1")), "unreadable")


def live(into: Sequencer, *arrivals: Arrival) -> list[Entry]:
    entries: list[Entry] = []
    for arrival in arrivals:
        entries += into.replayed(arrival) if arrival.replayed else into.live(arrival)
        into.check_integrity()
    return entries


def order(entries: list[Entry]) -> list[tuple[SourceId, int]]:
    return [(entry.source, entry.seq) for entry in entries if isinstance(entry, Received)]


def test_topics_and_ranks_are_streams_of_their_own() -> None:
    """Two ranks and two topics on one address are numbered each for itself."""
    feed = Sequencer("f", can_ask=False)
    entries = live(feed, message(0), message(0, rank=1), message(0, topic=b"other"), message(1))
    assert order(entries) == [
        (SourceId("f", b"kv", 0), 0),
        (SourceId("f", b"kv", 1), 0),
        (SourceId("f", b"other", 0), 0),
        (SourceId("f", b"kv", 0), 1),
    ]


def test_two_publishers_alike_on_a_bound_socket_are_told_apart_by_their_connection() -> None:
    """Same topic, same rank, two connections: two instances."""
    feed = Sequencer("f", can_ask=False)
    entries = live(feed, message(0, connection=5), message(0, connection=6), message(1, connection=5))
    assert [(source.instance, seq) for source, seq in order(entries)] == [(0, 0), (1, 0), (0, 1)]


def test_a_publisher_that_reconnects_keeps_its_stream() -> None:
    """A connection of the same topic and rank that goes on where a lost one was is the same publisher."""
    feed = Sequencer("f", can_ask=False)
    live(feed, message(0, connection=5), message(0, connection=6))
    feed.disconnected(5, 0)
    entries = live(feed, message(1, connection=7))
    assert [(source.instance, seq) for source, seq in order(entries)] == [(0, 1)]


def test_an_unreadable_payload_belongs_to_the_stream_that_waits_for_its_number() -> None:
    """A payload that hides its rank neither begins a stream of its own nor leaves a hole."""
    feed = Sequencer("f", can_ask=False)
    entries = live(
        feed, message(0), message(0, rank=1), message(1), broken(2), message(1, rank=1), message(3)
    )
    assert [(source.rank, seq) for source, seq in order(entries)] == [
        (0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3),
    ]  # fmt: skip


def test_an_unreadable_first_payload_waits_for_the_second_to_say_whose_it_is() -> None:
    """The first batch broken is still the first batch of its stream, not of another."""
    feed = Sequencer("f", can_ask=False)
    entries = live(feed, broken(0), message(1))
    assert order(entries) == [(SourceId("f", b"kv", 0), 0), (SourceId("f", b"kv", 0), 1)]


def test_what_nobody_claims_is_a_stream_without_rank_in_the_end() -> None:
    """Alone for good, an unreadable payload is still kept."""
    feed = Sequencer("f", can_ask=False)
    assert live(feed, broken(0)) == []
    assert order(feed.finish(1)) == [(SourceId("f", b"kv", -1), 0)]


def test_a_replay_without_topics_waits_for_a_live_message_to_name_the_stream() -> None:
    """The framing before vLLM 0.26 has no topic: the live stream says whose the batches are."""
    feed = Sequencer("f", can_ask=True)
    feed.asked()
    replayed = [message(seq, topic=None, replayed=True) for seq in range(3)]
    assert live(feed, *replayed) == []
    feed.ended(complete=True, info=None, now_ns=0)
    assert order(live(feed, message(3))) == [(SourceId("f", b"kv", 0), seq) for seq in range(4)]


def test_a_replay_without_topics_of_an_idle_engine_is_kept_under_no_topic() -> None:
    """With no live message to name it a replayed stream has an empty topic; a later live one joins it."""
    feed = Sequencer("f", can_ask=True)
    feed.asked()
    live(feed, *[message(seq, topic=None, replayed=True) for seq in range(3)])
    waited = feed.tick(10_000_000_000)
    assert order(waited) == [(SourceId("f", b"", 0), seq) for seq in range(3)]
    assert order(live(feed, message(3))) == [(SourceId("f", b"", 0), 3)]


def test_a_feed_asks_at_once_what_there_is() -> None:
    """Before anything was heard a replay from 0 is wanted; a complete answer settles that."""
    feed = Sequencer("f", can_ask=True)
    assert feed.ask_from == 0
    feed.asked()
    feed.ended(complete=True, info=None, now_ns=0)
    assert feed.ask_from is None


def test_the_replay_of_one_publisher_says_nothing_about_another() -> None:
    """On a bound address with one replay socket, only the stream that it has spoken for is judged by it."""
    feed = Sequencer("f", can_ask=True)
    live(feed, message(0, connection=5), message(0, rank=1, connection=6))
    feed.asked()
    live(feed, message(0, replayed=True))
    feed.ended(complete=True, info=PublisherInfo("a", 0, 1), now_ns=0)
    live(feed, message(2, rank=1, connection=6))
    for _ in range(2):
        feed.asked()
        live(feed, message(0, replayed=True, connection=5))
        assert feed.ended(complete=True, info=None, now_ns=0) == []
    feed.asked()
    losses = [e for e in feed.ended(complete=True, info=None, now_ns=0) if isinstance(e, Loss)]
    assert [(loss.source.rank, loss.reason) for loss in losses] == [(1, "replay_incomplete")]


def capacities(entries: list[Entry]) -> list[dict[str, int]]:
    return [entry.capacity for entry in entries if isinstance(entry, EpochBegan)]


def test_what_one_publisher_says_of_itself_is_not_said_of_another() -> None:
    """A second stream of the address, one on a bound socket, and one after a new connection are others'."""
    said = PublisherInfo("a", None, 0, {"CPU": 3})
    feed = Sequencer("f", can_ask=True)
    feed.hello(said)
    assert capacities(live(feed, message(0), message(0, topic=b"other"))) == [{"CPU": 3}, {}]
    bound = Sequencer("f", can_ask=True)
    bound.hello(said)
    assert capacities(live(bound, message(0, connection=5))) == [{}]
    later = Sequencer("f", can_ask=True)
    later.hello(said)
    later.connected(0)
    assert capacities(live(later, message(0))) == [{}]


def test_a_hello_of_somebody_else_begins_no_epoch_on_a_bound_socket() -> None:
    """The replay socket is one publisher's: that it has another name now says nothing of who spoke here."""
    feed = Sequencer("f", can_ask=True)
    feed.hello(PublisherInfo("a", None, 0))
    live(feed, message(0, connection=5))
    assert feed.hello(PublisherInfo("b", None, 0, {"CPU": 1})) == []
    assert [entry.epoch for entry in live(feed, message(1, connection=5))] == [0]


def test_a_mooncake_master_counts_from_one() -> None:
    """Its first number is 1 by design, so nothing is missing before it."""
    payload = bytes.fromhex(
        "93cf0000018bcfe56800918ba86576656e745f696401a974696d657374616d70cf0000018bcfe56800aa6576656e745f74797065"
        "a673746f726564a474797065ab426c6f636b53746f726564aa6d6f64656c5f6e616d65c0aa626c6f636b5f73697a65c0a66d6564"
        "69756da3637075aa7365715f6861736865739107ac626c6f636b5f6861736865739107a9746f6b656e5f696473c0b1706172656e"
        "745f626c6f636b5f68617368c000"
    )
    reader = DialectReader()
    feed = Sequencer("f", can_ask=False)
    entries = live(feed, Arrival(b"mc", 1, payload, 0, reader.read(payload), reader.dialect))
    assert [type(entry).__name__ for entry in entries] == ["EpochBegan", "Received"]


def test_a_replay_goes_to_the_one_of_two_alike_that_knows_its_bytes() -> None:
    """Of two engines of one topic and rank on a bound address one's replay is never taken as the other's."""
    feed = Sequencer("f", can_ask=True)
    live(feed, *[message(seq, connection=5, ts=seq + 9.5) for seq in range(6)])
    live(feed, *[message(seq, connection=6) for seq in (0, 1, 2, 4, 5)])
    told: list[Entry] = []
    for _ in range(4):
        feed.asked()
        told += live(feed, *[message(seq, connection=5, ts=seq + 9.5, replayed=True) for seq in range(2, 6)])
        told += feed.ended(complete=True, info=None, now_ns=0)
    assert {(e.source.instance, e.seq) for e in told if isinstance(e, Received)} == {(1, 4), (1, 5)}
    losses = [entry for entry in told if isinstance(entry, Loss)]
    assert [(loss.source.instance, loss.first_seq, loss.reason) for loss in losses] == [
        (1, 3, "replay_incomplete")
    ]
    assert feed.ask_from is None


def test_the_replay_of_one_of_two_alike_heals_that_one() -> None:
    """Found out by its bytes, the engine behind the replay address gets what it lacks, from the start."""
    feed = Sequencer("f", can_ask=True)
    live(feed, message(0, connection=6), message(3, connection=5), message(4, connection=5))
    live(feed, message(1, connection=6))
    told: list[Entry] = []
    for _ in range(4):
        feed.asked()
        told += live(feed, *[message(seq, connection=5, replayed=True) for seq in range(5)])
        told += feed.ended(complete=True, info=None, now_ns=0)
    assert [(e.source.instance, e.seq) for e in told if isinstance(e, Received)] == [
        (1, seq) for seq in range(5)
    ]
    assert not [entry for entry in told if isinstance(entry, Loss)]


def test_an_unreadable_payload_of_a_connection_is_of_the_stream_heard_there() -> None:
    """Ranks in step on one bound address: the connection tells whose a broken batch is."""
    feed = Sequencer("f", can_ask=False)
    live(feed, message(0, connection=5), message(0, rank=1, connection=6))
    spoiled = msgspec.structs.replace(broken(1), connection=6)
    assert order(live(feed, spoiled)) == [(SourceId("f", b"kv", 1), 1)]


def test_a_connection_that_is_over_says_nothing_about_the_next_of_its_number() -> None:
    """Connections are numbered anew: what was heard on one that ended, under whatever topic, is forgotten."""
    feed = Sequencer("f", can_ask=True)
    live(feed, message(0, topic=None, replayed=True))
    feed.finish(1)
    live(feed, message(1, connection=5))
    feed.disconnected(5, 2)
    live(feed, message(2, connection=6), message(0, connection=5, ts=9.0))
    assert [source.topic for source in feed.cursors] == [b"", b"kv"]


def test_streams_are_bounded_and_what_is_beyond_is_counted() -> None:
    """A publisher that makes up topics costs no more than so many streams; the others are counted."""
    feed = Sequencer("f", can_ask=False)
    for number in range(STREAMS_MAX + 10):
        live(feed, message(0, topic=b"t%d" % number)) if number % 512 == 0 else feed.live(
            message(0, topic=b"t%d" % number)
        )
    assert len(feed.cursors) == STREAMS_MAX
    assert feed.counts["too_many_streams"] == 10


def test_an_answer_asked_for_another_stream_says_nothing_of_a_beginning() -> None:
    """A replay that was asked from where one stream has its hole begins too late for no other."""
    feed = Sequencer("f", can_ask=True)
    live(feed, message(0), message(0, rank=1))
    feed.asked()
    live(feed, message(0, replayed=True), message(0, rank=1, replayed=True))
    feed.ended(complete=True, info=None, now_ns=0)
    live(feed, *[message(seq) for seq in range(1, 9)], message(10), message(1, rank=1))
    feed.asked()
    live(feed, message(9, rank=1))
    replayed = [message(8), message(9), message(10), message(8, rank=1), message(9, rank=1)]
    entries = live(feed, *[msgspec.structs.replace(one, replayed=True) for one in replayed])
    entries += feed.ended(complete=True, info=None, now_ns=0)
    assert not [entry for entry in entries if isinstance(entry, Loss)]
    assert feed.ask_from == 1
