"""Which files' times are due: a use is told to the disk once a minute and block, not at every load.

A file's modification time is its last use, so that whoever opens the folder next knows what to evict first.
Asking the file how old its time is would cost each load a system call; so the blocks used in the present
minute are remembered instead. No files here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tiers.keys import OffloadKey

MINUTE_S: Final = 60.0
BLOCKS_MAX: Final = 65_536
"""Blocks remembered; beyond them all are forgotten, and told once more."""


class Uses:
    """Several threads may ask at once; one that comes in between costs a call too many at most."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._minute = 0
        self._told: set[OffloadKey] = set()

    def told(self, key: OffloadKey) -> bool:
        """Whether a use of this block is on the disk already; from now on it counts as told."""
        minute, told = int(self._clock() / MINUTE_S), self._told
        if minute != self._minute or len(told) >= BLOCKS_MAX:
            self._minute = minute
            told = self._told = set()
        if key in told:
            return True
        told.add(key)
        return False
