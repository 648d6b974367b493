"""Where the tiers of ``kvbus run`` publish, from one word; and how readers are told. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from kvbus.config import engine_from_flag
from kvbus.endpoints import binds, live_endpoint
from kvbus.errors import ConfigError, EndpointError
from kvbus.feed import Feed
from tiers.voice.voices import Address

ENGINE: Final = "run"
ANYWHERE: Final = ("*", "0.0.0.0", "[::]", "::")


def addresses(base: str | None, names: Sequence[str]) -> list[Address]:
    """A live and a replay address for each tier. None: free ports of this machine alone.

    ``ipc://X`` becomes ``ipc://X-gpu``, ``ipc://X-gpu-replay``, ``ipc://X-cpu`` and so on; ``tcp://*:P`` the
    ports P, P + 1 … in the same order (P = 0: free ones). Raises ``EndpointError`` for an address that cannot
    be bound: a publisher would connect to it.
    """
    if base is None:
        return [Address() for _ in names]
    if base.startswith("ipc://") and base != "ipc://":
        return [checked(f"{base}-{name}", f"{base}-{name}-replay") for name in names]
    if not (base.startswith("tcp://") and binds(base)):
        raise EndpointError(
            f"{base!r} would be connected to, and the tiers of a run are bound",
            next_step="Write tcp://*:5600, tcp://127.0.0.1:* or ipc:///tmp/run.",
        )
    host, _, port = base.rpartition(":")
    if port in ("0", "*"):
        return [Address(f"{host}:*", f"{host}:*") for _ in names]
    if not port.isdigit() or int(port) + 2 * len(names) > 65_536:
        raise EndpointError(
            f"{base!r} leaves no {2 * len(names)} ports from there on", next_step="Write it as tcp://*:5600."
        )
    ports = iter(range(int(port), int(port) + 2 * len(names)))
    return [checked(f"{host}:{next(ports)}", f"{host}:{next(ports)}") for _ in names]


def checked(live: str, replay: str) -> Address:
    """Raises ``EndpointError`` for an address that cannot be."""
    live_endpoint(live)
    live_endpoint(replay)
    return Address(live, replay)


def feeds_of(published: Sequence[Feed]) -> list[Feed]:
    """The same as a reader on this machine connects to them, each named as a tier of the engine ``run``."""
    return [
        Feed(reachable(feed.endpoint), reachable(feed.replay or ""), source=f"{ENGINE}/{feed.name}")
        for feed in published
    ]


def reachable(address: str) -> str:
    """An address that is bound anywhere, by the name of this machine."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    return f"tcp://127.0.0.1{colon}{port}" if address.startswith("tcp://") and host in ANYWHERE else address


def engine_flag(feeds: Sequence[Feed]) -> str:
    """What ``tail`` and ``record`` take to read them, as a shell takes it: ``--engine
    'NAME=TIER@ENDPOINT+REPLAY,…'``.

    Raises ``EndpointError`` for names and addresses that it cannot say: they would be read as others.
    """
    tiers = [(feed.name.partition("/")[2], feed.endpoint, feed.replay) for feed in feeds]
    text = f"{ENGINE}=" + ",".join(f"{name}@{endpoint}+{replay}" for name, endpoint, replay in tiers)
    if _read_back(text) != tiers:
        raise EndpointError(
            f"--engine cannot say {text!r}",
            next_step="Choose an address without comma, plus and @, and a class that is named in letters.",
        )
    quoted = shlex.quote(text)
    if quoted == text:
        quoted = f"'{text}'"
    return f"--engine {quoted}"


def _read_back(engine: str) -> list[tuple[str, str, str | None]]:
    """The tiers as they are understood; none where they are not."""
    try:
        return [(tier.name, tier.endpoint, tier.replay) for tier in engine_from_flag(engine, ()).tier]
    except ConfigError:
        return []
