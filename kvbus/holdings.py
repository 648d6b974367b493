"""How many copies of each block are where, worked out for a whole chunk at once: the counts behind the rules.

A *shelf* is one life of one (source, medium, group): a new epoch of the source begins new shelves, and
AllBlocksCleared new ones of its GPU. A store adds a copy, a removal takes one, no count falls below zero.
Rows of a chunk are sorted by (shelf, hash, time) and summed; what is known from before comes from one sorted
table, whose size is that of the resident blocks, the residents of the shelf before, and ``TAKEN_MAX`` blocks
taken out lately. Results do not depend on where a log was cut into chunks.

``kvbus/residency`` counts the same one event at a time; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvbus.chunk import CLEARED, STORED, Bools, Chunk, Chunks, Hashes, Ints
from kvbus.log import EpochBegan

TAKEN_MAX: Final = 32_768
"""A block that is taken out is remembered for so many block rows of the log, to name the removal before."""

NOWHERE: Final = -1
"""The shelf of an ask where there is none."""

_FACTS: Final = np.dtype(
    [
        ("count", "<i8"),
        ("put_position", "<u8"),
        ("put_seq", "<u8"),
        ("put_event", "<i8"),
        ("taken_position", "<u8"),
        ("taken_seq", "<u8"),
        ("taken_event", "<i8"),
        ("taken_row", "<i8"),
        ("content", "<u8"),
    ]
)


class Spot(NamedTuple):
    """Where an event stands: batch position and number, index in the batch."""

    position: int
    seq: int
    event: int


class Shelf(NamedTuple):
    """One life of a tier. ``began``: the clear it began with; ``former``: the shelf before, by number.

    ``life`` counts the resets of its source's medium before it: shelves of one medium with one life are there
    together.
    """

    source: int
    place: int
    epoch: int
    life: int
    began: Spot | None
    former: int | None
    former_epoch: int | None


class Reset(NamedTuple):
    """From event row ``row`` on a source's shelves are new: its GPU's (``clear``), or all (a new epoch)."""

    row: int
    source: int
    epoch: int
    clear: Spot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """Questions: how many copies of ``hash`` has the shelf of ``place``, at event row ``event``?

    Asked before the blocks of event row ``slot``: the event itself, or the one after it. Sorted by ``slot``.
    """

    event: Ints
    slot: Ints
    place: Ints
    hash: Hashes

    @classmethod
    def none(cls) -> Asks:
        nothing = np.zeros(0, np.int64)
        return cls(event=nothing, slot=nothing, place=nothing, hash=np.zeros(0, np.uint64))

    @classmethod
    def joined(cls, asks: Sequence[Asks]) -> tuple[Asks, list[Ints]]:
        """All of them as one, and where the answers of each are in it."""
        slot = np.concatenate([ask.slot for ask in asks])
        order = np.argsort(slot, kind="stable")
        event = np.concatenate([ask.event for ask in asks])
        where = np.empty(len(order), np.int64)
        where[order] = np.arange(len(order))
        ends = np.cumsum([len(ask.event) for ask in asks])[:-1]
        place = np.concatenate([ask.place for ask in asks])
        block_hash = np.concatenate([ask.hash for ask in asks])
        one = cls(event=event[order], slot=slot[order], place=place[order], hash=block_hash[order])
        return one, list(np.split(where, ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What each row of a chunk did, sorted by (shelf, hash, time).

    ``event`` (row), ``time`` (rises with the log), ``change`` (1, -1; 0 for an ask), copies ``before`` and
    ``after``, ``shelf`` (number), ``hash``. ``put`` and ``taken``: the sorted row of the block's last store,
    last removal of a copy, before this row (-1: none in this chunk); ``carried``: the block's row of
    ``facts``, what was known before the chunk (-1: nothing). ``clash``: the sorted row whose content this
    store contradicts (-1 none; -2 that of ``facts``). ``asked``: (copies, whether ever seen of late) for each
    ask.
    """

    event: Ints
    time: Ints
    change: Ints
    before: Ints
    after: Ints
    shelf: Ints
    hash: Hashes
    put: Ints
    taken: Ints
    carried: Ints
    clash: Ints
    facts: npt.NDArray[Any]
    row: Ints
    asked: tuple[Ints, Bools]

    def in_time(self, mask: Bools) -> Ints:
        """The rows of ``mask`` as the log has them."""
        rows = np.flatnonzero(mask)
        return rows[np.argsort(self.time[rows])]


