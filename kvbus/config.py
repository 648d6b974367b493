"""Settings: what flags, the environment and ``kvbus.toml`` say, with the defaults for what none of them says.

The strongest word wins: flag, then ``KVBUS_*``, then file. Unknown keys are refused and every fault of
file and environment is reported at once. The file is ``--config FILE``, else the one ``KVBUS_CONFIG``
names, else ``kvbus.toml`` in the working directory. Where neither file nor environment says anything,
nothing heavy is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvbus.errors import ConfigError

FILE_NAME: Final = "kvbus.toml"
PREFIX: Final = "KVBUS_"
SECONDS_MAX: Final = 1e9
"""No time that can be set is longer: thirty years, which every clock can still wait for."""

FLUSH_S_MIN: Final = 0.001
FLUSH_S_MAX: Final = 60.0
RANKS_MAX: Final = 65_535
LATENESS_S_MIN: Final = 0.01
NOT_SETTINGS: Final = frozenset({"KVBUS_CONFIG", "KVBUS_DEBUG"})
FOREIGN: Final = re.compile(r"KVBUS(_.*)?_(SERVICE|PORT)(_.*)?|KVBUS_TEST_.*")
"""Kubernetes puts such variables into every pod beside a service called ``kvbus``; tests use theirs."""


class FeedSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[feed]]``: an engine, or ``ranks`` data-parallel ones on consecutive ports."""

    endpoint: str
    replay: str | None = None
    topic: tuple[str, ...] = ("",)
    ranks: int = 1
    bind: bool = False
    name: str | None = None


class TierSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[engine.tier]]``: where a tier of an engine publishes. Called ``ENGINE/name`` in a log."""

    name: str
    endpoint: str
    replay: str | None = None
    topic: tuple[str, ...] = ("",)


class EngineSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[engine]]``: its tiers, primary first. ``lateness`` in seconds; None: as for all."""

    name: str
    tier: tuple[TierSettings, ...]
    lateness: float | None = None


class Settings(Struct, frozen=True):
    """Everything that can be set, resolved. Units: ``idle``, ``flush``, ``lateness`` and ``linger`` are
    seconds, ``capacity`` is blocks by medium.
    """

    feed: tuple[FeedSettings, ...] = ()
    engine: tuple[EngineSettings, ...] = ()
    lateness: float = 1.0
    capacity: Mapping[str, int] = {}
    log: Path | None = None
    idle: float = 30.0
    flush: float = 0.5
    start: str | None = None
    format: str | None = None
    json: bool = False
    quiet: bool = False
    strict: bool = False
    speed: str = "max"
    linger: float = 2.0


NAME: Final = re.compile(r"[\w.-]+")
"""What an engine or a tier may be called: a log names it ``ENGINE/TIER``."""
TIER_ENDS: Final = re.compile(r",(?=[\w.-]+@)")
ENDPOINT_ENDS: Final = re.compile(r"\+(?=(?:tcp|ipc|inproc)://)")
ENGINE_FLAG: Final = "NAME=TIER@ENDPOINT[+REPLAY],…"

FEED_FLAGS: Final = frozenset({"replay", "topic", "ranks", "bind"})
"""Flags that say more of an endpoint."""

Flags = Mapping[str, Any]
"""What was given on the command line: names of ``Settings`` and of the feed flags (``tiers``: ``--engine``);
None: not given.
"""


