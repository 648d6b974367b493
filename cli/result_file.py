"""A file that a command makes: whole or not at all, over an older one of its kind, if over any.

Nothing else is ever overwritten. What the kinds are is their makers' matter (``cli/ci``, ``cli/curves``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from kvbus import draft
from kvbus.errors import KvbusError

HEAD_BYTES: Final = 1 << 16
"""Within so many a file shows of which kind it is."""


class Kind(NamedTuple):
    """What may be replaced: what it is called, and whether a file that begins so is one."""

    name: str
    is_one: Callable[[bytes], bool]


class ResultFileError(KvbusError):
    """A file cannot be written where it was asked for."""


@contextmanager
def result_file(path: Path, kind: Kind | None = None) -> Iterator[Path]:
    """Where to write what is to be at ``path``: it becomes that file when all is written, or is removed.

    ``kind``: what may be replaced; None: nothing. Raises ``ResultFileError``.
    """
    with _translated(path):
        _refuse_other(path, kind)
        with draft.draft_of(path) as unfinished:
            yield unfinished


def check_place(path: Path, kind: Kind | None = None) -> None:
    """Raise ``ResultFileError`` where ``result_file`` could not begin. What is there stays."""
    with _translated(path):
        _refuse_other(path, kind)
        draft.check_place(path)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResultFileError(
            f"cannot write {path}: {error.strerror}",
            next_step="Check the folder, its rights and the space on the disk.",
        ) from error


def _refuse_other(path: Path, kind: Kind | None) -> None:
    """Raise ``ResultFileError`` where something is that may not be replaced."""
    if not path.exists() or (kind and path.is_file() and kind.is_one(_head(path))):
        return
    known = f", and is no {kind.name} of kvbus" if kind else ""
    raise ResultFileError(f"{path} exists already{known}", next_step="Choose another name or remove it.")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
