"""What a storage tier keeps, by the books, and who has to leave when room is needed. Pure.

    absent ─begin_landing→ landing ─landed→ resident ─(victim, expel)→ leaving ─left→ absent
                              ├──abort→ absent                             └─stays→ stranded ─left→ absent
                              └─may_lie→ stranded

Bytes are counted twice over. *Booked* is what is, or will be, kept: it never exceeds the bound by itself.
*Used* is what may lie on the medium at this moment, so a block that is leaving counts until it is gone, and
one that is landing counts from when its victims are. A block that cannot be deleted, or that may lie there
after a put that failed, is *stranded*: nobody can read it, and it takes its room in both, also while it is
tried again, so that nobody builds on its going. Nothing here touches a medium, and nothing is announced.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from tiers.keys import OffloadKey
from tiers.lru import LRUCachePolicy
from tiers.request import ReqContext
from tiers.storage.amount import NOTHING, Amount, bound_of
from tiers.storage.kept import Kept, Landing, Room


class Shelf:
    """At most ``max_blocks`` blocks and ``max_bytes`` payload bytes; None: no bound.

    Raises ``TierValueError`` for a bound that is no number from 0 up.
    """

    def __init__(self, *, max_blocks: int | None = None, max_bytes: int | None = None) -> None:
        self.bound = bound_of(max_blocks=max_blocks, max_bytes=max_bytes)
        self._resident: dict[OffloadKey, Kept] = {}
        self._order = LRUCachePolicy(sys.maxsize)
        self._landing: dict[OffloadKey, Landing] = {}
        self._leaving: dict[OffloadKey, Amount] = {}
        self._stranded: dict[OffloadKey, Amount] = {}
        self._tried: set[OffloadKey] = set()
        self._kept = NOTHING
        self._evictable = NOTHING
        self._booked = NOTHING
        self._used = NOTHING

    # What is where

    @property
    def kept(self) -> Amount:
        """What can be read."""
        return self._kept

    @property
    def landing_count(self) -> int:
        """Blocks on their way in."""
        return len(self._landing)

    @property
    def stranded_count(self) -> int:
        """Blocks that lie there, or may, and that nobody can read."""
        return len(self._stranded)

    def is_resident(self, key: OffloadKey) -> bool:
        return key in self._resident

    def is_landing(self, key: OffloadKey) -> bool:
        return key in self._landing

    def is_leaving(self, key: OffloadKey) -> bool:
        """Whether it is being deleted, for the first time or again."""
        return key in self._leaving or key in self._tried

    def is_stranded(self, key: OffloadKey) -> bool:
        return key in self._stranded

    def is_absent(self, key: OffloadKey) -> bool:
        return not any(
            key in state for state in (self._resident, self._landing, self._leaving, self._stranded)
        )

    # Use

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Count a use, backwards: the first key becomes the most recent."""
        self._order.touch(keys, req_context)

    def pin(self, key: OffloadKey) -> Kept:
        """One more reader of a resident block: it will not be evicted."""
        kept = self._resident[key]
        kept.ref_cnt += 1
        if kept.ref_cnt == 1:
            self._order.mark_non_evictable(key)
            self._evictable -= kept.size
        return kept

    def unpin(self, key: OffloadKey, kept: Kept) -> None:
        """One reader less. ``kept`` is what ``pin`` gave: the block may be another one by now."""
        kept.ref_cnt -= 1
        if kept.ref_cnt == 0 and self.is_same(key, kept):
            self._order.mark_evictable(key)
            self._evictable += kept.size

    def is_same(self, key: OffloadKey, kept: Kept) -> bool:
        """Whether this very block is still resident."""
        return self._resident.get(key) is kept

    # Room

    def blocking_delete(self, num_bytes: int) -> OffloadKey | None:
        """A block that must be gone from the medium before there is room for this many bytes, when the
        books have room already. None: there is room now, or somebody must be evicted.
        """
        size = Amount(1, num_bytes)
        waits = size.fits(self.bound - self._booked) and not size.fits(self.bound - self._used)
        return next(iter(self._leaving), None) if waits else None

    def begin_landing(self, key: OffloadKey, num_bytes: int, *, evict: bool = True) -> Room | None:
        """Book an absent block, evicting as needed if ``evict``.

        None and no change if there is no room. The bytes may be written when the victims are deleted.
        """
        size, free_by_books = Amount(1, num_bytes), self.bound - self._booked
        room, reserved = Room([]), size
        if not size.fits(free_by_books):
            free = (self.bound - self._used).at_least(NOTHING)
            made = self._make_room(size - free_by_books.at_most(free), evict=evict)
            if made is None:
                return None
            room = made
            given = sum((self._leaving[victim] for victim in room.victims), NOTHING)
            reserved = (size - given).at_least(NOTHING)
        self._landing[key] = Landing(size, reserved)
        self._booked += size
        self._used += reserved
        return room

    def adopt(self, key: OffloadKey, num_bytes: int, *, evict: bool = True) -> Room | None:
        """Keep an absent block that lies on the medium already, as if just used, and evict as needed if
        ``evict``.

        None and no change if there is no room. Until the victims are deleted the medium holds too much.
        """
        size = Amount(1, num_bytes)
        room = self._make_room(size - (self.bound - self._booked), evict=evict)
        if room is not None:
            self._booked += size
            self._used += size
            self._admit(key, size)
        return room

    def _make_room(self, needed: Amount, *, evict: bool) -> Room | None:
        """Turn enough resident blocks into leaving ones; None and no change if too few."""
        room = Room([])
        if needed.fits(NOTHING):
            return room
        if not (evict and needed.fits(self._evictable)):
            return None
        found = NOTHING
        while not needed.fits(found):
            found += self._evict_one(room)
        return room

    def _evict_one(self, room: Room) -> Amount:
        victims = self._order.evict(1, frozenset())
        assert victims is not None, "counted as evictable, and nobody to evict"
        key = victims[0][0]
        size = self._resident.pop(key).size
        self._evictable -= size
        self._take_out(key, size)
        room.victims.append(key)
        return size

    # Ways in and out

    def victims_gone(self, key: OffloadKey) -> None:
        """The victims of a landing block are deleted: it takes the room that is its own."""
        landing = self._landing[key]
        if landing.reserved is not landing.size:
            self._used += landing.size - landing.reserved
            landing.reserved = landing.size

    def landed(self, key: OffloadKey) -> None:
        """The block can be read."""
        self._admit(key, self._landing.pop(key).size)

    def abort(self, key: OffloadKey) -> None:
        """The block was not written."""
        landing = self._landing.pop(key)
        self._booked -= landing.size
        self._used -= landing.reserved

    def may_lie(self, key: OffloadKey) -> None:
        """A landing block was not written, or was: nobody knows."""
        size = self._landing[key].size
        self.abort(key)
        self.strand(key, size.bytes)

    def _admit(self, key: OffloadKey, size: Amount) -> None:
        kept = self._resident[key] = Kept(0, 0, size=size)
        self._order.insert(key, kept)
        self._kept += size
        self._evictable += size

    def expel(self, key: OffloadKey) -> None:
        """A resident block must be deleted on the medium, whoever reads it."""
        kept = self._resident.pop(key)
        self._order.remove(key)
        if not kept.ref_cnt:
            self._evictable -= kept.size
        self._take_out(key, kept.size)

    def _take_out(self, key: OffloadKey, size: Amount) -> None:
        self._leaving[key] = size
        self._kept -= size
        self._booked -= size

    def left(self, key: OffloadKey) -> None:
        """A leaving block is deleted."""
        if key in self._tried:
            self._tried.remove(key)
            size = self._stranded.pop(key)
            self._booked -= size
        else:
            size = self._leaving.pop(key)
        self._used -= size

    def stays(self, key: OffloadKey) -> None:
        """A leaving block could not be deleted."""
        if key in self._tried:
            self._tried.remove(key)
            return
        size = self._leaving.pop(key)
        self._used -= size
        self.strand(key, size.bytes)

    def strand(self, key: OffloadKey, num_bytes: int) -> None:
        """This absent block lies on the medium, or may, and is not to be read."""
        size = self._stranded[key] = Amount(1, num_bytes)
        self._booked += size
        self._used += size

    def retry(self, key: OffloadKey) -> None:
        """A stranded block is about to be deleted once more."""
        self._tried.add(key)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self._order.check_integrity()
        states = (self._resident, self._landing, self._leaving, self._stranded)
        keys = [key for state in states for key in state]
        assert len(keys) == len(set(keys)), "a block in two states"
        kept = sum((block.size for block in self._resident.values()), NOTHING)
        landing = sum((block.size for block in self._landing.values()), NOTHING)
        reserved = sum((block.reserved for block in self._landing.values()), NOTHING)
        stranded = sum(self._stranded.values(), NOTHING)
        assert self._tried <= self._stranded.keys(), "a block is tried again that is not stuck"
        idle = sum((block.size for block in self._resident.values() if not block.ref_cnt), NOTHING)
        assert (kept, idle) == (self._kept, self._evictable), "kept blocks are counted wrongly"
        assert kept + landing + stranded == self._booked, "the books do not add up"
        assert kept + reserved + stranded + sum(self._leaving.values(), NOTHING) == self._used, "use is wrong"
        assert (kept + landing).fits(self.bound), "more kept than the bound"
        assert all(self._order.get(key) is block for key, block in self._resident.items()), "a block is lost"
