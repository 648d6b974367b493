"""The books of a storage tier: with blocks of any size, a medium that follows them never holds too much."""

from __future__ import annotations

import random

import pytest

from tests.tiers.words import REQUEST, k
from tiers import OffloadKey
from tiers.amount import Amount
from tiers.errors import TierValueError
from tiers.kept import Kept
from tiers.shelf import Shelf


class Medium:
    """A medium that does what the books order, in any order, and sometimes fails to delete."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bound = Amount(self.random.randrange(8), self.random.randrange(40))
        self.shelf = Shelf(max_blocks=self.bound.blocks, max_bytes=self.bound.bytes)
        self.lies: dict[OffloadKey, int] = {}
        self.orders: list[tuple[OffloadKey, int, list[OffloadKey]]] = []
        self.written: list[OffloadKey] = []
        self.pins: list[tuple[OffloadKey, Kept]] = []
        self.next_key = 0

    def step(self) -> None:
        moves = [self.land, self.land, self.obey, self.obey, self.end, self.pin, self.unpin, self.spoil]
        self.random.choice(moves)()
        self.shelf.check_integrity()
        held = Amount(len(self.lies), sum(self.lies.values()))
        assert held.fits(self.bound), "the medium holds more than the bound"

    def land(self) -> None:
        self.next_key += 1
        key, size = k(str(self.next_key)), self.random.randrange(12)
        if self.shelf.blocking_delete(size) is None and (room := self.shelf.begin_landing(key, size)):
            self.orders.append((key, size, room.victims))

    def obey(self) -> None:
        """Delete the victims, and then write, unless a victim stays."""
        if not self.orders:
            return
        key, size, victims = self.orders.pop(self.random.randrange(len(self.orders)))
        stays = [victim for victim in victims if self.random.random() < 0.2]
        for victim in victims:
            if victim in stays:
                self.shelf.stays(victim)
            else:
                self.lies.pop(victim)
                self.shelf.left(victim)
        if stays:
            self.shelf.abort(key)
        else:
            self.shelf.victims_gone(key)
            self.lies[key] = size
            self.written.append(key)

    def end(self) -> None:
        if self.written:
            self.shelf.landed(self.written.pop(0))

    def pin(self) -> None:
        resident = [key for key in self.lies if self.shelf.is_resident(key)]
        if resident:
            key = self.random.choice(resident)
            self.pins.append((key, self.shelf.pin(key)))

    def unpin(self) -> None:
        if self.pins:
            self.shelf.unpin(*self.pins.pop())

    def spoil(self) -> None:
        """A block turns out to be corrupt, and is deleted at once or stays."""
        resident = [key for key in self.lies if self.shelf.is_resident(key)]
        if not resident or self.random.random() < 0.7:
            return
        key = self.random.choice(resident)
        self.shelf.expel(key)
        if self.random.random() < 0.5:
            del self.lies[key]
            self.shelf.left(key)
        else:
            self.shelf.stays(key)


@pytest.mark.parametrize("seed", range(150))
def test_the_bound_is_kept_on_the_medium(seed: int) -> None:
    """Whatever the sizes, the order of work and the failing deletes, the medium never exceeds the bound."""
    medium = Medium(seed)
    for _ in range(150):
        medium.step()


def test_an_eviction_is_no_larger_than_needed() -> None:
    """The least recently used leave, one after the other, until there is room, in blocks and in bytes."""
    shelf = Shelf(max_bytes=10, max_blocks=3)
    for name, size in (("a", 2), ("b", 3), ("c", 4)):
        shelf.adopt(k(name), size)
    shelf.touch([k("a")], REQUEST)
    room = shelf.begin_landing(k("d"), 5)
    assert room is not None
    assert room.evicted == [k("b"), k("c")]
    assert shelf.kept == Amount(1, 2)


def test_no_room_changes_nothing() -> None:
    """A block larger than the bound, or than all that is not pinned, evicts nobody."""
    shelf = Shelf(max_bytes=10)
    shelf.adopt(k("a"), 5)
    shelf.adopt(k("b"), 5)
    shelf.pin(k("a"))
    assert shelf.begin_landing(k("c"), 6) is None
    assert shelf.begin_landing(k("c"), 11) is None
    assert shelf.kept == Amount(2, 10)
    shelf.check_integrity()


def test_room_by_the_books_may_have_to_be_waited_for() -> None:
    """What is still being deleted is in nobody's way by the books, and is by the bytes."""
    shelf = Shelf(max_blocks=1)
    shelf.adopt(k("a"), 1)
    shelf.expel(k("a"))
    assert shelf.blocking_delete(1) == k("a")
    shelf.left(k("a"))
    assert shelf.blocking_delete(1) is None


def test_a_block_larger_than_its_victims_takes_the_difference_at_once() -> None:
    """Room that another block's large victim will leave is not given away before that victim is deleted."""
    shelf = Shelf(max_bytes=12)
    shelf.adopt(k("big"), 6)
    shelf.adopt(k("small"), 4)
    for name, size, victim in (("x", 3, "big"), ("y", 6, "small")):
        room = shelf.begin_landing(k(name), size)
        assert room is not None
        assert room.victims == [k(victim)]
    # 3 bytes are free by the books. With y written before big is deleted, 12 lie on the medium.
    assert shelf.blocking_delete(2) == k("big")
    shelf.left(k("big"))
    shelf.victims_gone(k("x"))
    assert shelf.blocking_delete(2) is None


def test_what_is_stuck_is_tried_again_first() -> None:
    """A block that could not be deleted takes its room, and is the first victim of the next store."""
    shelf = Shelf(max_blocks=2)
    shelf.adopt(k("a"), 1)
    shelf.adopt(k("b"), 1)
    shelf.expel(k("b"))
    shelf.stays(k("b"))
    room = shelf.begin_landing(k("c"), 1)
    assert room is not None
    assert (room.stranded, room.evicted) == ([k("b")], [])


def test_a_bound_is_not_negative() -> None:
    """Fewer than no blocks or bytes cannot be kept."""
    for wrong in ({"max_blocks": -1}, {"max_bytes": -1}):
        with pytest.raises(TierValueError):
            Shelf(**wrong)
