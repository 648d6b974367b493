"""The SUB socket of one feed, with what ZeroMQ tells of its connections.

It connects (or binds) and reconnects for ever, also where ZeroMQ would not: a peer that broke the protocol,
as with a message that is too large, is left for good and nobody is told. It reads frames, not batches.
"""

from __future__ import annotations

import time
from typing import Final, Literal

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvbus.endpoints import reader_endpoint
from kvbus.feed import Feed
from kvbus.sockets import open_at
from kvbus.wire import MESSAGE_BYTES_MAX

NOBLOCK: Final = int(zmq.NOBLOCK)
RECONNECT_MS: Final = 50
RECONNECT_MS_MAX: Final = 250
"""An engine's tiers wait a second for each other: who is there must be found well before that."""
WATCHED: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
FORSAKEN_NS: Final = 250_000_000
"""Within it after a loss ZeroMQ has said that it reconnects, or it never will."""

News = tuple[Literal["connected", "lost"], int]
"""What became of a connection, and its number where the socket is bound."""


class LiveSocket:
    """``hwm``: messages that may wait here. Raises ``EndpointError`` and ``zmq.ZMQError``."""

    def __init__(self, feed: Feed, context: zmq.Context[zmq.Socket[bytes]], *, hwm: int) -> None:
        self._feed = feed
        self._context = context
        self._hwm = hwm
        self._lost_ns: int | None = None
        self._open(feed.endpoint)

    def _open(self, endpoint: str) -> None:
        self.sub = self._context.socket(zmq.SUB)
        try:
            self.sub.set_hwm(self._hwm)
            self.sub.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            self.sub.linger = 0
            self.sub.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            self.sub.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
            for topic in self._feed.topics:
                self.sub.subscribe(topic.encode("utf-8", "surrogateescape"))  # a topic is any bytes
            self.monitor = self.sub.get_monitor_socket(WATCHED)
            try:
                self.endpoint = open_at(self.sub, reader_endpoint(endpoint, bind=self._feed.bind))
            except BaseException:
                self.sub.disable_monitor()
                self.monitor.close(0)
                raise
        except BaseException:
            self.sub.close(0)
            raise

    @property
    def is_forsaken(self) -> bool:
        """Whether the connection is gone and ZeroMQ will not make another."""
        return self._lost_ns is not None and time.monotonic_ns() - self._lost_ns > FORSAKEN_NS

    def receive(self) -> tuple[list[bytes], int]:
        """The next message and, on a bound socket, the connection it came over (else 0): nothing else tells
        publishers there apart for sure. Frame by frame, since ``recv_multipart`` asks the socket after each
        whether more follow, which takes half as long again. Raises ``zmq.Again``.
        """
        receive = self.sub.recv
        frame = receive(NOBLOCK, False)
        frames = [frame.bytes]
        while frame.more:
            frame = receive(NOBLOCK, False)
            frames.append(frame.bytes)
        return frames, _connection(frame) if self._feed.bind else 0

    def news(self) -> list[News]:
        """What has become of connections since the last time."""
        found: list[News] = []
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                found.append(("lost", event["value"]))
                # A bound socket waits for its peers: it is for them to connect again.
                self._lost_ns = None if self._feed.bind else time.monotonic_ns()
                continue
            self._lost_ns = None
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                found.append(("connected", event["value"]))
        return found

    def reopen(self) -> None:
        """Begin with a new socket at the same address. What has not been received is gone."""
        self.close()
        self._lost_ns = None
        self._open(self.endpoint)

    def close(self) -> None:
        self.sub.disable_monitor()
        self.monitor.close(0)
        self.sub.close(0)


def _connection(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:  # inproc has none
        return 0
