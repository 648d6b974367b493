"""Blocks that lie on a tier's medium without its having stored them: from an earlier life, or by others.

Taking one in is a promise to say when it goes, so it is announced, and it counts against the bound like any
other. What does not fit is not taken in: of what an earlier life left the rest is deleted, of what others
stored it is left to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiers.keys import OffloadKey
from tiers.storage.amount import NOTHING, Amount
from tiers.storage.block_work import BlockWork
from tiers.storage.books import StorageBooks
from tiers.storage.kept import Kept, Room


def take_inventory(found: Sequence[tuple[OffloadKey, int]], books: StorageBooks, *, work: BlockWork) -> None:
    """Keep the most recent of ``found`` (used longest ago first; key, payload bytes), as far as it fits.

    The rest was never announced by this life of the tier: it is deleted without a word.
    """
    first = first_that_fits([num_bytes for _, num_bytes in found], books.shelf.bound)
    surplus, kept = found[:first], found[first:]
    for key, num_bytes in kept:
        books.shelf.adopt(key, num_bytes)
    books.events.stored([key for key, _ in kept])
    books.counts["inventory"] += len(kept)
    for key, num_bytes in surplus:
        books.shelf.strand(key, num_bytes)
        books.shelf.retry(key)
    books.counts["inventory_surplus"] += len(surplus)
    work.delete([key for key, _ in surplus])


def first_that_fits(sizes: Sequence[int], bound: Amount) -> int:
    """Where the longest tail of ``sizes`` begins that fits into ``bound``."""
    tail = NOTHING
    for index in range(len(sizes) - 1, -1, -1):
        tail += Amount(1, sizes[index])
        if not tail.fits(bound):
            return index + 1
    return 0


def adopt(found: Sequence[OffloadKey], books: StorageBooks, *, work: BlockWork) -> list[OffloadKey]:
    """Take in absent blocks that others stored, evicting as needed, but none for another of them.

    They are taken to be as large as this tier's own. Returns those for which there was no room.
    """
    shelf, rooms, refused = books.shelf, list[Room](), list[OffloadKey]()
    pins: list[tuple[OffloadKey, Kept]] = []
    for key in found:
        room = books.adopt(key)
        if room is None:
            refused.append(key)
        else:
            rooms.append(room)
            pins.append((key, shelf.pin(key)))
    books.evicted(rooms)
    work.delete([victim for room in rooms for victim in room.victims])
    books.events.stored([key for key, _ in pins])
    for key, kept in reversed(pins):
        shelf.unpin(key, kept)
    books.counts["adoptions"] += len(pins)
    books.counts["adoptions_without_room"] += len(refused)
    return refused
