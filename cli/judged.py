"""``kvbus check LOG``: a log judged from its beginning to its end, and the stories of what was found.

Only the way there: the judging is ``kvbus.audit``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from cli import logs
from kvbus.audit import Audit
from kvbus.errors import ConfigError
from kvbus.story import Story, stories
from kvbus.verdict import Report


def judged(
    path: Path, auditor: Audit, apart: Sequence[Sequence[str]], *, with_stories: bool
) -> tuple[Report, Sequence[Story]]:
    """The report on a log, and the stories of its findings. Raises ``LogError``; ``ConfigError`` for a tier
    that is no source of the log.
    """
    with closing(logs.reader(path)) as reader:
        auditor.observe_log(reader)
        _all_known(apart, {source.source for source in auditor.profiles()})
        report = auditor.verdict()
        return report, stories(reader, report) if with_stories else ()


def _all_known(engines: Sequence[Sequence[str]], known: set[str]) -> None:
    """Raise ``ConfigError`` for a tier that is no source of the log."""
    if unknown := [name for names in engines for name in names if name not in known]:
        raise ConfigError(
            f"--tiers: the log has no source {', '.join(map(repr, unknown))}",
            next_step=f"Its sources are: {', '.join(sorted(known)) or 'none'}.",
        )