class Holdings:
    """The counts after the chunks taken so far. ``shelves`` by number: those in use and those just before."""

    def __init__(self, names: Chunks) -> None:
        self.shelves: dict[int, Shelf] = {}
        self._names = names
        self._shelf = np.zeros(0, np.int64)
        self._hash = np.zeros(0, np.uint64)
        self._facts = np.zeros(0, _FACTS)
        self._current: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, int] = {}
        self._clears: dict[int, Spot] = {}
        self._lives: dict[tuple[int, bool], int] = {}
        self._forget: list[int] = []
        self._next_shelf = 0
        self._rows = 0

    # -- a chunk -------------------------------------------------------------------------------------------

    def step(self, chunk: Chunk, content: Hashes, asks: Asks) -> Moves:
        """Take the next chunk. ``content`` is a digest of what each block row's store says (0: nothing)."""
        self._drop()
        blocks, asked = len(chunk.hash), len(asks.hash)
        at_block, at_ask = _interleaved(chunk, asks)
        total = blocks + asked
        event, change = np.empty(total, np.int64), np.zeros(total, np.int64)
        event[at_block], event[at_ask] = chunk.event, asks.event
        change[at_block] = np.where(chunk.kind[chunk.event] == STORED, 1, -1)
        place, hashes = np.empty(total, np.int64), np.empty(total, np.uint64)
        place[at_block], place[at_ask] = chunk.place[chunk.event], asks.place
        hashes[at_block], hashes[at_ask] = chunk.hash, asks.hash
        said = np.zeros(total, np.uint64)
        said[at_block] = content
        row = np.cumsum(change != 0) - (change != 0) + self._rows
        shelf = self._shelves_of(chunk, event, place, change != 0)

        order, starts, segment = _sorted(shelf, hashes)
        segment_shelf, segment_hash = shelf[order[starts]], hashes[order[starts]]
        known = self._found(segment_shelf, segment_hash)
        carried = np.where(known >= 0, np.arange(len(known)), -1)[segment]
        change, event, row, said = change[order], event[order], row[order], said[order]
        facts = self._known(known)
        begun = facts["count"]
        after = _floored(change, starts, segment, begun)
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[starts] = begun
        put, taken = (
            _latest(change > 0, starts, segment),
            _latest((change < 0) & (before > 0), starts, segment),
        )
        clash, told = _clashes(said, change > 0, starts, segment, carried, facts)
        answered = np.empty(total, np.int64)
        answered[order] = np.arange(total)
        at = answered[at_ask]
        moves = Moves(
            event=event,
            time=order,
            change=change,
            before=before,
            after=after,
            shelf=segment_shelf[segment],
            hash=segment_hash[segment],
            put=_earlier(put, starts),
            taken=_earlier(taken, starts),
            carried=carried,
            clash=clash,
            facts=facts,
            row=row,
            asked=(before[at], self._seen(at, put, taken, carried, row, facts)),
        )
        self._keep(chunk, moves, starts, known, put, taken, said, told)
        self._rows += blocks
        return moves

    def _seen(
        self, at: Ints, put: Ints, taken: Ints, carried: Ints, row: Ints, facts: npt.NDArray[Any]
    ) -> Bools:
        """Whether the blocks of the asks at sorted rows ``at`` were here, now or lately."""
        here = (put[at] >= 0) | (taken[at] >= 0)
        known = carried[at]
        if len(facts):
            lately = (facts["count"][known] > 0) | (row[at] - facts["taken_row"][known] <= TAKEN_MAX)
            here |= (known >= 0) & lately
        return here

    def lives(self, shelves: Ints) -> Ints:
        """The ``life`` of each of some shelves."""
        numbers, which = _distinct(shelves)
        found: Ints = np.array([self.shelves[number].life for number in numbers.tolist()], np.int64)[which]
        return found

    def held(self, shelf: int, hashes: Hashes) -> Bools:
        """Which of some blocks a shelf holds, or held when it ended."""
        first, last = np.searchsorted(self._shelf, [shelf, shelf + 1])
        known = self._hash[first:last]
        if not len(known):
            return np.zeros(len(hashes), np.bool_)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        found: Bools = (known[at] == hashes) & (self._facts["count"][first:last][at] > 0)
        return found

    def resident(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(source, place) → (distinct blocks, copies) now."""
        found = {}
        for key, shelf in self._current.items():
            first, last = np.searchsorted(self._shelf, [shelf, shelf + 1])
            counts = self._facts["count"][first:last]
            found[key] = int((counts > 0).sum()), int(counts.sum())
        return found

    @property
    def rows(self) -> int:
        """Rows of the table: resident, of the shelves before, and taken out lately."""
        return len(self._hash)

    def check_integrity(self) -> None:
        """Raise AssertionError where the table contradicts itself."""
        assert len(self._shelf) == len(self._hash) == len(self._facts)
        same = self._shelf[1:] == self._shelf[:-1]
        assert (self._shelf[1:] >= self._shelf[:-1]).all()
        assert (self._hash[1:][same] > self._hash[:-1][same]).all()
        assert (self._facts["count"] >= 0).all()
        assert set(np.unique(self._shelf).tolist()) <= self.shelves.keys()
        assert all(self.shelves[n][:2] == key for key, n in self._current.items())

    # -- shelves -------------------------------------------------------------------------------------------

    def _shelves_of(self, chunk: Chunk, event: Ints, place: Ints, moved: Bools) -> Ints:
        """The shelf of each row; takes the chunk's resets on the way. To ask for a shelf does not make it."""
        resets = self._resets(chunk)
        section = np.searchsorted(np.array([r.row for r in resets], np.int64), event, side="right")
        places = max(len(self._names.places.names), 1)
        code = (section * (len(self._names.sources) + 1) + chunk.source[chunk.batch[event]]) * places + place
        codes, which = _distinct(code)
        made = np.zeros(len(codes), np.bool_)
        made[which[moved]] = True
        shelves = np.empty(len(codes), np.int64)
        done = 0
        for n, one in enumerate(codes.tolist()):
            rest, number = divmod(one, places)
            due, source = divmod(rest, len(self._names.sources) + 1)
            while done < due:
                self._take(resets[done])
                done += 1
            known = self._current.get((source, number), NOWHERE)
            shelves[n] = self._shelf_at(source, number) if made[n] else known
        for reset in resets[done:]:
            self._take(reset)
        found: Ints = shelves[which]
        return found

    def _resets(self, chunk: Chunk) -> list[Reset]:
        found: list[tuple[int, int, Reset]] = []
        for before, mark in chunk.marks:
            if isinstance(mark, EpochBegan):
                number = self._names.source_number(mark.source)
                found.append((before, 0, Reset(int(chunk.first_event[before]), number, mark.epoch, None)))
        for at in epoch_turns(chunk).tolist():
            source, epoch = int(chunk.source[at]), int(chunk.epoch[at])
            found.append((at, 1, Reset(int(chunk.first_event[at]), source, epoch, None)))
        for row in np.flatnonzero(chunk.kind == CLEARED).tolist():
            at = int(chunk.batch[row])
            spot = Spot(int(chunk.position[at]), int(chunk.seq[at]), int(chunk.index[row]))
            found.append((at, 2, Reset(row, int(chunk.source[at]), int(chunk.epoch[at]), spot)))
        return [reset for *_, reset in sorted(found, key=lambda item: (item[2].row, item[0], item[1]))]

    def _take(self, reset: Reset) -> None:
        if reset.clear is None:
            if self._epochs.get(reset.source) == reset.epoch:
                return
            self._epochs[reset.source] = reset.epoch
            self._clears.pop(reset.source, None)
        else:
            self._clears[reset.source] = reset.clear
        for gpu in (True, False) if reset.clear is None else (True,):
            self._lives[reset.source, gpu] = self._lives.get((reset.source, gpu), 0) + 1
        for key in [key for key in self._current if key[0] == reset.source]:
            if reset.clear is None or self._is_gpu(key[1]):
                self._end(key)

    def _end(self, key: tuple[int, int]) -> None:
        number = self._current.pop(key)
        before = self.shelves[number].former
        if before is not None:
            self._forget.append(before)
        self._last[key] = number

    def _shelf_at(self, source: int, place: int) -> int:
        known = self._current.get((source, place))
        if known is not None:
            return known
        number, self._next_shelf = self._next_shelf, self._next_shelf + 1
        former = self._last.pop((source, place), None)
        began = self._clears.get(source) if self._is_gpu(place) else None
        epoch = self._epochs.get(source, 0)
        former_epoch = None if former is None else self.shelves[former].epoch
        life = self._lives.get((source, self._is_gpu(place)), 0)
        self.shelves[number] = Shelf(source, place, epoch, life, began, former, former_epoch)
        self._current[source, place] = number
        return number

    def _is_gpu(self, place: int) -> bool:
        return bool(self._names.places.names[place].medium == "GPU")

    def _drop(self) -> None:
        if self._forget:
            gone = np.isin(self._shelf, self._forget)
            self._shelf, self._hash, self._facts = self._shelf[~gone], self._hash[~gone], self._facts[~gone]
            for number in self._forget:
                del self.shelves[number]
            self._forget = []

    # -- the table -----------------------------------------------------------------------------------------

    def _found(self, shelf: Ints, block_hash: Hashes) -> Ints:
        """Rows of the table, -1 where it has none; the arguments are sorted by shelf."""
        found = np.full(len(shelf), -1, np.int64)
        if not len(shelf):
            return found
        numbers, firsts = np.unique(shelf, return_index=True)
        lasts = np.append(firsts[1:], len(shelf))
        lows, highs = (
            np.searchsorted(self._shelf, numbers),
            np.searchsorted(self._shelf, numbers, side="right"),
        )
        for first, last, low, high in zip(firsts, lasts, lows, highs, strict=True):
            if low == high:
                continue
            part, wanted = self._hash[low:high], block_hash[first:last]
            at = np.minimum(np.searchsorted(part, wanted), len(part) - 1)
            found[first:last] = np.where(part[at] == wanted, at + low, -1)
        return found

    def _known(self, rows: Ints) -> npt.NDArray[Any]:
        """A copy of rows of the table; -1 gives a block of which nothing is known."""
        facts = np.zeros(len(rows), _FACTS)
        facts["put_event"] = facts["taken_event"] = -1
        facts[rows >= 0] = self._facts[rows[rows >= 0]]
        return facts

    def _keep(
        self,
        chunk: Chunk,
        moves: Moves,
        starts: Ints,
        known: Ints,
        put: Ints,
        taken: Ints,
        said: Hashes,
        told: Ints,
    ) -> None:
        """What the chunk left, into the table; blocks taken out long ago leave it."""
        ends = np.append(starts[1:], len(moves.event)) - 1 if len(starts) else starts
        put, taken, told = put[ends], taken[ends], told[ends]
        facts, old = moves.facts.copy(), known >= 0
        facts["count"] = moves.after[ends]
        for rows, name in ((put, "put"), (taken, "taken")):
            have = rows >= 0
            event = moves.event[rows[have]]
            batch = chunk.batch[event]
            facts[name + "_position"][have] = chunk.position[batch]
            facts[name + "_seq"][have] = chunk.seq[batch]
            facts[name + "_event"][have] = chunk.index[event]
        facts["taken_row"][taken >= 0] = moves.row[taken[taken >= 0]]
        facts["content"][told >= 0] = said[told[told >= 0]]
        self._facts[known[old]] = facts[old]
        new = ~old & ((facts["count"] > 0) | (taken >= 0))
        shelf, block_hash = moves.shelf[ends][new], moves.hash[ends][new]
        lows = np.searchsorted(self._shelf, shelf)
        highs = np.searchsorted(self._shelf, shelf, side="right")
        into = lows.copy()
        for number in np.unique(shelf).tolist():
            mine = shelf == number
            low, high = int(lows[mine][0]), int(highs[mine][0])
            into[mine] = low + np.searchsorted(self._hash[low:high], block_hash[mine])
        oldest = self._rows + len(chunk.hash) - TAKEN_MAX
        stays = (self._facts["count"] > 0) | (self._facts["taken_row"] >= oldest)
        into = np.append(0, np.cumsum(stays))[into]
        fresh = facts[new]
        self._shelf = np.insert(self._shelf[stays], into, shelf)
        self._hash = np.insert(self._hash[stays], into, block_hash)
        self._facts = np.insert(self._facts[stays], into, fresh)


def epoch_turns(chunk: Chunk) -> Ints:
    """Rows of batches that may begin an epoch: the first of their source here, or another epoch's."""
    order = np.argsort(chunk.source, kind="stable")
    source, epoch = chunk.source[order], chunk.epoch[order]
    turns = np.ones(len(order), np.bool_)
    turns[1:] = (source[1:] != source[:-1]) | (epoch[1:] != epoch[:-1])
    return np.sort(order[turns])


def _interleaved(chunk: Chunk, asks: Asks) -> tuple[Ints, Ints]:
    """Where block rows and asks stand when each ask comes just before the blocks of its slot."""
    upto = np.searchsorted(asks.slot, np.arange(len(chunk.kind)), side="right")
    at_block = np.arange(len(chunk.hash)) + upto[chunk.event]
    at_ask = np.arange(len(asks.hash)) + chunk.first_block[asks.slot]
    return at_block, at_ask


def _distinct(codes: Ints) -> tuple[Ints, Ints]:
    """The distinct numbers, rising, and which of them each is."""
    top = int(codes.max(initial=-1)) + 1
    if top > 1 << 22:
        found, which = np.unique(codes, return_inverse=True)
        return found, which
    there = np.bincount(codes, minlength=top) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _sorted(shelf: Ints, hashes: Hashes) -> tuple[Ints, Ints, Ints]:
    """Rows by (shelf, hash, row); where each such pair begins; and each row's pair."""
    if not len(shelf):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    coded = pa.array(hashes).dictionary_encode()
    distinct = coded.dictionary.to_numpy(zero_copy_only=False)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(distinct)] = np.arange(len(distinct))
    _, local = _distinct(shelf - int(shelf.min()))
    bits = len(shelf).bit_length()
    pair = local * len(distinct) + rank[coded.indices.to_numpy(zero_copy_only=False)]
    assert int(pair.max()) < 1 << (63 - bits), "a chunk is too large"
    key = np.sort((pair << bits) | np.arange(len(shelf)))
    order, pair = key & ((1 << bits) - 1), key >> bits
    first = np.ones(len(key), np.bool_)
    first[1:] = pair[1:] != pair[:-1]
    return order, np.flatnonzero(first), np.cumsum(first) - 1


