"""Which blocks are where, as a fold over the log: a reference count for each source, medium, group and hash.

One store of a hash is one physical copy more, one removal one less; a count never goes below zero. An
engine's AllBlocksCleared empties its GPU and nothing else; a new epoch empties everything its source had.
Whatever was odd on the way comes back from ``fold`` as values: this module counts, it does not judge, print
or raise.

Why counts and not a set: engines do not share equal blocks, so a hash is stored N times and removed N times
(vLLM ``BlockHashToBlockMap``); a set is wrong at 22 of the 28 checkpoints of the oracle capture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, canonical_medium
from kvbus.log import Entry, EpochBegan, PositionedEntry, Received, SourceId

SHELVES_MAX: Final = 4096
"""(medium, group) pairs of a source beyond which empty ones are forgotten: a bound against made-up groups."""


class StoredAgain(Struct, frozen=True, gc=False):
    """A store of ``blocks`` hashes that were resident already: further copies, or a re-announcement."""

    event: int
    medium: str
    group: int | None
    blocks: int


class CopyRemoved(Struct, frozen=True, gc=False):
    """A removal that took one of several copies of ``blocks`` hashes: they are still resident."""

    event: int
    medium: str
    group: int | None
    blocks: int


class BelowZero(Struct, frozen=True, gc=False):
    """A removal of hashes whose count was zero already (each as often as it happened)."""

    event: int
    medium: str
    group: int | None
    block_hashes: tuple[int, ...]


Remark = StoredAgain | CopyRemoved | BelowZero
"""Something out of the ordinary in one event; ``event`` is its index in the batch, ``medium`` canonical."""


class Tally(Struct):
    """What a medium's events added up to, over all sources and epochs. Blocks are hash occurrences."""

    stored_events: int = 0
    stored_blocks: int = 0
    removed_events: int = 0
    removed_blocks: int = 0
    below_zero: int = 0
    cleared_copies: int = 0
    dropped_copies: int = 0


class _Shelf:
    """The counts of one (source, medium, group)."""

    __slots__ = ("counts", "group", "medium", "tally")

    def __init__(self, medium: str, group: int | None, tally: Tally) -> None:
        self.medium = medium
        self.group = group
        self.tally = tally
        self.counts: dict[int, int] = {}


class _Holdings:
    """The shelves of one source in one epoch; ``by_spelling`` finds one by an event's own words."""

    __slots__ = ("by_spelling", "epoch", "shelves")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.shelves: dict[tuple[str, int | None], _Shelf] = {}
        self.by_spelling: dict[tuple[str | None, int | None], _Shelf] = {}


