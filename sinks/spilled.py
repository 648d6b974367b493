"""What a question has laid aside on the disk, and its removal by a process that ends before DuckDB does.

DuckDB names such files by the process, beside the log, and removes them when it is done: only those of this
process are touched here. What a killed process leaves stays until somebody removes it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

ROUNDS_MAX: Final = 100
"""Looks at the folder: DuckDB may still be laying aside while it is emptied."""


def folder_of(log: Path) -> Path:
    """Where the questions of a log lay aside what does not fit into memory."""
    return log.with_name(log.name + ".tmp")


def remove_spilled(log: Path) -> None:
    """Remove what this process has laid aside, and the folder if nobody else uses it. Raises nothing."""
    folder = folder_of(log)
    for _ in range(ROUNDS_MAX):
        ours = list(folder.glob(f"duckdb_temp_{os.getpid()}_*"))
        if not ours:
            return
        with suppress(OSError):
            for file in ours:
                file.unlink(missing_ok=True)
            folder.rmdir()
