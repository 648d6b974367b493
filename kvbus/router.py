"""The thread that answers replay requests while another publishes: a ROUTER socket around ``Replies``.

MANDATORY and without blocking, so a full client is an answer ("full") instead of a lost message, which is
what a ROUTER makes of it by default and what cost vLLM before 0.33 its end markers. Decides nothing:
``replies`` does.
"""

from __future__ import annotations

import logging
import math
import socket as sockets
import time
from collections.abc import Callable
from typing import Final

import zmq

from kvbus.replies import Replies, Sent
from kvbus.wire import Malformed, read_request

log = logging.getLogger(__name__)

READ_AT_ONCE: Final = 64


class ReplayRouter:
    """Owns the ROUTER socket once its thread has started. ``on_failure`` hears what ended it early."""

    def __init__(
        self, socket: zmq.Socket[bytes], replies: Replies, *, on_failure: Callable[[Exception], None]
    ) -> None:
        self._socket = socket
        self._replies = replies
        self._on_failure = on_failure
        self._finish_at: float | None = None
        self._wake, self._woken = sockets.socketpair()

    def run(self) -> None:
        """Answer until ``finish_by`` was called and either nothing is left to answer or its time has come."""
        try:
            self._answer()
        except Exception as error:
            log.exception("answering replay requests has stopped")
            self._on_failure(error)
        finally:
            self._replies.cut()
            self._wake.close()
            self._woken.close()

    def finish_by(self, deadline: float) -> None:
        """Finish what was asked until now, but nothing after ``deadline`` (``time.monotonic()``)."""
        self._finish_at = deadline
        try:
            self._wake.send(b"!")
        except OSError:
            log.debug("the answering thread has ended before it was asked to")

    def _answer(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken.fileno(), zmq.POLLIN)
        while True:
            asked_to_finish = self._finish_at is not None  # before reading: what has arrived is still served
            wait_s = self._replies.wait_s(time.monotonic())
            if asked_to_finish and wait_s is None:
                wait_s = 0.0
            ready = poller.poll(None if wait_s is None else math.ceil(wait_s * 1e3))
            if any(what == self._woken.fileno() for what, _ in ready):
                poller.unregister(self._woken.fileno())  # once is enough: from here on the deadline counts
            self._read_requests()
            self._replies.step(self._send, time.monotonic())
            if asked_to_finish and self._is_finished():
                return

    def _is_finished(self) -> bool:
        assert self._finish_at is not None
        now = time.monotonic()
        return now >= self._finish_at or self._replies.wait_s(now) is None

    def _read_requests(self) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            request = read_request([frame.bytes for frame in frames], one_reply=_is_req(frames[-1]))
            if isinstance(request, Malformed):
                # No answer: an end marker would claim a replay that was never asked for.
                self._replies.counts.malformed += 1
                log.warning("replay request not understood: %s", request.why)
            else:
                self._replies.ask(request)

    def _send(self, frames: list[bytes]) -> Sent:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return "gone"
        return "sent"


def _is_req(frame: zmq.Frame) -> bool:
    try:
        return frame.get("Socket-Type") == "REQ"
    except zmq.ZMQError:  # a peer that does not say (ZMTP 2 and before), or inproc
        return False