class Residency:
    """Counts of physical copies by source, medium, group and hash, after the entries folded so far."""

    def __init__(self) -> None:
        self._holdings: dict[SourceId, _Holdings] = {}
        self._tallies: dict[str, Tally] = {}

    def fold(self, entry: Entry | PositionedEntry) -> Sequence[Remark]:
        """Take the next entry of the log; say what was out of the ordinary in it, in event order."""
        if type(entry) is PositionedEntry:
            entry = entry.entry
        if type(entry) is Received:
            batch = entry.batch
            return self._fold_batch(entry, batch) if type(batch) is EventBatch else ()
        if type(entry) is EpochBegan:
            holdings = self._holdings.get(entry.source)
            if holdings is None or holdings.epoch != entry.epoch:
                self._begin(entry.source, entry.epoch)
        return ()

    def _fold_batch(self, entry: Received, batch: EventBatch) -> Sequence[Remark]:
        holdings = self._holdings.get(entry.source)
        if holdings is None or holdings.epoch != entry.epoch:
            holdings = self._begin(entry.source, entry.epoch)
        by_spelling = holdings.by_spelling
        remarks: list[Remark] = []
        for index, event in enumerate(batch.events):
            if type(event) is BlockRemoved:
                shelf = by_spelling.get((event.medium, event.group_idx))
                if shelf is None:
                    shelf = self._open(holdings, event)
                remarks += _remove(shelf, index, event.block_hashes)
            elif type(event) is BlockStored:
                shelf = by_spelling.get((event.medium, event.group_idx))
                if shelf is None:
                    shelf = self._open(holdings, event)
                remarks += _store(shelf, index, event.block_hashes)
            elif type(event) is AllBlocksCleared:
                _clear(holdings)
        return remarks

    def _begin(self, source: SourceId, epoch: int) -> _Holdings:
        old = self._holdings.get(source)
        if old is not None:
            for shelf in old.shelves.values():
                shelf.tally.dropped_copies += sum(shelf.counts.values())
        new = self._holdings[source] = _Holdings(epoch)
        return new

    def _open(self, holdings: _Holdings, event: BlockStored | BlockRemoved) -> _Shelf:
        """The shelf an event speaks of, under a spelling of its medium that is new here."""
        medium, group = canonical_medium(event.medium), event.group_idx
        if len(holdings.by_spelling) >= SHELVES_MAX:
            holdings.shelves = {key: s for key, s in holdings.shelves.items() if s.counts}
            holdings.by_spelling.clear()
        shelf = holdings.shelves.get((medium, group))
        if shelf is None:
            tally = self._tallies.setdefault(medium, Tally())
            shelf = holdings.shelves[medium, group] = _Shelf(medium, group, tally)
        holdings.by_spelling[event.medium, group] = shelf
        return shelf

    # -- what is resident now ------------------------------------------------------------------------------

    @property
    def sources(self) -> Sequence[SourceId]:
        """Every source folded so far, by first sight."""
        return list(self._holdings)

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """Events and blocks by canonical medium, over all sources and epochs."""
        return self._tallies

    def copies(self, medium: str, *, source: SourceId | None = None) -> dict[int, int]:
        """Hash to physical copies in a medium (canonical), over all groups and, unless told, sources."""
        total: Counter[int] = Counter()
        for shelf in self._shelves(source):
            if shelf.medium == medium:
                total.update(shelf.counts)
        return dict(total)

    def resident(self, medium: str, *, source: SourceId | None = None) -> int:
        """How many blocks have a positive count in a medium (canonical).

        A block is a hash in one source and group: two engines that hold the same hash have two blocks.
        """
        return sum(len(shelf.counts) for shelf in self._shelves(source) if shelf.medium == medium)

    def residents(self, *, source: SourceId | None = None) -> dict[str, int]:
        """``resident`` of every medium that had a store or a removal, those that are empty now included."""
        media = self._tallies if source is None else dict.fromkeys(s.medium for s in self._shelves(source))
        return {medium: self.resident(medium, source=source) for medium in media}

    def count(self, source: SourceId, medium: str, group: int | None, block_hash: int) -> int:
        """Copies of one block; 0 where it is not, or not known."""
        holdings = self._holdings.get(source)
        shelf = holdings.shelves.get((medium, group)) if holdings else None
        return shelf.counts.get(block_hash, 0) if shelf else 0

    def check_integrity(self) -> None:
        """Raise AssertionError where the counts contradict themselves or what was added and taken."""
        kept: Counter[str] = Counter()
        for holdings in self._holdings.values():
            assert sum(not shelf.counts for shelf in holdings.shelves.values()) <= SHELVES_MAX
            assert len(holdings.by_spelling) <= SHELVES_MAX
            for (medium, group), shelf in holdings.shelves.items():
                assert (shelf.medium, shelf.group) == (medium, group)
                assert shelf.tally is self._tallies[medium]
                assert all(n > 0 for n in shelf.counts.values())
                kept[medium] += sum(shelf.counts.values())
            for (spelling, group), shelf in holdings.by_spelling.items():
                assert holdings.shelves[canonical_medium(spelling), group] is shelf
        for medium, tally in self._tallies.items():
            came = tally.stored_blocks + tally.below_zero
            assert came - tally.removed_blocks - tally.cleared_copies - tally.dropped_copies == kept[medium]

    def _shelves(self, source: SourceId | None) -> Iterable[_Shelf]:
        if source is None:
            return (s for holdings in self._holdings.values() for s in holdings.shelves.values())
        return self._holdings[source].shelves.values() if source in self._holdings else ()


def _clear(holdings: _Holdings) -> None:
    for shelf in holdings.shelves.values():
        if shelf.medium == "GPU":
            shelf.tally.cleared_copies += sum(shelf.counts.values())
            shelf.counts.clear()


def _store(shelf: _Shelf, index: int, hashes: list[int]) -> Sequence[Remark]:
    counts, tally = shelf.counts, shelf.tally
    before = len(counts)
    for block_hash in hashes:
        counts[block_hash] = counts.get(block_hash, 0) + 1
    tally.stored_events += 1
    tally.stored_blocks += len(hashes)
    again = before + len(hashes) - len(counts)
    return (StoredAgain(index, shelf.medium, shelf.group, again),) if again else ()


def _remove(shelf: _Shelf, index: int, hashes: list[int]) -> Sequence[Remark]:
    counts, tally = shelf.counts, shelf.tally
    tally.removed_events += 1
    tally.removed_blocks += len(hashes)
    stayed = 0
    missing: list[int] = []
    for block_hash in hashes:
        copies = counts.pop(block_hash, 0)
        if copies > 1:
            counts[block_hash] = copies - 1
            stayed += 1
        elif not copies:
            missing.append(block_hash)
    if not stayed and not missing:
        return ()
    tally.below_zero += len(missing)
    remarks: list[Remark] = []
    if stayed:
        remarks.append(CopyRemoved(index, shelf.medium, shelf.group, stayed))
    if missing:
        remarks.append(BelowZero(index, shelf.medium, shelf.group, tuple(missing)))
    return remarks
