"""What may stand in ``kvbus.toml`` and in ``KVBUS_*``, and where each fault is.

Only the checking of what people wrote: names, types, bounds. Defaults and the order of precedence are
``kvbus.config``'s. Imported only where a file or the environment says something.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from kvbus.config import (
    FLUSH_S_MAX,
    FLUSH_S_MIN,
    LATENESS_S_MIN,
    NAME,
    RANKS_MAX,
    SECONDS_MAX,
    engine_from,
    environment_name,
    faulty,
    feed_from,
    said_for_all,
    without_other_form,
)

ENVIRONMENT: Final = "environment"


def _words(value: object) -> object:
    """A string is a list of the words in it, so that the environment can say one."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _topics(value: object) -> object:
    """A string is one topic prefix: a topic may hold any character."""
    return [value] if isinstance(value, str) else value


def _capacities(value: object) -> object:
    """A string is words like ``CPU=300``."""
    if not isinstance(value, str):
        return value
    return dict(word.partition("=")[::2] for word in value.replace(",", " ").split())


Words = Annotated[list[str], BeforeValidator(_words)]
Topics = Annotated[list[str], BeforeValidator(_topics), Field(min_length=1)]
Ranks = Annotated[int, Field(ge=1, le=RANKS_MAX)]
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
FlushSeconds = Annotated[float, Field(ge=FLUSH_S_MIN, le=FLUSH_S_MAX, allow_inf_nan=False)]
LatenessSeconds = Annotated[float, Field(ge=LATENESS_S_MIN, le=SECONDS_MAX, allow_inf_nan=False)]
Address = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Capacities = Annotated[
    dict[Annotated[str, Field(min_length=1)], Annotated[int, Field(ge=1)]], BeforeValidator(_capacities)
]
Speed = Annotated[str, Field(pattern=r"^(max|[0-9]*\.?[0-9]+)$"), BeforeValidator(lambda value: str(value))]
Start = Annotated[
    str, Field(pattern=r"^(beginning|end|-?[0-9]+)$"), BeforeValidator(lambda value: str(value))
]


class FeedTable(BaseModel):
    """A ``[[feed]]`` of ``kvbus.toml``."""

    model_config = ConfigDict(extra="forbid")

    endpoint: Address
    replay: Address | None = None
    topic: Topics | None = None
    ranks: Ranks | None = None
    bind: bool | None = None
    name: Annotated[str, Field(min_length=1)] | None = None


class TierTable(BaseModel):
    """An ``[[engine.tier]]`` of ``kvbus.toml``."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    endpoint: Address
    replay: Address | None = None
    topic: Topics | None = None


class EngineTable(BaseModel):
    """An ``[[engine]]`` of ``kvbus.toml``."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    tier: Annotated[list[TierTable], Field(min_length=1)]
    lateness: LatenessSeconds | None = None


class Said(BaseModel):
    """Every key, none with a default: None is what nobody said."""

    model_config = ConfigDict(extra="forbid")

    feed: list[FeedTable] | None = None
    engine: list[EngineTable] | None = None
    lateness: LatenessSeconds | None = None
    capacity: Capacities | None = None
    endpoint: Words | None = None
    replay: Words | None = None
    topic: Topics | None = None
    ranks: Ranks | None = None
    bind: bool | None = None
    log: Path | None = None
    idle: Seconds | None = None
    flush: FlushSeconds | None = None
    start: Start | None = Field(default=None, alias="from")
    format: str | None = None
    as_json: bool | None = Field(default=None, alias="json")
    quiet: bool | None = None
    strict: bool | None = None
    speed: Speed | None = None
    linger: Seconds | None = None


KEYS: Final = tuple(field.alias or name for name, field in Said.model_fields.items())
FEED_KEYS: Final = tuple(FeedTable.model_fields)
ENGINE_KEYS: Final = tuple(EngineTable.model_fields)
TIER_KEYS: Final = tuple(TierTable.model_fields)
TABLES: Final = ("feed", "engine")
FEED_FLAGS: Final = ("endpoint", "replay", "topic", "ranks", "bind")


