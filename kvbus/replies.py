"""Who is being sent which replay, and whose turn it is. Pure: the clock and the sending come in from outside.

Each client is served its requests one after the other, clients in turn, a few batches at a time. A client
that cannot take more keeps its place and is tried again; it loses neither a batch nor the end marker, and
holds nobody up. A replay is a snapshot: what the buffer evicts meanwhile stays in it. A client that is
gone, or takes nothing for ``stall_s``, is dropped and counted; it sees no end marker and so cannot mistake
what it got for everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from kvbus.buffer import Kept
from kvbus.wire import HELLO_SEQ, PublisherInfo, ReplayRequest, end_frames, reply_frames

Sent = Literal["sent", "full", "gone"]
Send = Callable[[list[bytes]], Sent]
Snapshot = Callable[[int], tuple[PublisherInfo, list[Kept]]]

CHUNK: Final = 64
CLIENTS_MAX: Final = 1024
REQUESTS_MAX: Final = 16
RETRY_S: Final = (0.001, 0.02)
"""Shortest and longest pause before a full client is tried again; doubled each time."""


class ReplyCounts(Struct):
    """Requests by what became of them. ``batches``: replayed in all."""

    asked: int = 0
    hello: int = 0
    served: int = 0
    batches: int = 0
    malformed: int = 0
    refused: int = 0
    gone: int = 0
    stalled: int = 0
    cut_at_close: int = 0


class _Job(Struct):
    """What is still to send to a client, last first, so that sending lets go of it."""

    request: ReplayRequest
    left: list[Kept]
    end: list[bytes] | None
    progressed_at: float
    retry_at: float
    pause_s: float = RETRY_S[0]


class _Client(Struct):
    requests: deque[ReplayRequest]
    job: _Job | None = None


class Replies:
    """``jobs_max``: replays sent at once, each holding its snapshot; more wait. Hello does not wait."""

    def __init__(self, snapshot: Snapshot, *, topic_frame: bool, jobs_max: int, stall_s: float) -> None:
        self._snapshot = snapshot
        self._topic_frame = topic_frame
        self._jobs_max = jobs_max
        self._stall_s = stall_s
        self._clients: dict[bytes, _Client] = {}
        self._jobs = 0
        self.counts = ReplyCounts()

    def ask(self, request: ReplayRequest) -> None:
        """Take in a request; too many of one client, or of too many clients, are refused and counted."""
        self.counts.asked += 1
        client = self._clients.get(request.route[0])
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self.counts.refused += 1
                return
            self._clients[request.route[0]] = client = _Client(deque())
        if len(client.requests) >= REQUESTS_MAX:
            self.counts.refused += 1
            return
        client.requests.append(request)

    def step(self, send: Send, now: float) -> None:
        """Give every client one turn. ``now``: seconds of a clock that never goes back."""
        for identity, client in list(self._clients.items()):
            if client.job is None:
                self._start(client, now)
            if client.job is not None and now >= client.job.retry_at:
                self._serve(identity, client, send=send, now=now)

    def wait_s(self, now: float) -> float | None:
        """How long until a ``step`` can do something: 0 at once, None not before somebody asks."""
        due = [self._due(client) for client in self._clients.values()]
        soonest = min((at for at in due if at is not None), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def cut(self) -> None:
        """Drop all that is unfinished, and count it."""
        self.counts.cut_at_close += sum(len(client.requests) for client in self._clients.values())
        self._clients.clear()
        self._jobs = 0

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        jobs = [client.job for client in self._clients.values() if client.job is not None and client.job.left]
        assert len(jobs) <= self._jobs <= self._jobs_max, "more replays at once than allowed"
        assert all(client.requests for client in self._clients.values()), "a client without a request"
        assert len(self._clients) <= CLIENTS_MAX, "too many clients"
        counts = self.counts
        answered = counts.served + counts.hello
        dropped = counts.refused + counts.gone + counts.stalled + counts.cut_at_close
        waiting = sum(len(client.requests) for client in self._clients.values())
        assert counts.asked == answered + dropped + waiting, "a request is lost"

    def _due(self, client: _Client) -> float | None:
        if client.job is not None:
            return client.job.retry_at
        return 0.0 if self._may_start(client.requests[0]) else None

    def _may_start(self, request: ReplayRequest) -> bool:
        return request.start_seq == HELLO_SEQ or self._jobs < self._jobs_max

    def _start(self, client: _Client, now: float) -> None:
        request = client.requests[0]
        if not self._may_start(request):
            return
        # The info must be that of the snapshot: later the buffer may have moved past start_seq, yet nothing
        # is lacking.
        info, kept = self._snapshot(request.start_seq)
        end: list[bytes] | None = end_frames(info, route=request.route, topic_frame=self._topic_frame)
        if request.one_reply and kept:
            kept, end = kept[:1], None
        kept.reverse()
        client.job = _Job(request, kept, end, progressed_at=now, retry_at=now)
        self._jobs += request.start_seq != HELLO_SEQ

    def _serve(self, identity: bytes, client: _Client, *, send: Send, now: float) -> None:
        job = client.job
        assert job is not None
        outcome, count = self._send_some(job, send)
        if count:
            job.progressed_at, job.pause_s = now, RETRY_S[0]
        if outcome == "gone":
            self.counts.gone += self._drop(identity, client)
        elif outcome == "done":
            self._finish(identity, client)
        elif outcome == "full" and now - job.progressed_at > self._stall_s:
            self.counts.stalled += self._drop(identity, client)
        elif outcome == "full":
            job.retry_at = now + job.pause_s
            job.pause_s = min(2 * job.pause_s, RETRY_S[1])

    def _send_some(self, job: _Job, send: Send) -> tuple[Literal["sent", "full", "gone", "done"], int]:
        """Up to a chunk of a job, and how many messages went out."""
        for count in range(CHUNK):
            if not job.left:
                outcome = "sent" if job.end is None else send(job.end)
                return ("done", count + 1) if outcome == "sent" else (outcome, count)
            batch = job.left[-1]
            outcome = send(
                reply_frames(
                    batch.topic,
                    batch.seq,
                    batch.payload,
                    route=job.request.route,
                    topic_frame=self._topic_frame,
                )
            )
            if outcome != "sent":
                return outcome, count
            job.left.pop()
            self.counts.batches += 1
        return "sent", CHUNK

    def _finish(self, identity: bytes, client: _Client) -> None:
        hello = client.requests.popleft().start_seq == HELLO_SEQ
        self.counts.hello += hello
        self.counts.served += not hello
        self._jobs -= not hello
        client.job = None
        if not client.requests:
            del self._clients[identity]

    def _drop(self, identity: bytes, client: _Client) -> int:
        assert client.job is not None
        self._jobs -= client.job.request.start_seq != HELLO_SEQ
        del self._clients[identity]
        return len(client.requests)
