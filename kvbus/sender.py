"""The thread that publishes: takes what the engine left, encodes, numbers, keeps, sends.

In that order. Encode first: what cannot be sent leaves a hole, and an empty batch of the same time right
behind it, so that readers learn of the loss at once, and an engine's other tiers do not wait for this one.
Keep before sending: whoever sees a number can have it replayed. It reads no replay requests (``router``
does) and drops nothing without counting it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

import zmq
import zmq.backend
from msgspec import Struct

from kvbus.dialects import encode
from kvbus.history import History
from kvbus.outbox import Fresh, Hole, Item, Nudge, Outbox, Ready
from kvbus.wire import MESSAGE_BYTES_MAX, seq_bytes

log = logging.getLogger(__name__)

CHUNK: Final = 64
"""Items taken at once; the first waits for the last to be encoded, well under a millisecond."""
IDLE_S: Final = 0.05
"""How long the socket's news (a new subscriber) may lie unread while nothing is published."""
HASTE_S: Final = 0.002
"""The same while somebody waits for a subscriber."""
FULL_S: Final = 0.001
"""Between two tries to send to a subscriber whose queue is full (``waits`` only)."""


class Refused(Struct, frozen=True):
    """A batch that cannot be sent. ``instead``: the empty one of its time, None where that cannot be sent."""

    instead: bytes | None


class Sender:
    """Owns the XPUB socket from the moment its thread starts. ``waits``: rather wait for readers than lose
    batches.

    XPUB, not PUB: a PUB socket reads a new subscription only when it sends, and loses that message to the new
    subscriber (measured, libzmq 4.3.5).
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        outbox: Outbox,
        *,
        history: History,
        topic: bytes,
        rank: int,
        form: Literal["map", "array"],
        waits: bool,
    ) -> None:
        self._socket = socket
        # pyzmq's method in C: the Python one around it serves draft sockets, and costs as much as sending.
        self._send_frame: Callable[[bytes, int], None] = zmq.backend.Socket.send.__get__(socket)
        self._outbox = outbox
        self._history = history
        self._topic = topic
        self._rank = rank
        self._form: Literal["map", "array"] = form
        self._first_flags = zmq.SNDMORE | zmq.NOBLOCK if waits else zmq.SNDMORE
        self._finish_by = float("inf")
        self._subscriptions = 0
        self._subscribed = threading.Condition()
        self._watchers = 0
        self._refused_news, self._full_news = _News(), _News()
        self.published = 0
        self.refused: Counter[str] = Counter(unencodable=0, too_large=0)
        self.dropped_at_close = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        """Send until the outbox is shut and empty, or ``finish_by`` has passed."""
        try:
            while self._send_chunk(self._outbox.take(CHUNK, timeout_s=HASTE_S if self._watchers else IDLE_S)):
                pass
        except Exception as error:
            self.failure = error
            self._outbox.shut(f"has failed ({error})")
            log.exception("publishing has stopped")

    def finish_by(self, deadline: float) -> None:
        """Send nothing after ``deadline`` (``time.monotonic()``); what is left then is counted."""
        self._finish_by = deadline

    def wait_for_subscriber(self, timeout_s: float) -> bool:
        """Whether a subscription has come, of whatever topic; from then on nothing sent is lost to it."""
        with self._subscribed:
            self._watchers += 1
            self._outbox.nudge()
            try:
                return self._subscribed.wait_for(lambda: self._subscriptions > 0, timeout_s)
            finally:
                self._watchers -= 1

    def _send_chunk(self, items: list[Item]) -> bool:
        # Encode all, then send all: sent close together, many messages wake ZeroMQ's own thread only once.
        encoded = [self._encoded(item) if isinstance(item, Fresh) else item for item in items]
        # Read the news between waking and sending, so that a subscriber that came meanwhile gets this chunk.
        self._read_subscriptions()
        for item in encoded:
            if isinstance(item, bytes):
                self._send_next(item)
            elif isinstance(item, Ready):
                self._send_ready(item)
            elif isinstance(item, Refused):
                self._history.give_up(1)
                if item.instead is not None:
                    self._send_next(item.instead)
            elif isinstance(item, Hole):
                self._give_up(item)
            elif isinstance(item, Nudge) and item.last:
                return False
        return True

    def _encoded(self, batch: Fresh) -> bytes | Refused:
        try:
            payload = encode(batch.events, ts=batch.ts, rank=self._rank, form=self._form)
        except Exception as error:  # whatever an engine's objects raise, the next batch must go out
            self._refuse("unencodable", str(error))
        else:
            if not self._is_too_large(payload):
                return payload
        try:
            return Refused(encode([], ts=batch.ts, rank=self._rank, form=self._form))
        except Exception:  # it is the time that cannot be encoded
            return Refused(None)

    def _is_too_large(self, payload: bytes) -> bool:
        if len(payload) <= MESSAGE_BYTES_MAX:
            return False
        self._refuse("too_large", f"{len(payload)} bytes are more than the {MESSAGE_BYTES_MAX} readers take")
        return True

    def _refuse(self, reason: str, why: str) -> None:
        self.refused[reason] += 1
        if self._refused_news.worth_telling(self.refused.total()):
            log.warning("batch not published, %d so far: %s", self.refused.total(), why)

    def _send_next(self, payload: bytes) -> None:
        self._send(self._topic, self._history.number(self._topic, payload), payload)

    def _send_ready(self, batch: Ready) -> None:
        if self._is_too_large(batch.payload):
            return  # its number is missing then
        self._history.keep(batch.topic, batch.seq, batch.payload)
        self._send(batch.topic, batch.seq, batch.payload)

    def _send(self, topic: bytes, seq: int, payload: bytes) -> None:
        send = self._send_frame
        while True:
            if time.monotonic() > self._finish_by:
                self.dropped_at_close += 1
                return
            try:
                send(topic, self._first_flags)
                break
            except zmq.Again:
                time.sleep(FULL_S)
        # libzmq counts whole messages: once the first frame is taken, the others are.
        send(seq_bytes(seq), zmq.SNDMORE)
        send(payload, 0)
        self.published += 1

    def _give_up(self, hole: Hole) -> None:
        count = self._outbox.open_hole(hole)
        self._history.give_up(count)
        dropped = self._outbox.dropped
        if self._full_news.worth_telling(dropped):
            log.warning("the queue was full: %d batches dropped so far, each leaves a hole", dropped)

    def _read_subscriptions(self) -> None:
        # Asking for EVENTS makes libzmq look at its pipes; sending does so only now and then.
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            said = self._socket.recv()
            if said[:1] in (b"\x00", b"\x01"):
                with self._subscribed:
                    self._subscriptions += 1 if said[:1] == b"\x01" else -1
                    self._subscribed.notify_all()


class _News:
    """Tells a growing count when it is new, and then each time it has doubled: seen, but no load."""

    def __init__(self) -> None:
        self._tell_from = 1

    def worth_telling(self, count: int) -> bool:
        if count < self._tell_from:
            return False
        self._tell_from = 2 * count
        return True
