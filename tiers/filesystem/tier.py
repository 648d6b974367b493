"""A tier in a folder: one file a block, written past the page cache where the disk allows it.

A block is written under another name and then renamed, so a file with a block's name is whole, whoever else
writes; and who reads a file that another process deletes still reads all of it. Two processes that put one
block at the same time both write it, and the later file takes the earlier one's place. After a power cut a
file can be short or torn, unless ``fsync`` is set; length and checksum find that. Nothing here counts what is
kept, or decides what has to leave: that is ``tiers.storage.tier``.
"""

# A Path costs as much as the system call it makes.
# ruff: noqa: PTH108

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from tiers.argument import yes_or_no
from tiers.errors import TierError, TierValueError
from tiers.filesystem.file import ALIGNMENT, allows_direct, is_aligned, open_file, read_whole
from tiers.filesystem.folder import BlockFolder
from tiers.filesystem.uses import Uses
from tiers.keys import OffloadKey
from tiers.medium import Locality
from tiers.storage.backpressure import Backpressure
from tiers.storage.block_kind import BlockKind, row_bytes
from tiers.storage.block_store import (
    HEADER_BYTES,
    BlockCorruptError,
    BlockMissingError,
    BlockUnsureError,
    header_of,
    verify,
)
from tiers.storage.tier import StorageTier


class FilesystemStore:
    """The blocks of ``block_bytes`` bytes under ``root``, a ``BlockStore``; others may use ``root`` too.

    ``layout``: what else makes blocks exchangeable, see ``BlockKind``; others are kept apart.
    ``direct``: past the page cache, where ``root`` and a block's memory allow it (``is_direct``: where the
    root does). ``fsync``: a block that was put survives a power cut. ``shared``: others may put the same
    blocks, so it is looked for one before it is written; else the new file takes an old one's place. A file's
    modification time is its last use, to the minute, so that whoever opens the folder next knows what to
    evict first.

    Raises ``TierError`` where no file can be made, ``TierValueError`` as ``BlockKind``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        block_bytes: int,
        layout: Mapping[str, object] | None = None,
        fsync: bool = False,
        direct: bool = True,
        shared: bool = True,
    ) -> None:
        path = checked_path(root)
        self.kind = BlockKind(block_bytes, layout)
        self._headers = threading.local()
        self._beyond = memoryview(mmap.mmap(-1, ALIGNMENT))
        self._uses = Uses()
        self._shared = yes_or_no("shared", shared)
        yes_or_no("fsync", fsync)
        yes_or_no("direct", direct)
        try:
            self.folder = BlockFolder(path, self.kind, fsync=fsync)
            self.is_direct = allows_direct(self.folder.unfinished_in(self.folder.path)) and direct
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise TierError(
                f"cannot keep blocks in {path!r}: {error}",
                next_step="Give a folder in which files can be made, or the name of one that can be made.",
            ) from error

    def put(self, key: OffloadKey, data: memoryview) -> bool:
        self.kind.check(data)
        path = self.folder.path_of(key)
        if self._shared and self.folder.holds(path):
            return False
        header = self._header()
        header[:] = header_of(key, data)
        try:
            self.folder.place(path, [header, data], direct=self.is_direct and is_aligned(data))
        except OSError as error:
            if self._may_hold(path):
                raise BlockUnsureError(key, error) from error
            raise
        self._uses.told(key)  # by the file's being new
        return True

    def _may_hold(self, path: str) -> bool:
        """Whether a file whose writing failed may be there: it could not be taken away either."""
        try:
            return self.folder.holds(path)
        except OSError:
            return True

    def get(self, key: OffloadKey, into: memoryview) -> None:
        self.kind.check(into)
        try:
            file = open_file(self.folder.path_of(key), direct=self.is_direct and is_aligned(into))
        except FileNotFoundError:
            self.folder.check_is_there()
            raise BlockMissingError(key) from None
        try:
            self._read(file, key, into)
        finally:
            os.close(file)

    def _read(self, file: int, key: OffloadKey, into: memoryview) -> None:
        header, expected = self._header(), self.kind.stored_bytes
        # A page beyond the block: that nothing comes into it says what asking for the file's size would.
        if read_whole(file, [header, into, self._beyond], enough=expected) != expected:
            raise BlockCorruptError(key, f"a file of {os.fstat(file).st_size} bytes, not {expected}")
        verify(key, header, payload=into)
        if not self._uses.told(key):
            with suppress(OSError):  # a courtesy to the next process; this one has its block
                os.utime(file)

    def delete(self, key: OffloadKey) -> None:
        try:
            os.unlink(self.folder.path_of(key))
        except FileNotFoundError:
            self.folder.check_is_there()

    def holds(self, keys: Sequence[OffloadKey]) -> list[bool | None]:
        answers, errors = list[bool | None](), list[OSError]()
        for key in keys:
            try:
                answers.append(self.folder.holds(self.folder.path_of(key)))
            except OSError as error:
                answers.append(None)
                errors.append(error)
        if errors and len(errors) == len(keys):
            raise errors[0]
        return answers

    def inventory(self) -> Iterator[tuple[OffloadKey, int]]:
        """As ``BlockFolder.blocks``, which also tidies up."""
        return ((key, self.kind.block_bytes) for key in self.folder.blocks())

    def close(self) -> None:
        """There is nothing to let go of: each call closes the file that it opened."""

    def _header(self) -> memoryview:
        """This thread's own room for a header, aligned as O_DIRECT wants it."""
        room: memoryview | None = getattr(self._headers, "room", None)
        if room is None:
            room = self._headers.room = memoryview(mmap.mmap(-1, HEADER_BYTES))
        return room


