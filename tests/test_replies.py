"""Whose replay is sent when, with clients that take, stall and vanish as a seed tells them to."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.buffer import Kept, ReplayBuffer
from kvbus.history import History
from kvbus.replies import CHUNK, CLIENTS_MAX, REQUESTS_MAX, Replies, Sent
from kvbus.wire import HELLO_SEQ, ReplayEnd, ReplayItem, ReplayRequest, read_reply


class Clients:
    """What each client received. ``full`` and ``gone`` say how each reacts at the moment."""

    def __init__(self) -> None:
        self.got: dict[bytes, list[ReplayItem | ReplayEnd]] = {}
        self.full: set[bytes] = set()
        self.gone: set[bytes] = set()

    def send(self, frames: list[bytes]) -> Sent:
        identity = frames[0]
        if identity in self.gone:
            return "gone"
        if identity in self.full:
            return "full"
        reply = read_reply(frames[1:])
        assert isinstance(reply, ReplayItem | ReplayEnd)
        self.got.setdefault(identity, []).append(reply)
        return "sent"

    def seqs(self, identity: bytes) -> list[int | None]:
        """The numbers a client received; None for an end marker."""
        return [one.seq if isinstance(one, ReplayItem) else None for one in self.got.get(identity, [])]


def history(count: int, steps: int = 1000) -> History:
    made = History(ReplayBuffer(steps), new_incarnation=lambda: "ab" * 16)
    for number in range(count):
        made.number(b"kv", str(number).encode())
    return made


def replies(of: History, *, jobs_max: int = 8, stall_s: float = 10.0) -> Replies:
    return Replies(of.snapshot, topic_frame=True, jobs_max=jobs_max, stall_s=stall_s)


def ask(who: bytes, start_seq: int, *, one_reply: bool = False) -> ReplayRequest:
    return ReplayRequest((who, b""), start_seq, one_reply)


def run(of: Replies, clients: Clients, *, now: float = 0.0) -> float:
    """Step until nothing is to be done, on a clock that jumps to the next moment."""
    for _ in range(10_000):
        of.check_integrity()
        wait_s = of.wait_s(now)
        if wait_s is None:
            return now
        now += wait_s
        of.step(clients.send, now)
    raise AssertionError("it never ends")


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_client_gets_everything_once_and_in_order(seed: int) -> None:
    """Clients that are full at random moments get all they asked for, each time with the end marker."""
    rng = random.Random(seed)
    of = history(rng.randrange(200))
    served, clients, expected = (
        replies(of, jobs_max=rng.randint(1, 4)),
        Clients(),
        dict[bytes, list[int | None]](),
    )
    now = 0.0
    for _ in range(200):
        if rng.random() < 0.1:
            who, start = bytes([rng.randrange(5)]), rng.choice([0, 50, 150, 500, HELLO_SEQ])
            if expected.get(who, []).count(None) < REQUESTS_MAX:
                served.ask(ask(who, start))
                end = of.info().next_seq
                expected.setdefault(who, []).extend([*range(start, end), None])
        clients.full = {bytes([n]) for n in range(5) if rng.random() < 0.5}
        now += rng.random() * 0.01
        served.step(clients.send, now)
        served.check_integrity()
    clients.full = set()
    run(served, clients, now=now)
    assert {who: clients.seqs(who) for who in expected} == expected
    assert served.counts.refused == served.counts.gone == served.counts.stalled == 0


def test_a_full_client_holds_nobody_up() -> None:
    """While one takes nothing another gets its whole replay; then the first gets its own, end and all."""
    served, clients = replies(history(500)), Clients()
    served.ask(ask(b"slow", 0))
    served.ask(ask(b"fast", 0))
    clients.full = {b"slow"}
    for step in range(20):
        served.step(clients.send, step * 0.01)
    assert clients.seqs(b"fast") == [*range(500), None]
    assert clients.seqs(b"slow") == []
    clients.full = set()
    run(served, clients, now=1.0)
    assert clients.seqs(b"slow") == [*range(500), None]


def test_clients_take_turns() -> None:
    """A long replay does not come before a short one that was asked for later."""
    served, clients = replies(history(10 * CHUNK)), Clients()
    served.ask(ask(b"long", 0))
    served.ask(ask(b"short", 10 * CHUNK - 1))
    served.step(clients.send, 0.0)
    assert clients.seqs(b"short") == [10 * CHUNK - 1, None]
    assert len(clients.seqs(b"long")) == CHUNK


def test_a_replay_keeps_what_the_buffer_evicts() -> None:
    """Publishing on while a replay runs makes no hole in it, nor does its end marker call it too old."""
    of = history(100, steps=100)
    served, clients = replies(of), Clients()
    served.ask(ask(b"a", 0))
    clients.full = {b"a"}
    served.step(clients.send, 0.0)
    for _ in range(100):
        of.number(b"kv", b"new")
    clients.full = set()
    run(served, clients, now=1.0)
    assert clients.seqs(b"a") == [*range(100), None]
    end = clients.got[b"a"][-1]
    assert isinstance(end, ReplayEnd)
    assert end.info is not None
    assert not end.info.too_old(0)
    assert of.info().too_old(0)


def test_hello_is_answered_while_all_places_are_taken() -> None:
    """Who only asks who is there does not wait for other people's replays."""
    served, clients = replies(history(500), jobs_max=1), Clients()
    served.ask(ask(b"slow", 0))
    clients.full = {b"slow"}
    served.step(clients.send, 0.0)
    served.ask(ask(b"waits", 0))
    served.ask(ask(b"greets", HELLO_SEQ))
    served.step(clients.send, 0.1)
    assert clients.seqs(b"greets") == [None]
    assert clients.seqs(b"waits") == []
    clients.full = set()
    run(served, clients, now=0.2)
    assert clients.seqs(b"waits") == [*range(500), None]


