"""The order that a path tells, be it a log or a baseline: a baseline is known by its first line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from cli import logs
from kvbus.config import faulty
from kvbus.errors import LogError

if TYPE_CHECKING:
    from kvbus.telling import Telling


def both(a: Path | None, b: Path | None) -> tuple[Telling, Telling]:
    """Raises ``ConfigError`` where one is not named, and what ``told`` raises."""
    if a is None or b is None:
        raise faulty(["A and B: name two logs, or a baseline and a log"])
    return told(a), told(b)


def told(path: Path) -> Telling:
    """Raises ``LogError``, ``BaselineError``, ``TooLongError``."""
    from kvbus.baseline_file import begins_as_baseline, load
    from kvbus.telling import telling

    if not logs.is_file(path):
        raise LogError(
            f"there is no log and no baseline at {path}",
            next_step="Check the name; `kvbus record` makes logs, `kvbus baseline` baselines.",
        )
    if begins_as_baseline(path):
        return load(path)
    with closing(logs.reader(path)) as reader:
        return telling(reader.entries(), name=str(path))