def _floored(change: Ints, starts: Ints, segment: Ints, begun: Ints) -> Ints:
    """Running sums within each segment, begun at ``begun``, none of which falls below zero."""
    if not len(change):
        return change
    total = np.cumsum(change)
    total += (begun - total[starts] + change[starts])[segment]
    if int(total.min()) >= 0:
        return total
    step = int(total.max() - total.min()) + 1
    lowest = np.minimum.accumulate(total - segment * step) + segment * step
    floored: Ints = total - np.minimum(lowest, 0)
    return floored


def _latest(mask: Bools, starts: Ints, segment: Ints) -> Ints:
    """The latest row of ``mask`` in each row's segment, itself included; -1 where there is none."""
    rows = np.arange(len(mask))
    latest = np.maximum.accumulate(np.where(mask, rows, -1)) if len(mask) else rows
    return np.where(latest >= starts[segment], latest, -1) if len(mask) else latest


def _earlier(latest: Ints, starts: Ints) -> Ints:
    """The same, itself excluded."""
    earlier = np.empty_like(latest)
    earlier[1:] = latest[:-1]
    earlier[starts] = -1
    return earlier


def _clashes(
    said: Hashes, stored: Bools, starts: Ints, segment: Ints, carried: Ints, facts: npt.NDArray[Any]
) -> tuple[Ints, Ints]:
    """For each store that contradicts what was said of its block last, by which row; the latest telling."""
    told = _latest(stored & (said != 0), starts, segment)
    before = _earlier(told, starts)
    old = np.zeros(len(said), np.uint64)
    if len(facts):
        old = np.where(carried >= 0, facts["content"][carried], np.uint64(0))
    last = np.where(before >= 0, said[before], old) if len(said) else said
    differs = stored & (said != 0) & (last != 0) & (last != said)
    clash = np.where(differs, np.where(before >= 0, before, -2), -1)
    return clash, told


__all__ = ["TAKEN_MAX", "Asks", "Holdings", "Moves", "Reset", "Shelf", "Spot", "epoch_turns"]