def checked_path(path: object) -> str:
    """``TierValueError`` unless this names something; whether it can be a folder is seen when it is made."""
    named = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not (isinstance(named, str) and named):
        raise TierValueError(f"path {path!r}", next_step="Give the name of a folder.")
    return named


class FilesystemTier(StorageTier):
    """A ``StorageTier`` over the ``FilesystemStore`` in the folder ``path``; a row of the primary is a block.

    ``layout``, ``fsync``, ``direct``: as the store's. ``shared``: other processes store there too.
    ``backpressure``: ask for no stores while the disk is too slow for them, by the marks of a local medium
    or, where ``locality`` is REMOTE, of a network. Everything else, and what is raised, as ``StorageTier``;
    ``TierError`` also if the folder cannot be listed. ``get_stats`` has ``inventory_skips``, by reason: files
    in the folder that could not be read or tidied up, and are not in the books.
    """

    def __init__(
        self,
        offloading_spec: object,
        primary_kv_view: memoryview,
        tier_type: str = "fs",
        *,
        path: str | os.PathLike[str],
        layout: Mapping[str, object] | None = None,
        max_bytes: int | None = None,
        max_blocks: int | None = None,
        fsync: bool = False,
        direct: bool = True,
        shared: bool = False,
        enable_events: bool = False,
        locality: Locality | None = None,
        read_threads: int = 8,
        write_threads: int = 8,
        backpressure: bool = False,
    ) -> None:
        where = None if locality is None else Locality(locality)  # a configuration says it in text
        use_backpressure = yes_or_no("backpressure", backpressure)
        self._blocks = FilesystemStore(
            path,
            block_bytes=row_bytes(primary_kv_view),
            layout=layout,
            fsync=fsync,
            direct=direct,
            shared=shared,
        )
        try:
            super().__init__(
                offloading_spec,
                primary_kv_view,
                tier_type,
                store=self._blocks,
                max_bytes=max_bytes,
                max_blocks=max_blocks,
                enable_events=enable_events,
                locality=where,
                shared=shared,
                read_threads=read_threads,
                write_threads=write_threads,
                backpressure=Backpressure.of(where or Locality.LOCAL) if use_backpressure else None,
            )
        except OSError as error:
            raise TierError(
                f"cannot list the blocks in {path!r}: {error}",
                next_step="Make the folder readable, or move it.",
            ) from error

    def get_stats(self) -> Mapping[str, float]:
        skips = {f"inventory_skips.{reason}": count for reason, count in self._blocks.folder.skipped.items()}
        return {**super().get_stats(), **skips}
