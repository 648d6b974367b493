"""What a storage tier's threads do: write, read, delete and ask for blocks, and say how it went.

Functions over a ``BlockStore``. Each goes through its blocks one after the other and never raises for one
of them: an error is that block's outcome, and the next block is tried. They know no books and no jobs; what
they give is read by the one thread that keeps the books.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from msgspec import Struct

from tiers.block_store import BlockCorruptError, BlockMissingError, BlockStore
from tiers.keys import OffloadKey

Row = Callable[[int], memoryview]
"""The bytes of a slot of the primary tier."""


class Outcome(Struct, frozen=True):
    """How it went for one block: ``error`` is None if all is well.

    ``is_new`` is False for a block that was not written because it was there already.
    """

    key: OffloadKey
    error: Exception | None = None
    is_new: bool = True


class Write(Struct, frozen=True):
    """A block to write from a slot once its victims are deleted, so that there is room for it."""

    key: OffloadKey
    slot: int
    victims: Sequence[OffloadKey] = ()


class Written(Struct, frozen=True):
    """``block`` is None if a victim could not be deleted: then nothing was written."""

    write: Write
    deleted: Sequence[Outcome]
    block: Outcome | None

    @property
    def error(self) -> Exception | None:
        """What kept the block from being written."""
        outcomes = self.deleted if self.block is None else (self.block,)
        return next((outcome.error for outcome in outcomes if outcome.error), None)


class Read(Struct, frozen=True):
    """A block to read into a slot."""

    key: OffloadKey
    slot: int


def write_blocks(store: BlockStore, writes: Sequence[Write], *, row: Row) -> list[Written]:
    return [write_block(store, write, row=row) for write in writes]


def write_block(store: BlockStore, write: Write, *, row: Row) -> Written:
    deleted = delete_blocks(store, write.victims)
    if any(outcome.error for outcome in deleted):
        return Written(write, deleted, None)
    try:
        is_new = store.put(write.key, row(write.slot))
    except Exception as error:
        return Written(write, deleted, Outcome(write.key, error))
    return Written(write, deleted, Outcome(write.key, is_new=is_new))


def read_blocks(store: BlockStore, reads: Sequence[Read], *, row: Row) -> list[Outcome]:
    return [read_block(store, read, row=row) for read in reads]


def read_block(store: BlockStore, read: Read, *, row: Row) -> Outcome:
    try:
        store.get(read.key, row(read.slot))
    except Exception as error:
        return Outcome(read.key, error)
    return Outcome(read.key)


def delete_blocks(store: BlockStore, keys: Sequence[OffloadKey]) -> list[Outcome]:
    return [delete_block(store, key) for key in keys]


def delete_block(store: BlockStore, key: OffloadKey) -> Outcome:
    try:
        store.delete(key)
    except Exception as error:
        return Outcome(key, error)
    return Outcome(key)


def ask_for_blocks(store: BlockStore, keys: Sequence[OffloadKey]) -> set[OffloadKey] | Exception:
    """Those that the medium holds, or why nobody knows."""
    try:
        return {key for key, is_there in zip(keys, store.holds(keys), strict=True) if is_there}
    except Exception as error:
        return error


def reason_of(error: Exception) -> str:
    """The cause of a failure in one word, as counters have it: ``ENOSPC``, ``corrupt``, ``TimeoutError``."""
    match error:
        case BlockCorruptError():
            return "corrupt"
        case BlockMissingError():
            return "missing"
        case OSError(errno=int(number)) if number in errno.errorcode:
            return errno.errorcode[number]
    return type(error).__name__
