"""How to wait for work that others do, where nothing says when it is done: a little longer each time.

The first wait is none at all: what is done at once costs nothing. Progress begins the waiting anew; waiting
for too long without any is an error, never a hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tiers.errors import TierStalledError

FIRST_S: Final = 50e-6
LONGEST_S: Final = 2e-3


class Patience:
    """Waits for ``what``, up to ``limit_s`` seconds without progress."""

    def __init__(
        self,
        what: str,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what = what
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._next_s = 0.0
        self._since = 0.0
        self._progress = -1

    def wait(self, progress: int = 0) -> None:
        """Let others work. ``progress``: any number that changes when there is some.

        Raises ``TierStalledError`` when nothing has changed for ``limit_s``.
        """
        if progress != self._progress:
            self._progress, self._next_s, self._since = progress, 0.0, self._clock()
        if self._clock() - self._since > self._limit_s:
            raise TierStalledError(
                f"{self._what}: no progress for {self._limit_s:g} s",
                next_step="Look at the storage behind the tiers: it neither answers nor fails.",
            )
        if self._next_s:
            self._sleep(self._next_s)
        self._next_s = min(max(FIRST_S, 2 * self._next_s), LONGEST_S)
