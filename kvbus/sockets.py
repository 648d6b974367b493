"""The two sockets of a publisher, opened and closed. What is sent over them is decided elsewhere.

They are opened in the caller's thread, so that a taken address is an error of the call, and then belong to
one thread each.
"""

from __future__ import annotations

import os
import socket as system
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import zmq

from kvbus.endpoints import Endpoint, live_endpoint, replay_endpoint
from kvbus.errors import EndpointError

REQUEST_BYTES_MAX: Final = 4096
SUBSCRIPTION_BYTES_MAX: Final = 65_536
DEAD_PEER_MS: Final = 60_000
"""Give up a tcp peer that acknowledges nothing for this long, else its queue fills to ``hwm`` for nobody."""

LEAVING_S: Final = 0.5
"""How long a socket that is being closed may still answer at an ipc address before it counts as taken."""

KEEPALIVE_S: Final = 30
"""Probe a tcp peer that was silent for this long (the system's default is two hours)."""

TAKEN: Final = "Stop what uses it, or choose another address (tcp://*:0 takes any free port)."


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
        self._files: list[IpcFile] = []
        try:
            self.live.setsockopt(zmq.SNDHWM, hwm)
            self.live.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
            self.live.setsockopt(zmq.XPUB_NODROP, int(waits))
            self.endpoint = self._open(self.live, live_at)
            if replay_at is not None:
                self.router = self._context.socket(zmq.ROUTER)
                self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.router.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
                self.replay_endpoint = self._open(self.router, replay_at)
        except BaseException:
            self.close(0.0)
            raise

    def _open(self, socket: zmq.Socket[bytes], at: Endpoint) -> str:
        path = IpcFile.path_of(at)
        if path is None:
            return open_at(socket, at)
        if is_answered(path):
            raise EndpointError(f"cannot bind {at.address!r}: somebody answers there", next_step=TAKEN)
        endpoint = open_at(socket, at)
        self._files.append(IpcFile(path))
        return endpoint

    def close(self, linger_s: float) -> None:
        """Close both; with a context of ours, return when their bytes are out or ``linger_s`` is over.

        Files of ipc addresses are removed: ZeroMQ leaves them.
        """
        while self._files:
            self._files.pop().remove()
        linger_ms = max(0, round(linger_s * 1e3))
        self.live.close(linger_ms)
        if self.router is not None:
            self.router.close(linger_ms)
        if self._own:
            self._context.term()


class IpcFile:
    """The file that an ipc address has just been bound to, by this process. It lies there until it is
    removed, unless somebody else has bound the address since and put another in its place.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()  # the folder we are in may be another one later
        self._made = self._path.lstat()

    @staticmethod
    def path_of(at: Endpoint) -> str | None:
        """The path of an address to bind; None for one without a file, or whose file ZeroMQ sees to."""
        scheme, _, path = at.address.partition("://")
        return path if at.binds and scheme == "ipc" and path != "*" and path[0] != "@" else None

    def remove(self) -> None:
        """While the socket is open no other file can have this one's number."""
        with suppress(OSError):
            if os.path.samestat(self._made, self._path.lstat()):
                self._path.unlink()


def is_answered(path: str) -> bool:
    """Whether a process listens at this path, and still does after the moment that closing takes.

    ZeroMQ does not ask: it would take the path over, and whoever had it would hear of nobody any more.
    """
    deadline = time.monotonic() + LEAVING_S
    while True:
        with system.socket(system.AF_UNIX, system.SOCK_STREAM | system.SOCK_NONBLOCK) as asking:
            try:
                asking.connect(path)
            except BlockingIOError:  # so many ask that it cannot take one more
                pass
            except OSError:
                return False
        if time.monotonic() > deadline:
            return True
        time.sleep(LEAVING_S / 50)


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
        return TAKEN
    return "Check the host, the port and the rights of the directory."
