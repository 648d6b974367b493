"""An engine's two sockets, playing a series of batches with the faults of real networks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import zmq

from kvbus.wire import ReplayRequest, end_frames, live_frames, read_request, reply_frames

Batch = tuple[bytes, int, bytes]
"""topic, seq, payload"""


@dataclass
class Faults:
    """Which seqs meet which fate; ``restart_at``: after so many batches, a fresh process from seq 0."""

    drop: frozenset[int] = frozenset()
    double: frozenset[int] = frozenset()
    skip: frozenset[int] = frozenset()
    restart_at: int | None = None
    end_marker: bool = True
    topic_in_replay: bool = True
    keep: int = 10_000


@dataclass
class Engine:
    """Plays ``batches`` once a subscriber has come, then answers replays until it is stopped."""

    batches: list[Batch]
    faults: Faults = field(default_factory=Faults)
    pause_s: float = 0.0

    def __post_init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._live = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._live, self._router):
            socket.set_hwm(0)
        self.endpoint = f"tcp://127.0.0.1:{self._live.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._kept: list[Batch] = []
        self._stop = threading.Event()
        self.played = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Engine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._live.poll(10):
            self._answer()
            if self._stop.is_set():
                return
        base = 0
        for number, (topic, original, payload) in enumerate(self.batches):
            if number == self.faults.restart_at:
                self._kept.clear()
                base = -original
            self._play(topic, base + original, payload)
            if number % 16 == 0:
                self._answer()
            if self.pause_s:
                time.sleep(self.pause_s)
        self.played.set()
        while not self._stop.is_set():
            self._router.poll(10)
            self._answer()

    def _play(self, topic: bytes, seq: int, payload: bytes) -> None:
        if seq in self.faults.skip:
            return
        self._kept = [*self._kept[1 - self.faults.keep :], (topic, seq, payload)]
        if seq in self.faults.drop:
            return
        for _ in range(2 if seq in self.faults.double else 1):
            self._live.send_multipart(live_frames(topic, seq, payload))

    def _answer(self) -> None:
        topic_frame = self.faults.topic_in_replay
        while self._router.poll(0):
            frames = self._router.recv_multipart()
            request = read_request(frames)
            assert isinstance(request, ReplayRequest)
            for topic, seq, payload in self._kept:
                if seq >= request.start_seq:
                    self._send(
                        reply_frames(topic, seq, payload, route=request.route, topic_frame=topic_frame)
                    )
            if self.faults.end_marker:
                self._send(end_frames(None, route=request.route, topic_frame=topic_frame))

    def _send(self, frames: list[bytes]) -> None:
        self._router.send_multipart(frames)


def numbered(payloads: Iterable[bytes], *, topic: bytes = b"kv") -> list[Batch]:
    """A series that numbers ``payloads`` from 0."""
    return [(topic, seq, payload) for seq, payload in enumerate(payloads)]
