"""A file that is written whole or not at all: under another name beside it, until everything is there.

Links are followed, as ``>`` in a shell does: what a link leads to is replaced, and the link stays. What may
be replaced is its callers' matter. Only the name beside it is for folders too; nothing is made durable.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME_LETTERS_MAX: Final = 48
"""Of a file's name in that of its draft: with four bytes a letter and the rest it fits into 255."""


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write what is to be at ``path``: it becomes that file when all is written, or is removed.

    Raises ``OSError``.
    """
    real = _led_to(path)
    draft = beside(real)
    try:
        yield draft
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Raise ``OSError`` where no file could be made for ``path``; nothing is left behind, nothing changed."""
    draft = beside(_led_to(path))
    draft.touch(exist_ok=False)
    draft.unlink()


def _led_to(path: Path) -> Path:
    real = Path(os.path.realpath(path))
    if real.is_symlink():  # it leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def beside(path: Path) -> Path:
    """A name that nothing has yet, in the same folder, hidden, and no longer than names may be."""
    return path.with_name(f".{path.name[:NAME_LETTERS_MAX]}.{secrets.token_hex(4)}.new")