def load(
    flags: Flags,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Resolve the settings. ``environ`` and ``cwd`` default to the process's own.

    Raises ``ConfigError`` that lists every fault found, each with its place and what is expected there.
    """
    environ = os.environ if environ is None else environ
    said = {name: value for name, value in environ.items() if _is_setting(name)}
    path = _file(file, environ, cwd or Path())
    below: dict[str, Any] = {}
    if said or path is not None:
        from kvbus.settings import read  # pydantic: a sixth of a second that a bare command need not wait

        below = read(said, path)
    return resolve({name: value for name, value in flags.items() if value is not None}, below)


def resolve(flags: Flags, below: Flags) -> Settings:
    """Lay ``flags`` over ``below`` (what environment and file said) over the defaults. Pure.

    An endpoint or engine given at one level replaces the feeds and engines of the levels below it; ``json``
    replaces a ``format`` said below it, and the other way round.
    """
    below = without_other_form(below, flags)
    if named := {"endpoint", "tiers"} & flags.keys():
        replaced = {"feed", "engine", "endpoint"}
        if "endpoint" in below and "endpoint" not in named:
            replaced |= FEED_FLAGS - {"topic"}  # what was said of that endpoint goes with it
        below = {name: value for name, value in below.items() if name not in replaced}
    elif (extra := sorted(FEED_FLAGS & flags.keys())) and _has_only_tables(below):
        told = ", ".join("--" + name for name in extra)
        raise faulty([f"{told}: belongs to an endpoint, and none was given"])
    given = {**below, **flags}
    if "feed" not in below:
        given |= addressed(given)
    if "lateness" in flags:
        given["engine"] = said_for_all(given.get("engine", ()))
    names = Settings.__struct_fields__
    return Settings(**{name: given[name] for name in names if name in given})


def _has_only_tables(below: Flags) -> bool:
    return "endpoint" not in below and not below.keys().isdisjoint({"feed", "engine"})


def addressed(given: Flags) -> dict[str, tuple[Any, ...]]:
    """The feeds of ``endpoint`` and the engines of ``tiers``, each with its replay endpoint.

    Those in ``replay`` go to the endpoints, then to the tiers that have none, in order. Raises
    ``ConfigError`` where they do not pair.
    """
    endpoints: Sequence[str] = given.get("endpoint", ())
    topic = tuple(given.get("topic", ())) or ("",)
    engines = tuple(engine_from_flag(text, topic) for text in given.get("tiers", ()))
    shared = {name: given[name] for name in ("bind", "ranks") if name in given}
    if engines and shared:
        raise faulty([f"{', '.join(shared)}: expected without --engine, whose tiers are one address each"])
    bare = [tier for engine in engines for tier in engine.tier if tier.replay is None]
    replays = iter(_paired(given.get("replay", ()), endpoints=len(endpoints), tiers=len(bare)))
    feeds = tuple(FeedSettings(endpoint, next(replays), topic, **shared) for endpoint in endpoints)
    engines = tuple(_with_replays(engine, replays) for engine in engines)
    return {"feed": feeds, **({"engine": engines} if engines else {})}


def _paired(replays: Sequence[str], *, endpoints: int, tiers: int) -> list[str | None]:
    if len(replays) not in (0, endpoints, endpoints + tiers):
        expected = f"none or one for each of the {endpoints} endpoints"
        if tiers:
            expected += f" and the {tiers} tiers without one"
        raise faulty([f"replay: expected {expected}, in order, got {len(replays)}"])
    return [*replays, *[None] * (endpoints + tiers - len(replays))]


def _with_replays(engine: EngineSettings, replays: Iterator[str | None]) -> EngineSettings:
    tiers = tuple(tier if tier.replay else replace(tier, replay=next(replays)) for tier in engine.tier)
    return replace(engine, tier=tiers)


def engine_from_flag(text: str, topic: tuple[str, ...]) -> EngineSettings:
    """An engine as ``--engine`` has it: ``NAME=TIER@ENDPOINT[+REPLAY][,TIER@ENDPOINT[+REPLAY]]…``.

    An address may hold any of these signs: a comma ends it only before ``TIER@``, a plus only before
    ``tcp://``, ``ipc://`` or ``inproc://``. Raises ``ConfigError``.
    """
    name, equals, tiers = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        raise faulty([f"--engine {text!r}: expected {ENGINE_FLAG}"])
    return EngineSettings(name, tuple(_tier_from(part, topic) for part in TIER_ENDS.split(tiers)))


def _tier_from(text: str, topic: tuple[str, ...]) -> TierSettings:
    name, _, addresses = text.partition("@")
    endpoint, *replay = ENDPOINT_ENDS.split(addresses)
    plain = all(address.count("://") == 1 for address in (endpoint, *replay))
    if not NAME.fullmatch(name) or not plain or len(replay) > 1:
        raise faulty([f"--engine: {text!r}: expected TIER@ENDPOINT or TIER@ENDPOINT+REPLAY"])
    return TierSettings(name, endpoint, replay[0] if replay else None, topic)


def without_other_form(below: Flags, above: Flags) -> dict[str, Any]:
    """What a level says, less the ``json`` or ``format`` whose opposite was said at a stronger one."""
    other = {"json"} if "format" in above else {"format"} if above.get("json") else set()
    return {name: value for name, value in below.items() if name not in other - above.keys()}


def said_for_all(engines: Sequence[EngineSettings]) -> tuple[EngineSettings, ...]:
    """Engines without a lateness of their own: one was said at a stronger level."""
    return tuple(replace(engine, lateness=None) for engine in engines)


def faulty(faults: Sequence[str]) -> ConfigError:
    """One error for all faults of a configuration."""
    what = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return ConfigError(
        f"the configuration has {what}:" + "".join(f"\n  - {fault}" for fault in faults),
        next_step="docs/configuration.md has every key; flags win over the environment, that over the file.",
    )


def environment_name(key: str) -> str:
    """The environment variable of a top-level key."""
    return PREFIX + key.upper().replace("-", "_")


def _is_setting(name: str) -> bool:
    return name.startswith(PREFIX) and name not in NOT_SETTINGS and not FOREIGN.fullmatch(name)


def _file(flag: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    named = flag or (Path(environ["KVBUS_CONFIG"]) if environ.get("KVBUS_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise faulty([f"{named}: no such file (named by {'--config' if flag else 'KVBUS_CONFIG'})"])
        return named
    default = cwd / FILE_NAME
    return default if default.is_file() else None


def feed_from(table: Mapping[str, Any]) -> FeedSettings:
    """A checked ``[[feed]]`` table as settings."""
    return msgspec.convert(table, FeedSettings)


def engine_from(table: Mapping[str, Any]) -> EngineSettings:
    """A checked ``[[engine]]`` table as settings."""
    return msgspec.convert(table, EngineSettings)
