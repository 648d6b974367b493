"""A baseline as a file: read, and written whole or not at all. The text is ``kvbus/baseline``'s."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvbus.baseline import BaselineError, is_baseline, read_baseline, written
from kvbus.draft import draft_of
from kvbus.telling import Telling

HEAD_BYTES: Final = 64


def begins_as_baseline(path: Path) -> bool:
    """Whether the file at ``path`` is a baseline, by its first line. Raises ``BaselineError``."""
    try:
        with path.open("rb") as file:
            return is_baseline(file.read(HEAD_BYTES))
    except OSError as error:
        raise _failed("read", path, error) from error


def load(path: Path) -> Telling:
    """The telling in the file at ``path``. Raises ``BaselineError``, ``TooLongError``."""
    try:
        with path.open(encoding="utf-8") as file:
            return read_baseline(file, name=str(path))
    except OSError as error:
        raise _failed("read", path, error) from error
    except UnicodeDecodeError as error:
        raise BaselineError(
            f"{path} is not text: {error.reason}", next_step="Write the baseline anew."
        ) from error


def save(path: Path, telling: Telling) -> None:
    """Write a baseline, over an older one if there is one. Raises ``BaselineError`` where anything else is
    there, or it cannot be written; then what was there is still there.
    """
    try:
        if path.exists() and not (path.is_file() and begins_as_baseline(path)):
            raise BaselineError(
                f"{path} exists already, and is no baseline", next_step="Choose another name or remove it."
            )
        with draft_of(path) as draft, draft.open("x", encoding="utf-8", newline="\n") as file:
            file.writelines(written(telling))
    except OSError as error:
        raise _failed("write", path, error) from error


def _failed(what: str, path: Path, error: OSError) -> BaselineError:
    return BaselineError(
        f"cannot {what} {path}: {error.strerror}", next_step="Check its name, folder and rights."
    )