def test_hello_never_ends_the_same_clients_replay_early() -> None:
    """A client that greets while its replay runs gets the greeting's end marker after the replay's own."""
    served, clients = replies(history(3 * CHUNK)), Clients()
    served.ask(ask(b"a", 0))
    served.step(clients.send, 0.0)
    served.ask(ask(b"a", HELLO_SEQ))
    run(served, clients)
    assert clients.seqs(b"a") == [*range(3 * CHUNK), None, None]
    assert (served.counts.served, served.counts.hello) == (1, 1)


def test_a_client_that_takes_nothing_is_dropped_in_time() -> None:
    """After ``stall_s`` without progress a replay is given up, counted, and its place is free."""
    served, clients = replies(history(10), jobs_max=1, stall_s=5.0), Clients()
    clients.full = {b"dead"}
    served.ask(ask(b"dead", 0))
    served.ask(ask(b"next", 0))
    now = run(served, clients)
    assert 5.0 < now < 6.0
    assert served.counts.stalled == 1
    assert clients.seqs(b"dead") == []
    assert clients.seqs(b"next") == [*range(10), None]


def test_a_client_that_left_is_dropped_at_once() -> None:
    """All requests of a client that is gone are dropped and counted."""
    served, clients = replies(history(10)), Clients()
    clients.gone = {b"a"}
    served.ask(ask(b"a", 0))
    served.ask(ask(b"a", 5))
    assert run(served, clients) == 0.0
    assert served.counts.gone == 2


def test_slow_progress_is_progress() -> None:
    """A client that takes a little before every deadline gets all of it, however long that takes."""
    served, clients = replies(history(200), stall_s=1.0), Clients()
    served.ask(ask(b"a", 0))
    now, clients.full = 0.0, {b"a"}
    for _ in range(10):
        served.step(clients.send, now)
        now += 0.9
        clients.full = set()
        served.step(clients.send, now)
        clients.full = {b"a"}
    assert clients.seqs(b"a") == [*range(200), None]
    assert served.counts.stalled == 0


def test_a_req_client_gets_its_one_reply() -> None:
    """A REQ socket takes one message: the first batch, or the end marker when there is none."""
    served, clients = replies(history(10)), Clients()
    served.ask(ask(b"a", 4, one_reply=True))
    served.ask(ask(b"a", 10, one_reply=True))
    run(served, clients)
    assert clients.seqs(b"a") == [4, None]


def test_requests_are_bounded() -> None:
    """Too many requests of one client, and too many clients, are refused and counted."""
    served = replies(history(1))
    for _ in range(REQUESTS_MAX + 3):
        served.ask(ask(b"greedy", 0))
    assert served.counts.refused == 3
    for number in range(CLIENTS_MAX):
        served.ask(ask(number.to_bytes(4, "big"), 0))
    assert served.counts.refused == 4
    served.check_integrity()
    served.cut()
    served.check_integrity()
    assert served.counts.cut_at_close == served.counts.asked - 4
    assert served.wait_s(0.0) is None


def test_the_old_framing_has_no_topic() -> None:
    """Without topic frame the reply is what vLLM sent until 0.25."""
    sent: list[list[bytes]] = []

    def send(frames: list[bytes]) -> Sent:
        sent.append(frames)
        return "sent"

    old = Replies(history(1).snapshot, topic_frame=False, jobs_max=1, stall_s=1.0)
    old.ask(ask(b"a", 0))
    old.step(send, 0.0)
    assert sent == [[b"a", b"", bytes(8), b"0"], [b"a", b"", b"\xff" * 8, b""]]


def test_a_number_that_goes_back_is_a_new_run() -> None:
    """A forwarded restart forgets what was before and has another incarnation; forward jumps are holes."""
    names = iter(["first", "second"])
    of = History(ReplayBuffer(10), new_incarnation=lambda: next(names))
    of.keep(b"t", 5, b"a")
    of.keep(b"t", 9, b"b")
    assert of.snapshot(0)[1] == [Kept(b"t", 5, b"a"), Kept(b"t", 9, b"b")]
    assert of.info().incarnation == "first"
    of.keep(b"t", 9, b"c")
    info, kept = of.snapshot(0)
    assert (info.incarnation, info.first_seq, info.next_seq) == ("second", 9, 10)
    assert kept == [Kept(b"t", 9, b"c")]
