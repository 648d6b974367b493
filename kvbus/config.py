"""Settings: what flags, the environment and ``kvbus.toml`` say, with the defaults for what none of them says.

The strongest word wins: flag, then ``KVBUS_*``, then file. Unknown keys are refused and every fault of
file and environment is reported at once. The file is ``--config FILE``, else the one ``KVBUS_CONFIG``
names, else ``kvbus.toml`` in the working directory. Where neither file nor environment says anything,
nothing heavy is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from kvbus.errors import ConfigError

FILE_NAME: Final = "kvbus.toml"
PREFIX: Final = "KVBUS_"
SECONDS_MAX: Final = 1e9
"""No time that can be set is longer: thirty years, which every clock can still wait for."""

FLUSH_S_MIN: Final = 0.001
FLUSH_S_MAX: Final = 60.0
RANKS_MAX: Final = 65_535
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


class Settings(Struct, frozen=True):
    """Everything that can be set, resolved. Units: ``idle``, ``flush`` and ``linger`` are seconds."""

    feed: tuple[FeedSettings, ...] = ()
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


Flags = Mapping[str, Any]
"""What was given on the command line: names of ``Settings`` and of the feed flags; None: not given."""


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

    An endpoint given at one level replaces the feeds of the levels below it.
    """
    given = {**below, **flags}
    if "endpoint" in flags or "feed" not in below:
        given["feed"] = feeds(given)
    elif extra := sorted({"replay", "topic", "ranks", "bind"} & flags.keys()):
        raise faulty(
            [f"{', '.join('--' + name for name in extra)}: belongs to an endpoint, and none was given"]
        )
    names = Settings.__struct_fields__
    return Settings(**{name: given[name] for name in names if name in given})


def feeds(given: Flags) -> tuple[FeedSettings, ...]:
    """Pair endpoints with replay endpoints, in order. Raises ``ConfigError`` where they do not pair."""
    endpoints: Sequence[str] = given.get("endpoint", ())
    replays: Sequence[str] = given.get("replay", ())
    if len(replays) not in (0, len(endpoints)):
        expected = f"none or one for each of the {len(endpoints)} endpoints, in order"
        raise faulty([f"replay: expected {expected}, got {len(replays)}"])
    shared = {name: given[name] for name in ("ranks", "bind") if name in given}
    topic = tuple(given.get("topic", ())) or ("",)
    return tuple(
        FeedSettings(endpoint, replays[index] if replays else None, topic, **shared)
        for index, endpoint in enumerate(endpoints)
    )


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
    return msgspec.convert({name: value for name, value in table.items() if value is not None}, FeedSettings)
