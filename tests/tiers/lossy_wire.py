"""A wire between a publisher and its readers that loses messages, live ones only: replays go past it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import zmq

from kvbus import Feed
from kvbus.wire import Live, read_live


class LossyWire:
    """Forwards what ``feed`` publishes, without the numbers that ``loses`` names, until it is told to be
    ``calm``.
    """

    def __init__(self, feed: Feed, loses: Callable[[int], bool]) -> None:
        self.lost: list[int] = []
        self._loses = loses
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._from = self._context.socket(zmq.SUB)
        self._to = self._context.socket(zmq.PUB)
        for socket in (self._from, self._to):
            socket.set_hwm(0)
        self._from.subscribe(b"")
        self._from.connect(feed.endpoint)
        port = self._to.bind_to_random_port("tcp://127.0.0.1")
        self.feed = Feed(f"tcp://127.0.0.1:{port}", feed.replay, source=feed.name)
        self._calm, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def calm(self) -> None:
        """Lose nothing from now on."""
        self._calm.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._from.poll(10):
                continue
            frames = self._from.recv_multipart()
            message = read_live(frames)
            assert isinstance(message, Live)
            if self._loses(message.seq) and not self._calm.is_set():
                self.lost.append(message.seq)
            else:
                self._to.send_multipart(frames)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        self._context.destroy(linger=0)
