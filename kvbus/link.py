"""One feed's sockets and its ``Sequencer``: SUB and replay in, ordered entries out. Owned and polled by
``Subscriber``.

It says hello to the replay socket, asks it when something is missing and says when the answer is over. What
comes live first waits in ZeroMQ, a second at most, for the answer to the first hello, so that a stream begins
with what its publisher says of itself. It decides nothing about order: that is ``sequence``.

Each request goes out on a DEALER socket of its own: what a slow publisher still sends for an earlier
request can then not be taken for the answer to this one.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

import zmq

from kvbus.arrival import Arrival
from kvbus.dialects import DialectReader
from kvbus.endpoints import reader_endpoint
from kvbus.feed import Feed, Notice
from kvbus.live_socket import LiveSocket
from kvbus.log import Entry
from kvbus.sequencer import Sequencer
from kvbus.sockets import open_at
from kvbus.wire import (
    HELLO_SEQ,
    MESSAGE_BYTES_MAX,
    Malformed,
    ReplayEnd,
    ReplayItem,
    hello_request,
    read_live,
    read_reply,
    replay_request,
)

BUDGET: Final = 1024
"""Messages taken from one socket before the others get their turn."""
HELLO_TIMEOUT_NS: Final = 1_000_000_000
WAITING_ROUNDS: Final = 64
"""Budgets of messages that are read at the end: more than a SUB socket holds, and an end to it."""
LIVES_MAX: Final = 16
"""How often the numbers of one answer may start over (a forwarder can have kept several lives)."""
RETRY_NS: Final = 20_000_000
RETRY_SILENT_NS: Final = 250_000_000


class Link:
    """One feed's sockets and its sequencer."""

    def __init__(
        self,
        feed: Feed,
        sequencer: Sequencer,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        hwm: int,
        timeout_ns: int,
    ) -> None:
        self.feed = feed
        self.sequencer = sequencer
        self.counts: Counter[str] = Counter()
        self._context = context
        self._timeout_ns = timeout_ns
        self._reader = DialectReader()
        self._dealer: zmq.Socket[bytes] | None = None
        self._hello = False
        self._heard_ns = 0
        self._answer_seq = -1
        self._answer_lives = 0
        self._ask_after_ns = 0
        self._hello_due = feed.replay is not None
        self._caught_up = False
        self._connected = False
        self._met = False
        self._greets_until_ns = time.monotonic_ns() + HELLO_TIMEOUT_NS
        self.live = LiveSocket(feed, context, hwm=hwm)

    @property
    def holds(self) -> bool:
        """Whether somebody speaks here and something is held back, or is being asked for."""
        sequencer = self.sequencer
        asks = self.greets or sequencer.ask_from is not None
        return bool(sequencer.waiting) or (self._connected and asks)

    @property
    def greets(self) -> bool:
        """Whether the first hello is to be answered, or given up, before anything live is read."""
        is_open = self._hello_due if self._dealer is None else self._hello
        return is_open and time.monotonic_ns() < self._greets_until_ns

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Those to wait for."""
        live = [] if self.greets else [self.live.sub]
        return [*live, self.live.monitor] + ([self._dealer] if self._dealer is not None else [])

    # -- live --------------------------------------------------------------------------------------------

    def take_live(self, out: list[Entry | Notice]) -> int:
        """Read what the SUB socket has, up to the budget; the number of messages."""
        receive, live, reader = self.live.receive, self.sequencer.live, self._reader
        read = reader.read
        for taken in range(BUDGET):
            try:
                frames, connection = receive()
            except zmq.Again:
                return taken
            message = read_live(frames)
            if isinstance(message, Malformed):
                self.counts["malformed"] += 1
                if self.counts["malformed"].bit_count() == 1:  # said at 1, 2, 4, 8 …: seen, but no flood
                    out.append(Notice("malformed", self.feed.name, message.why))
                continue
            batch = read(message.payload)
            out += live(
                Arrival(
                    message.topic,
                    message.seq,
                    message.payload,
                    time.time_ns(),
                    batch,
                    reader.dialect,
                    connection,
                )
            )
        return BUDGET

    def take_waiting(self, out: list[Entry | Notice]) -> None:
        """Read what waited for the answer to a hello, for a reader that leaves."""
        if self.greets:
            for _ in range(WAITING_ROUNDS):
                if not self.take_live(out):
                    return

    def take_news(self, out: list[Entry | Notice]) -> None:
        """Hear what has become of the connection."""
        for what, connection in self.live.news():
            if what == "connected":
                self._meet(out)
                continue
            out.append(Notice("disconnected", self.feed.name, f"lost {self.feed.endpoint}; reconnecting"))
            if self.feed.bind:
                self.sequencer.disconnected(connection, time.time_ns())
            else:
                self._connected = False

    def _meet(self, out: list[Entry | Notice]) -> None:
        out.append(Notice("connected", self.feed.name, f"connected: {self.feed.endpoint}"))
        self._connected = True
        if not self._met:
            self._met = True
            self._greets_until_ns = time.monotonic_ns() + HELLO_TIMEOUT_NS
        if not self.feed.bind and self._dealer is not None:
            # The answer under way can be of a process that is gone: of the present one it proves nothing.
            self.take_replay(out)
            self._hang_up(0)
        self.sequencer.connected(time.time_ns())
        self._hello_due = self.feed.replay is not None
        self._ask_after_ns = 0

    def _reopen(self, out: list[Entry | Notice]) -> None:
        while self.take_live(out):
            pass
        self.counts["reopened"] += 1
        self.live.reopen()

    # -- replay ------------------------------------------------------------------------------------------

    def take_replay(self, out: list[Entry | Notice]) -> None:
        """Read what the replay socket has, up to the budget."""
        if self._dealer is None:
            return
        for _ in range(BUDGET):
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply = read_reply(frames)
            if isinstance(reply, ReplayEnd):
                self._answered(reply, out)
                return
            if isinstance(reply, Malformed):
                self.counts["malformed_reply"] += 1
                continue
            if self._hello:
                self.counts["unasked_reply"] += 1  # takes 2**64 - 2 for a small number, or is confused
                continue
            if not self._goes_on(reply.seq):
                self.counts["endless_reply"] += 1
                self._heard_ns = 0
                return
            self.counts["replayed"] += 1
            out += self.sequencer.replayed(self._arrival(reply))

    def _answered(self, end: ReplayEnd, out: list[Entry | Notice]) -> None:
        """The answer is complete."""
        if not self._hello:
            out += self.sequencer.ended(complete=True, info=end.info, now_ns=time.time_ns())
        elif end.info is not None:
            out += self.sequencer.hello(end.info)
        self._hang_up(RETRY_NS)

    def _arrival(self, reply: ReplayItem) -> Arrival:
        batch = self._reader.read(reply.payload)
        return Arrival(
            reply.topic if reply.topic_said else None,
            reply.seq,
            reply.payload,
            time.time_ns(),
            batch,
            self._reader.dialect,
            replayed=True,
        )

    def _goes_on(self, seq: int) -> bool:
        """Take note of an answer's progress; False when it goes round in circles."""
        self._heard_ns = time.monotonic_ns()
        self._answer_lives += seq <= self._answer_seq
        self._answer_seq = seq
        return self._answer_lives <= LIVES_MAX

    def keep_time(self, out: list[Entry | Notice]) -> None:
        """Send the request that is due, give up the one that is not answered, let the sequencer's time
        pass.
        """
        now = time.monotonic_ns()
        if self.live.is_forsaken:
            self._reopen(out)
        if self._dealer is not None and now - self._heard_ns > (
            HELLO_TIMEOUT_NS if self._hello else self._timeout_ns
        ):
            if not self._hello:
                out += self.sequencer.ended(complete=False, info=None, now_ns=time.time_ns())
            self._hang_up(RETRY_SILENT_NS)
        out += self.sequencer.tick(time.time_ns())
        if self._dealer is not None or self.feed.replay is None or now < self._ask_after_ns:
            self._say_caught_up(out)
            return
        start = self.sequencer.ask_from
        if self._hello_due:
            self._hello_due = False
            self._request(HELLO_SEQ, now)
        elif start is not None:
            self._request(start, now)
        self._say_caught_up(out)

    def _say_caught_up(self, out: list[Entry | Notice]) -> None:
        idle = self._dealer is None and not self._hello_due and self.sequencer.ask_from is None
        if idle and not self._caught_up:
            self._caught_up = True
            out.append(Notice("caught_up", self.feed.name, "what the replay had is here"))

    def _request(self, start: int, now: int) -> None:
        assert self.feed.replay is not None
        self._hello = start == HELLO_SEQ
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.linger = 0
        self._dealer.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._dealer.set_hwm(0)  # a publisher before vLLM 0.33 drops replies that we do not read at once
        open_at(self._dealer, reader_endpoint(self.feed.replay))
        self._dealer.send_multipart(hello_request() if self._hello else replay_request(start))
        self._heard_ns = now
        self._answer_seq, self._answer_lives = -1, 0
        if not self._hello:
            self.counts["asked"] += 1
            self.sequencer.asked()

    def _hang_up(self, pause_ns: int) -> None:
        if self._dealer is not None:
            self._dealer.close(0)
            self._dealer = None
        self._ask_after_ns = time.monotonic_ns() + pause_ns

    def close(self) -> None:
        self._hang_up(0)
        self.live.close()
