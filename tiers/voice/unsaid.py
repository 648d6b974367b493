"""What could not be published: all of it counted by reason, little of it told.

Whoever publishes for others goes on when one event, one tier's share or one whole drain fails; here it leaves
word of that. Noting raises nothing, whatever an error's words or an application's log handlers do: it is
called where an engine's events are under way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

log = logging.getLogger(__name__)


class Unsaid:
    """Counts by reason. Told in the log when new, and each time the count has doubled: seen, but no load."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._tell_from: dict[str, int] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def note(self, reason: str, because: BaseException | str, *, count: int = 1) -> None:
        """``count`` more for this ``reason``."""
        self._counts[reason] += count
        total = self._counts[reason]
        if total < self._tell_from.get(reason, 1):
            return
        self._tell_from[reason] = 2 * total
        with suppress(Exception):  # a log that is at fault must not cost anybody an event
            log.warning("not published: %s, %d so far: %s", reason, total, _words(because))


def _words(because: BaseException | str) -> str:
    if isinstance(because, str):
        return because
    kind = type(because).__name__
    try:
        return f"{kind}: {because}"
    except Exception:  # a foreign error whose own words fail
        return kind