def read(environ: Mapping[str, str], path: Path | None) -> dict[str, Any]:
    """What environment and file say, checked, under the names of ``kvbus.config.Settings``; only what was
    said.

    Raises ``ConfigError`` with every fault of both.
    """
    faults: list[str] = []
    from_file = _checked(_table(path, faults), lambda loc: f"{path}: {_dotted(loc)}", faults)
    from_environ = _checked(
        _variables(environ, faults), lambda loc: f"{ENVIRONMENT}: {environment_name(str(loc[0]))}", faults
    )
    faults += _unheard(from_environ, from_file, path)
    if faults:
        raise faulty(faults)
    if "endpoint" in from_environ:
        for name in (*TABLES, "replay"):
            from_file.pop(name, None)
    if "feed" in from_file:
        from_file["feed"] = tuple(feed_from(table) for table in from_file["feed"])
    if "engine" in from_file:
        engines = tuple(engine_from(table) for table in from_file["engine"])
        from_file["engine"] = said_for_all(engines) if "lateness" in from_environ else engines
    return {**without_other_form(from_file, from_environ), **from_environ}


def _unheard(from_environ: dict[str, Any], from_file: dict[str, Any], path: Path | None) -> list[str]:
    """Faults: what is said of an endpoint where none is, since ``path`` has tables instead."""
    top = [key for key in FEED_FLAGS if key in from_file]
    if top and from_file.get("feed"):
        return [f"{path}: {', '.join(top)}: expected inside a [[feed]], since there is one"]
    tables = " and ".join(name + "s" for name in TABLES if from_file.get(name))
    if not tables or "endpoint" in {**from_file, **from_environ}:
        return []
    names = [environment_name(key) for key in FEED_FLAGS if key in from_environ]
    said = [f"{path}: {key}" for key in top] + [f"{ENVIRONMENT}: {name}" for name in names]
    return [f"{place}: belongs to an endpoint; {path} has {tables}" for place in said]


def _table(path: Path | None, faults: list[str]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        faults.append(f"{path}: {error}")
        return {}


def _variables(environ: Mapping[str, str], faults: list[str]) -> dict[str, Any]:
    """The variables by key. Tables have no variable of their own."""
    by_name = {environment_name(key): key for key in KEYS if key not in TABLES}
    for name in sorted(environ.keys() - by_name.keys()):
        faults.append(f"{ENVIRONMENT}: {name}: not a setting{_suggestion(name, by_name)}")
    return {by_name[name]: text for name, text in environ.items() if name in by_name}


def _checked(
    table: dict[str, Any], place: Callable[[tuple[int | str, ...]], str], faults: list[str]
) -> dict[str, Any]:
    try:
        said = Said.model_validate(table)
    except ValidationError as error:
        faults += [_fault(detail, place(detail["loc"])) for detail in error.errors()]
        return {}
    values = said.model_dump(exclude_none=True)
    return {"json" if name == "as_json" else name: value for name, value in values.items()}


def _fault(detail: ErrorDetails, place: str) -> str:
    if detail["type"] == "extra_forbidden":
        return f"{place}: not a key{_suggestion(str(detail['loc'][-1]), _keys_at(detail['loc']))}"
    if detail["type"] == "missing":
        return f"{place}: missing"
    if detail["type"] == "string_pattern_mismatch":
        expected = EXPECTED.get(str(detail["loc"][-1]), detail["msg"])
        return f"{place}: expected {expected}, got {detail['input']!r}"
    message = detail["msg"]
    return f"{place}: {message[0].lower()}{message[1:]}, got {detail['input']!r}"


EXPECTED: Final = {
    "from": "beginning, end, a seq, or -N for the last N batches",
    "speed": "max or a factor such as 1 or 10",
    "name": "letters, digits and . _ -",
}


def _keys_at(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys that may stand beside the one at ``loc``."""
    if loc[0] == "engine":
        return TIER_KEYS if "tier" in loc[:-1] else ENGINE_KEYS
    return FEED_KEYS if loc[0] == "feed" else KEYS


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _dotted(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
