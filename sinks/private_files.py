"""Files for their owner alone, where whoever makes them takes no mode: DuckDB, a socket that is bound.

The umask belongs to the process, so what is remembered of it does too: threads inside at the same time share
it, the last to leave restores it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_UMASK_LOCK = threading.Lock()
_UMASKS: list[int] = []


@contextmanager
def private_files() -> Iterator[None]:
    """Nobody else may read or write the files that are made in here, by any thread."""
    with _UMASK_LOCK:
        _UMASKS.append(os.umask(0o077))
    try:
        yield
    finally:
        with _UMASK_LOCK:
            first = _UMASKS[0]
            _UMASKS.pop()
            if not _UMASKS:
                os.umask(first)
