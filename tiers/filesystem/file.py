"""One block's file: header and payload, written whole and read whole, past the page cache where that works.

O_DIRECT moves bytes between the disk and the tier's memory without keeping a second copy of them in the page
cache, which would only push out something useful. It wants address, length and position to be multiples of
``ALIGNMENT``; what is not goes through the page cache, call by call. Names, folders and what the bytes mean
are decided elsewhere.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

ALIGNMENT: Final = 4096
"""Bytes. Enough for every disk in use; a page of memory is as large."""

REFUSALS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_aligned(memory: memoryview) -> bool:
    """Whether O_DIRECT can move this memory."""
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address % ALIGNMENT == 0 and memory.nbytes % ALIGNMENT == 0


def allows_direct(path: str) -> bool:
    """Whether files where ``path`` would be can be written and read with O_DIRECT, by doing it.

    A full disk is no reason to fail: it is then used through the page cache. Raises ``OSError`` where no file
    can be made at all. Nothing is left at ``path``.
    """
    with mmap.mmap(-1, 2 * ALIGNMENT) as memory, memoryview(memory) as view:
        try:
            write_file(path, [view], direct=True, fsync=False)
            file = open_file(path, direct=True)
            try:
                return read_whole(file, [view], enough=len(view)) == len(view)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in REFUSALS | NO_ROOM:
                return False
            raise
        finally:
            with suppress(FileNotFoundError):
                Path(path).unlink()


def write_file(path: str, parts: Sequence[memoryview], *, direct: bool, fsync: bool) -> None:
    """Make a new file of these parts, one after the other. Raises ``OSError``; what there is then stays."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    file = os.open(path, flags, 0o644)
    try:
        while parts:
            parts = after(parts, written := os.writev(file, parts))
            if not written:
                raise OSError(errno.EIO, "nothing was written", path)
        if fsync:
            os.fsync(file)
    finally:
        os.close(file)


def open_file(path: str, *, direct: bool) -> int:
    """A file descriptor for ``read_whole``, which the caller closes."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))


def read_whole(file: int, parts: Sequence[memoryview], *, enough: int) -> int:
    """Fill these parts from the beginning of an open file, until there are ``enough`` bytes. How many there
    were to fill them with.
    """
    done = os.preadv(file, parts, 0)
    while 0 < done < enough and (got := os.preadv(file, after(parts, done), done)):
        done += got
    return done


def after(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of the parts when so many bytes of them are done."""
    left = []
    for part in parts:
        if done < part.nbytes:
            left.append(part[done:])
        done = max(0, done - part.nbytes)
    return left


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
