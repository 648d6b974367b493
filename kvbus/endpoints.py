"""Where a publisher's sockets are, by the rules engines already follow. Nothing is opened here.

The rules are vLLM's (``ZmqEventPublisher``, 0.33), so that one setting means the same to both: what can
only be bound is bound, all else is connected to, and each data-parallel rank has addresses of its own. Two
cases in which vLLM gives up work here: a rank on ipc, and a wildcard ipc path. What would fail inside
libzmq with a bare errno is refused with a reason.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kvbus.errors import EndpointError

IPC_PATH_MAX: Final = 107
"""Bytes of a Unix socket path on Linux (``sun_path`` less its final zero)."""

_ANY_PORT: Final = ("0", "*")


class Endpoint(Struct, frozen=True):
    """A checked address of one rank. ``binds``: bind it, else connect. ``ipv6``: set that socket option."""

    address: str
    binds: bool
    ipv6: bool


def live_endpoint(endpoint: str, *, rank: int = 0) -> Endpoint:
    """Where batches are published: bound if it has ``*`` or ``::`` or is ipc or inproc, else connected to.

    Raises ``EndpointError``.
    """
    address = rank_endpoint(endpoint, rank)
    if not binds(address) and address.endswith(":0"):
        raise EndpointError(
            f"{endpoint!r} would be connected to, and there is no port 0 to connect to",
            next_step="Write tcp://*:0 to bind any free port, or name the subscriber's port.",
        )
    return Endpoint(address, binds(address), "[" in address or "::" in address)


def replay_endpoint(endpoint: str, *, rank: int = 0) -> Endpoint:
    """Where replays are asked for: always bound, whatever it looks like. Raises ``EndpointError``."""
    address = rank_endpoint(endpoint, rank)
    return Endpoint(address, True, "[" in address or "::" in address)


def reader_endpoint(endpoint: str, *, bind: bool = False) -> Endpoint:
    """Where a subscriber listens: connected to, unless it is told to ``bind``. Raises ``EndpointError``."""
    address = rank_endpoint(endpoint, 0)
    host, _, port = address.partition("://")[2].rpartition(":")
    if not bind and address.startswith("tcp:") and (host == "*" or port in _ANY_PORT):
        raise EndpointError(
            f"{endpoint!r} can only be bound, and a subscriber connects",
            next_step="Name the host and port (tcp://127.0.0.1:5557), or bind if the publisher connects.",
        )
    return Endpoint(address, bind, "[" in address or "::" in address)


def binds(endpoint: str) -> bool:
    """Whether a publisher binds this address (vLLM ``_is_bind_endpoint``; note that 0.0.0.0 connects)."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The address of one data-parallel rank: tcp port + rank (0 and ``*`` stay), ipc and inproc
    ``…_dp{rank}``.

    Raises ``EndpointError`` for an address that cannot be used, and for a rank that it leaves no room for.
    """
    if rank < 0:
        raise EndpointError(
            f"{rank} is no data-parallel rank",
            next_step="Ranks count from 0; leave it out if there is only one.",
        )
    if any(sign < " " or sign == "\x7f" or "\ud800" <= sign < "\ue000" for sign in endpoint):
        raise EndpointError(
            f"{endpoint!r} has control characters, or bytes that are not UTF-8",
            next_step="Write it as tcp://*:5557 or ipc:///run/kv.sock; give the socket a name in UTF-8.",
        )
    scheme, separator, rest = endpoint.partition("://")
    if not separator or not rest:
        raise EndpointError(
            f"{endpoint!r} is not an address", next_step="Write it as tcp://*:5557 or ipc:///run/kv.sock."
        )
    if scheme == "tcp":
        return f"tcp://{_tcp_for_rank(endpoint, rest, rank=rank)}"
    if scheme in ("ipc", "inproc"):
        return _checked_name(scheme, rest if rank == 0 or rest == "*" else f"{rest}_dp{rank}")
    raise EndpointError(
        f"{endpoint!r} is of a kind that kvbus does not speak", next_step="Use tcp://, ipc:// or inproc://."
    )


def _tcp_for_rank(endpoint: str, rest: str, *, rank: int) -> str:
    host, colon, port = rest.rpartition(":")
    if port in _ANY_PORT and host:
        return rest
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise EndpointError(
            f"{endpoint!r} has no host or no port (1 … 65535, 0 or *)", next_step="Write it as tcp://*:5557."
        )
    if int(port) + rank > 65535:
        raise EndpointError(
            f"{endpoint!r} leaves no port for rank {rank}: {int(port) + rank} is above 65535",
            next_step="Choose a lower base port; each rank takes base + rank.",
        )
    return f"{host}:{int(port) + rank}"


def _checked_name(scheme: str, name: str) -> str:
    if scheme == "ipc" and len(name.encode()) > IPC_PATH_MAX:
        raise EndpointError(
            f"the ipc path {name!r} is longer than {IPC_PATH_MAX} bytes, all that the system takes",
            next_step="Choose a shorter one, say under /run or /tmp.",
        )
    return f"{scheme}://{name}"
