"""The books of a storage tier: with blocks of any size, a medium that follows them never holds too much."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.tiers.words import REQUEST, k
from tiers import OffloadKey
from tiers.errors import TierValueError
from tiers.storage.amount import Amount
from tiers.storage.kept import Kept
from tiers.storage.shelf import Shelf


class Medium:
    """A medium that does what the books order, in any order. Some deletes fail, some blocks can never be
    deleted, and of some puts nobody knows what became.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bound = Amount(self.random.randrange(8), self.random.randrange(40))
        self.shelf = Shelf(max_blocks=self.bound.blocks, max_bytes=self.bound.bytes)
        self.lies: dict[OffloadKey, int] = {}
        self.orders: list[tuple[OffloadKey, int, list[OffloadKey]]] = []
        self.written: list[OffloadKey] = []
        self.pins: list[tuple[OffloadKey, Kept]] = []
        self.stuck: set[OffloadKey] = set()
        self.stranded: list[OffloadKey] = []
        self.retried: list[OffloadKey] = []
        self.next_key = 0

    def step(self) -> None:
        moves = [self.land, self.land, self.obey, self.obey, self.end, self.pin, self.unpin, self.spoil]
        moves += [self.retry, self.end_of_retry]
        self.random.choice(moves)()
        self.shelf.check_integrity()
        held = Amount(len(self.lies), sum(self.lies.values()))
        assert held.fits(self.bound), "the medium holds more than the bound"

    def land(self) -> None:
        self.next_key += 1
        key, size = k(str(self.next_key)), self.random.randrange(12)
        if self.random.random() < 0.05:
            self.stuck.add(key)
        self.order(key, size)

    def order(self, key: OffloadKey, size: int) -> None:
        if self.shelf.blocking_delete(size) is None and (room := self.shelf.begin_landing(key, size)):
            self.orders.append((key, size, room.victims))

    def obey(self) -> None:
        """Delete the victims, and then write; if a victim stays, look for another."""
        if not self.orders:
            return
        key, size, victims = self.orders.pop(self.random.randrange(len(self.orders)))
        deleted = [self.delete(victim) for victim in victims]
        if not all(deleted):
            self.shelf.abort(key)
            self.order(key, size)
            return
        self.shelf.victims_gone(key)
        if self.random.random() < 0.8:
            self.lies[key] = size
            self.written.append(key)
        else:
            self.lies |= {key: size} if self.random.random() < 0.5 else {}
            self.shelf.may_lie(key)
            self.stranded.append(key)

    def delete(self, key: OffloadKey) -> bool:
        if key in self.stuck or self.random.random() < 0.1:
            self.shelf.stays(key)
            self.stranded.append(key)
            return False
        self.lies.pop(key, None)
        self.shelf.left(key)
        return True

    def retry(self) -> None:
        if self.stranded:
            self.retried.append(self.stranded.pop(0))
            self.shelf.retry(self.retried[-1])
            assert self.shelf.is_leaving(self.retried[-1])

    def end_of_retry(self) -> None:
        if self.retried:
            self.delete(self.retried.pop(0))

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
        self.delete(key)


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
    assert room.victims == [k("b"), k("c")]
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


def test_what_is_stuck_is_nobodys_room() -> None:
    """A block that could not be deleted takes its room, also while it is tried again; others leave."""
    shelf = Shelf(max_blocks=2)
    shelf.adopt(k("a"), 1)
    shelf.adopt(k("b"), 1)
    shelf.expel(k("b"))
    shelf.stays(k("b"))
    shelf.retry(k("b"))
    assert shelf.blocking_delete(1) is None
    room = shelf.begin_landing(k("c"), 1)
    assert room is not None
    assert room.victims == [k("a")]
    assert shelf.begin_landing(k("d"), 1) is None
    shelf.left(k("b"))
    assert shelf.begin_landing(k("d"), 1) is not None


def test_nobody_leaves_who_need_not() -> None:
    """Where evicting is not wanted, only what is free is given."""
    shelf = Shelf(max_blocks=1)
    assert shelf.adopt(k("a"), 1, evict=False) is not None
    assert shelf.begin_landing(k("b"), 1, evict=False) is None
    assert shelf.adopt(k("b"), 1, evict=False) is None
    assert shelf.is_resident(k("a"))


@pytest.mark.parametrize("limit", [-1, 1.5, True, "10GB"])
def test_a_bound_is_a_number_from_0_up(limit: Any) -> None:
    """Neither fewer than no blocks can be kept, nor half of one, nor a text of them."""
    for name in ("max_blocks", "max_bytes"):
        with pytest.raises(TierValueError, match=name):
            Shelf(**{name: limit})
