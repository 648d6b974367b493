"""Plain pyzmq sockets as other people's consumers use them: patient, bounded, closed at the end."""

from __future__ import annotations

from typing import Any

import zmq

from kvbus.wire import Live, PublisherInfo, ReplayEnd, ReplayItem, read_live, read_reply

PATIENCE_MS = 20_000
Sockets = zmq.Context[zmq.Socket[bytes]]


class KeepingContext(Sockets):
    """Holds on to its sockets until it is destroyed: none is collected unclosed in the middle of a test."""

    made: list[zmq.Socket[bytes]]

    def socket(self, *args: Any, **kwargs: Any) -> Any:
        self.made = [*getattr(self, "made", []), super().socket(*args, **kwargs)]
        return self.made[-1]


def connect(context: Sockets, kind: int, endpoint: str, *, receives: int = 0) -> zmq.Socket[bytes]:
    """A connected socket; a SUB takes every topic. ``receives``: its queue in messages, 0: any number."""
    made = context.socket(kind)
    made.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    made.setsockopt(zmq.RCVHWM, receives)
    if kind == zmq.SUB:
        made.subscribe(b"")
    made.connect(endpoint)
    return made


def live(sub: zmq.Socket[bytes]) -> Live:
    """The next live message."""
    read = read_live(sub.recv_multipart())
    assert isinstance(read, Live)
    return read


def replayed(client: zmq.Socket[bytes]) -> tuple[list[ReplayItem], PublisherInfo | None]:
    """A whole reply: its batches, and what the end marker said."""
    items: list[ReplayItem] = []
    while True:
        read = read_reply(client.recv_multipart())
        if isinstance(read, ReplayEnd):
            return items, read.info
        assert isinstance(read, ReplayItem)
        items.append(read)
