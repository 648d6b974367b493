"""The two sockets of a publisher, opened and closed. What is sent over them is decided elsewhere.

They are opened in the caller's thread, so that a taken address is an error of the call, and then belong to
one thread each.
"""

from __future__ import annotations

from typing import Final

import zmq

from kvbus.endpoints import Endpoint, live_endpoint, replay_endpoint
from kvbus.errors import EndpointError

REQUEST_BYTES_MAX: Final = 4096
SUBSCRIPTION_BYTES_MAX: Final = 65_536
DEAD_PEER_MS: Final = 60_000
"""Give up a tcp peer that acknowledges nothing for this long, else its queue fills to ``hwm`` for nobody."""

KEEPALIVE_S: Final = 30
"""Probe a tcp peer that was silent for this long (the system's default is two hours)."""


class PublisherSockets:
    """``live`` (XPUB) and ``router`` (ROUTER or None), with the addresses they really have.

    ``hwm``: messages that may wait for one slow subscriber; more are lost to it, or with ``waits`` make
    sending fail with EAGAIN. Raises ``EndpointError``.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str | None,
        *,
        rank: int,
        hwm: int,
        waits: bool,
        context: zmq.Context[zmq.Socket[bytes]] | None,
    ) -> None:
        live_at = live_endpoint(endpoint, rank=rank)
        replay_at = None if replay is None else replay_endpoint(replay, rank=rank)
        inproc = endpoint.startswith("inproc:") or (replay or "").startswith("inproc:")
        # A context of our own can be terminated, which waits until every byte is out; inproc needs a shared
        # one.
        self._own = context is None and not inproc
        self._context = zmq.Context() if self._own else context or zmq.Context.instance()
        self.live = self._context.socket(zmq.XPUB)
        self.router: zmq.Socket[bytes] | None = None
        self.replay_endpoint: str | None = None
        try:
            self.live.setsockopt(zmq.SNDHWM, hwm)
            self.live.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
            self.live.setsockopt(zmq.XPUB_NODROP, int(waits))
            self.endpoint = open_at(self.live, live_at)
            if replay_at is not None:
                self.router = self._context.socket(zmq.ROUTER)
                self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.router.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
                self.replay_endpoint = open_at(self.router, replay_at)
        except BaseException:
            self.close(0.0)
            raise

    def close(self, linger_s: float) -> None:
        """Close both; with a context of ours, return when their bytes are out or ``linger_s`` is over."""
        linger_ms = max(0, round(linger_s * 1e3))
        self.live.close(linger_ms)
        if self.router is not None:
            self.router.close(linger_ms)
        if self._own:
            self._context.term()


def open_at(socket: zmq.Socket[bytes], at: Endpoint) -> str:
    """Bind or connect, and the address with its real port. Raises ``EndpointError``."""
    try:
        socket.setsockopt(zmq.IPV6, int(at.ipv6))
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        # A reader sends nothing that could stay unacknowledged: only probes tell it that a host is gone.
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S // 3)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        socket.setsockopt(zmq.TCP_MAXRT, DEAD_PEER_MS)
        if not at.binds:
            socket.connect(at.address)
            return at.address
        socket.bind(at.address)
    except zmq.ZMQError as error:
        verb = "bind" if at.binds else "connect to"
        problem = f"cannot {verb} {at.address!r}: {error.strerror}"
        raise EndpointError(problem, next_step=_advice(error)) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def _advice(error: zmq.ZMQError) -> str:
    if error.errno == zmq.EADDRINUSE:
        return "Stop what uses it, or choose another port (tcp://*:0 takes any free one)."
    return "Check the host, the port and the rights of the directory."
