"""What a storage tier's threads do: write, read, delete and ask for blocks, and say how it went.

Functions over a ``BlockStore``. Each goes through its blocks one after the other and never raises for one
of them: an error is that block's outcome, and the next block is tried. They know no books and no jobs; what
they give is read by the one thread that keeps the books.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from tiers.keys import OffloadKey
from tiers.storage.block_store import BlockCorruptError, BlockMissingError, BlockStore, BlockUnsureError

ASKED_AT_ONCE: Final = 64
"""Blocks that a medium is asked about in one call, which nobody can stop."""

Row = Callable[[int], memoryview]
"""The bytes of a slot of the primary tier."""


class Outcome(Struct, frozen=True):
    """How it went for one block: ``error`` is None if all is well.

    ``is_new`` is False for a block that was not written because it was there already.
    """

    key: OffloadKey
    error: Exception | None = None
    is_new: bool = True

    @property
    def is_unsure(self) -> bool:
        """Of a put: whether the block may lie there although it failed. Of an error that no medium should
        raise nobody knows what it means.
        """
        error = self.error
        return error is not None and (isinstance(error, BlockUnsureError) or not isinstance(error, OSError))


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


class Read(Struct, frozen=True):
    """A block to read into a slot."""

    key: OffloadKey
    slot: int


class Answers(Struct, frozen=True):
    """Which blocks are there; None: nobody knows. ``failures``: of how many, by cause."""

    found: dict[OffloadKey, bool | None]
    failures: Counter[str]


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


def ask_for_blocks(
    store: BlockStore, keys: Sequence[OffloadKey], *, is_stopped: Callable[[], bool]
) -> Answers:
    """What the medium says, asked about a few blocks at a time, until told to stop."""
    answers = Answers(dict.fromkeys(keys), Counter())
    for start in range(0, len(keys), ASKED_AT_ONCE):
        if is_stopped():
            break
        asked = keys[start : start + ASKED_AT_ONCE]
        try:
            said = dict(zip(asked, store.holds(asked), strict=True))
        except Exception as error:
            answers.failures[reason_of(error)] += len(asked)
        else:
            answers.found.update(said)
            answers.failures["unknown"] += sum(is_there is None for is_there in said.values())
    return answers


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
