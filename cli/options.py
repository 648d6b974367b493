"""The flags that several commands share, and what they come to together with environment and file.

A flag left out is None here: whether something was said, and what holds otherwise, is ``kvbus.config``'s
matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvbus.config import (
    ENGINE_FLAG,
    LATENESS_S_MIN,
    RANKS_MAX,
    SECONDS_MAX,
    EngineSettings,
    FeedSettings,
    Settings,
    faulty,
    load,
)
from kvbus.engines import Engine
from kvbus.errors import ConfigError
from kvbus.feed import Feed

Endpoints = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ENDPOINT]...", help="Where engines publish, e.g. tcp://10.0.0.1:5557 or ipc:///tmp/kv."
    ),
]
Replays = Annotated[
    list[str] | None,
    typer.Option(
        "--replay",
        metavar="ENDPOINT",
        help="Replay socket; repeat it, one for each ENDPOINT in order (then for each tier without +REPLAY).",
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
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        metavar=ENGINE_FLAG,
        help="An engine whose tiers publish apart, primary tier first: they are put into the order in which "
        "the engine drained them. May be repeated.",
    ),
]
Lateness = Annotated[
    float | None,
    typer.Option(
        "--lateness",
        min=LATENESS_S_MIN,
        max=SECONDS_MAX,
        metavar="SECONDS",
        help="How long an engine's tiers wait for one that is silent. Default: 1.",
    ),
]
For = Annotated[
    float | None,
    typer.Option("--for", min=0, max=SECONDS_MAX, metavar="SECONDS", help="Leave after so long."),
]
Exit = Annotated[
    bool, typer.Option("--exit", "-e", help="Leave at the end: replays through and nothing for 1 s.")
]
Quiet = Annotated[
    bool | None, typer.Option("--quiet/--no-quiet", "-q", help="No notices and no status on stderr.")
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
Capacity = Annotated[
    list[str] | None,
    typer.Option("--capacity", metavar="MEDIUM=N", help="Blocks that fit into a tier; may be repeated."),
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
    given = load({name: value for name, value in flags.items() if value not in (None, [])}, file=config)
    if flags.get("lateness") is not None and not given.engine:
        raise faulty(["--lateness: expected together with an engine, whose tiers wait for each other"])
    return given


def capacities(given: list[str] | None) -> dict[str, int] | None:
    """``CPU=300`` and the like, as a mapping. Raises ``ConfigError``."""
    if not given:
        return None
    found = {}
    for text in given:
        medium, _, blocks = text.partition("=")
        if not medium or not blocks.isdecimal() or int(blocks) < 1:
            raise ConfigError(
                f"--capacity {text} is no capacity",
                next_step="Write a medium and blocks: --capacity CPU=300.",
            )
        found[medium] = int(blocks)
    return found


def feeds_of(given: Settings) -> list[Feed]:
    """Every single address to read: ranks and tiers told out, each under a name of its own.

    Raises ``ConfigError`` when there is none or names or addresses clash, ``EndpointError`` for an address
    that cannot be used.
    """
    feeds = [one for feed in given.feed for one in _ranks_of(feed)]
    feeds += [one for engine in given.engine for one in _tiers_of(engine)]
    faults = [] if feeds else ["endpoint: missing. Name one, or write a [[feed]] into kvbus.toml"]
    times = Counter(feed.name for feed in feeds)
    faults += [f"endpoint: {name} is there twice" for name in times if times[name] > 1]
    for engine in given.engine:
        addresses = Counter(tier.endpoint for tier in engine.tier)
        faults += [f"{engine.name}: two tiers at {one}" for one in addresses if addresses[one] > 1]
    engines = Counter(engine.name for engine in given.engine)
    faults += [
        f"engine: {name} is there twice. Name all its tiers at once" for name in engines if engines[name] > 1
    ]
    faults += _misplaced_replays(feeds)
    if faults:
        raise faulty(faults)
    return feeds


def _misplaced_replays(feeds: list[Feed]) -> Iterator[str]:
    """Faults: a replay socket is one publisher's, and not where it publishes. What it answers is not told
    apart.
    """
    live = {feed.endpoint for feed in feeds}
    publishers: dict[str, set[str]] = {}
    for feed in feeds:
        if feed.replay is not None:
            publishers.setdefault(feed.replay, set()).add(feed.endpoint)
    for replay, endpoints in publishers.items():
        if replay in live:
            yield f"replay: {replay} is where batches are published"
        if len(endpoints) > 1:
            yield f"replay: {replay} is of one publisher, not of {' and '.join(sorted(endpoints))}"


def engines_of(given: Settings) -> list[Engine]:
    """Which of the feeds are the tiers of one engine."""
    return [
        Engine(
            tuple(feed.name for feed in _tiers_of(engine)),
            lateness_s=given.lateness if engine.lateness is None else engine.lateness,
        )
        for engine in given.engine
    ]


def _ranks_of(feed: FeedSettings) -> Iterator[Feed]:
    from kvbus.endpoints import rank_endpoint

    for rank in range(feed.ranks):
        endpoint = rank_endpoint(feed.endpoint, rank)
        replay = None if feed.replay is None else rank_endpoint(feed.replay, rank)
        name = feed.name if feed.name is None or feed.ranks == 1 else f"{feed.name}-dp{rank}"
        yield Feed(endpoint, replay, feed.topic, feed.bind, name)


def _tiers_of(engine: EngineSettings) -> Iterator[Feed]:
    from kvbus.endpoints import rank_endpoint

    for tier in engine.tier:
        endpoint = rank_endpoint(tier.endpoint, 0)
        replay = None if tier.replay is None else rank_endpoint(tier.replay, 0)
        yield Feed(endpoint, replay, tier.topic, source=f"{engine.name}/{tier.name}")


def log_of(given: Settings) -> Path:
    """The log a command is about. Raises ``ConfigError`` when none is named."""
    if given.log is None:
        raise faulty(["log: missing. Name the file, or set log in kvbus.toml or KVBUS_LOG"])
    return given.log
