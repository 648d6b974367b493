"""The folder that a filesystem tier keeps its blocks in: whose it is, what files are called, what is there.

``config.json`` says what blocks lie here (``storage.block_kind``); others have their own folder beside it.
While it is not there the whole folder is away, as that of a disk that is not mounted, and nobody can say that
a block is gone. A file being written has a name that no block has, with a number that no other writer on any
machine uses. Its writer renames it; if it dies first, the file stays, and is deleted by whoever lists the
folder after a while.
"""

# A Path costs as much as the system call it makes.
# ruff: noqa: PTH102, PTH105, PTH108, PTH116, PTH118, PTH120

from __future__ import annotations

import errno
import itertools
import json
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from tiers.errors import TierError
from tiers.filesystem.file import sync_folder, write_file
from tiers.keys import OffloadKey
from tiers.storage.block_kind import BlockKind
from tiers.storage.block_name import FAN_OUT, block_name, read_block_name

CONFIG: Final = "config.json"
BLOCK_SUFFIX: Final = ".bin"
UNFINISHED_SUFFIX: Final = ".unfinished"
ABANDONED_AFTER_S: Final = 15 * 60.0
"""Nobody writes at one block for so long. A process number would not tell whether the writer lives: a root
may be shared by containers and by machines.
"""


class BlockFolder:
    """The folder under ``root`` for blocks of this kind, made if it is not there.

    Raises ``OSError`` where it cannot be made, ``TierError`` if it is somebody else's.
    """

    def __init__(self, root: str, kind: BlockKind, *, fsync: bool) -> None:
        self.path = os.path.join(root, kind.name)
        self._kind = kind
        self._fsync = fsync
        self._writer = secrets.token_hex(8)
        self._numbers = itertools.count()
        self.skipped: Counter[str] = Counter()
        """Files and folders here that could not be looked at or tidied up, by the system's reason."""
        Path(self.path).mkdir(parents=True, exist_ok=True)
        self._claim(kind.description)
        if fsync:
            sync_folder(os.path.dirname(self.path))

    def _claim(self, description: bytes) -> None:
        """The folder's name says already what it is for: what a power cut left of the file is replaced."""
        config = Path(self.path, CONFIG)
        found = config.read_bytes() if config.exists() else b""
        if found == description:
            return
        if not (description.startswith(found) or is_torn(found)):
            raise TierError(f"{config} describes other blocks", next_step="Move its folder out of the way.")
        self._place(str(config), [memoryview(description)], direct=False, fsync=True)

    def check_is_there(self) -> None:
        """Raise ``OSError`` (ENXIO) while the folder is away as a whole."""
        try:
            os.stat(f"{self.path}/{CONFIG}")
        except FileNotFoundError:
            raise OSError(errno.ENXIO, "the blocks' folder is away", self.path) from None

    def path_of(self, key: OffloadKey) -> str:
        return f"{self.path}/{block_name(key)}{BLOCK_SUFFIX}"

    def unfinished_in(self, folder: str) -> str:
        """A name for a file that is not yet what it shall be. No other is ever the same."""
        return f"{folder}/.{self._writer}-{next(self._numbers)}{UNFINISHED_SUFFIX}"

    def place(self, path: str, parts: Sequence[memoryview], *, direct: bool) -> None:
        """A file of these parts under this name, whole or not at all. Raises ``OSError``."""
        self._place(path, parts, direct=direct, fsync=self._fsync)

    def _place(self, path: str, parts: Sequence[memoryview], *, direct: bool, fsync: bool) -> None:
        folder = os.path.dirname(path)
        landed = unfinished = self.unfinished_in(folder)
        try:
            self._write(unfinished, parts, direct=direct, fsync=fsync)
            os.replace(unfinished, path)
            landed = path
            if fsync:
                sync_folder(folder)
        except BaseException:
            with suppress(OSError):  # what failed first is what to tell
                os.unlink(landed)
            raise

    def _write(self, path: str, parts: Sequence[memoryview], *, direct: bool, fsync: bool) -> None:
        try:
            write_file(path, parts, direct=direct, fsync=fsync)
        except FileNotFoundError:
            self._make(os.path.dirname(path))
            write_file(path, parts, direct=direct, fsync=fsync)

    def _make(self, folder: str) -> None:
        """A folder in this one. If this one is gone, perhaps a disk is no longer mounted: ``OSError``."""
        with suppress(FileExistsError):
            os.mkdir(folder)
        if self._fsync:
            sync_folder(self.path)

    def holds(self, path: str) -> bool:
        """Whether a block's file is there, of the right length. Raises as ``check_is_there``."""
        try:
            return os.stat(path).st_size == self._kind.stored_bytes
        except FileNotFoundError:
            self.check_is_there()
            return False

    def blocks(self) -> list[OffloadKey]:
        """What is here, the block whose file was used longest ago first.

        Deletes what writers abandoned, and files that a power cut left shorter or longer than a block. Files
        of other names are left alone. What cannot be read or deleted is ``skipped``.
        """
        found: list[tuple[int, OffloadKey]] = []
        for name, entry in self._files():
            key = key_of(name)
            with self._skipping():
                facts = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(facts.st_mode):
                    continue
                if key is not None and facts.st_size == self._kind.stored_bytes:
                    found.append((facts.st_mtime_ns, key))
                elif key is not None or is_abandoned(name, facts.st_mtime):
                    os.unlink(entry.path)
        return [key for _, key in sorted(found)]

    def _files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """What is here and in the folders of blocks below, with names as seen from here."""
        for entry in self._entries(self.path, skip=False):
            if FAN_OUT.fullmatch(entry.name):
                for below in self._entries(entry.path, skip=True):
                    yield f"{entry.name}/{below.name}", below
            else:
                yield entry.name, entry

    def _entries(self, path: str, *, skip: bool) -> list[os.DirEntry[str]]:
        with self._skipping() if skip else nullcontext(), os.scandir(path) as entries:
            return list(entries)
        return []

    @contextmanager
    def _skipping(self) -> Iterator[None]:
        """Count what fails inside; what is no folder, or was deleted or renamed meanwhile, is no failure."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.skipped[errno.errorcode.get(error.errno or 0, type(error).__name__)] += 1


def key_of(name: str) -> OffloadKey | None:
    """The block whose file has this name, below the folder."""
    return read_block_name(name.removesuffix(BLOCK_SUFFIX)) if name.endswith(BLOCK_SUFFIX) else None


def is_abandoned(name: str, changed_s: float) -> bool:
    """Whether this is a file that nobody will finish; ``changed_s`` is when it was last written, epoch."""
    return name.endswith(UNFINISHED_SUFFIX) and time.time() - changed_s > ABANDONED_AFTER_S


def is_torn(config: bytes) -> bool:
    """Whether this says nothing: a description that was not written to its end, in whatever way."""
    try:
        json.loads(config)
    except (ValueError, RecursionError):
        return True
    return False
