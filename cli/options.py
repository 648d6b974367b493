"""The flags that several commands share, and what they come to together with environment and file.

A flag left out is None here: whether something was said, and what holds otherwise, is ``kvbus.config``'s
matter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvbus.config import RANKS_MAX, SECONDS_MAX, FeedSettings, Settings, faulty, load

Endpoints = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ENDPOINT]...", help="Where engines publish, e.g. tcp://10.0.0.1:5557 or ipc:///tmp/kv."
    ),
]
Replays = Annotated[
    list[str] | None,
    typer.Option(
        "--replay", metavar="ENDPOINT", help="Replay socket; repeat it, one for each ENDPOINT in order."
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="PREFIX", help="Only topics that begin so; may be repeated. Default: all."
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        min=1,
        max=RANKS_MAX,
        metavar="N",
        help="N data-parallel ranks: each ENDPOINT stands for ports p … p+N-1.",
    ),
]
Bind = Annotated[
    bool | None,
    typer.Option(
        "--bind/--connect", help="Wait at ENDPOINT for engines that connect, instead of connecting to them."
    ),
]
Idle = Annotated[
    float | None,
    typer.Option(
        "--idle",
        min=0,
        max=SECONDS_MAX,
        metavar="SECONDS",
        help="Say so when nothing came for so long; 0: never. Default: 30.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file. Default: $KVBUS_CONFIG, else ./kvbus.toml."
    ),
]
LogArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[LOG]", help="The log to read; being recorded to or not. Default: the setting log."
    ),
]
Json = Annotated[bool | None, typer.Option("--json/--no-json", help="JSON on stdout, one object a line.")]
SourceFilter = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="NAME", help="Only this source; may be repeated. Default: all."),
]


def settings(config: Path | None, **flags: Any) -> Settings:
    """The settings under these flags. Raises ``ConfigError``."""
    return load({name: value for name, value in flags.items() if value not in (None, [])}, file=config)


def feeds_of(given: Settings) -> list[tuple[str, FeedSettings]]:
    """Every single address to read: ranks told out, names distinct, as (name, feed) with the feed's own
    addresses.

    Raises ``ConfigError`` when there is none or names clash, ``EndpointError`` for an address without ranks.
    """
    from kvbus.endpoints import rank_endpoint

    told: dict[str, FeedSettings] = {}
    faults = [] if given.feed else ["endpoint: missing. Name one, or write a [[feed]] into kvbus.toml"]
    for feed in given.feed:
        for rank in range(feed.ranks):
            endpoint = rank_endpoint(feed.endpoint, rank)
            replay = None if feed.replay is None else rank_endpoint(feed.replay, rank)
            base = feed.name or feed.endpoint
            name = endpoint if feed.name is None else base if feed.ranks == 1 else f"{base}-dp{rank}"
            if name in told:
                faults.append(f"endpoint: {name} is there twice")
            told[name] = FeedSettings(endpoint, replay, feed.topic, 1, feed.bind, name)
    if faults:
        raise faulty(faults)
    return list(told.items())


def log_of(given: Settings) -> Path:
    """The log a command is about. Raises ``ConfigError`` when none is named."""
    if given.log is None:
        raise faulty(["log: missing. Name the file, or set log in kvbus.toml or KVBUS_LOG"])
    return given.log
