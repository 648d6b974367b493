"""The life of single blocks: every event that named them, what swept them away, and the holes that cloud it.

A fold over chunks for a handful of hashes. A store adds a copy, a removal takes one, none falls below zero;
AllBlocksCleared empties the GPU of its source, a new epoch everything of it. What was missed of a source
makes what it holds uncertain until the block is stored again, or swept away. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from kvbus.block_log import chunks
from kvbus.chunk import CLEARED, STORED, Chunk, Place
from kvbus.chunks import Chunks
from kvbus.log import EpochBegan, LogReader, SourceId
from kvbus.moments import Missing, Moment, moments, next_position
from kvbus.rules.transport import Missed

What = Literal["stored", "removed", "cleared", "restarted", "missed"]


class Step(Struct, frozen=True, kw_only=True):
    """One thing that happened to a block, or may have (``missed``).

    ``position`` is the batch's, of what stands between batches that of the next; ``seq``, ``event`` (index in
    the batch), ``ts`` (publisher's clock, s) and ``received_ns`` are None where there is no batch. ``copies``
    are those in this tier afterwards; ``note`` says what is odd, or why something was missed.
    """

    what: What
    source: SourceId
    epoch: int
    position: int
    seq: int | None = None
    event: int | None = None
    ts: float | None = None
    received_ns: int | None = None
    medium: str | None = None
    group: int | None = None
    reason: str | None = None
    copies: int | None = None
    note: str | None = None


class Holding(Struct, frozen=True):
    """A tier that holds, or held, a block. ``since``: the store that brought it in, None where it is gone;
    ``doubt``: what was missed since it was last certain.
    """

    source: SourceId
    medium: str
    group: int | None
    copies: int
    since: Step | None
    doubt: str | None


class _Tier:
    """One block in one place of one source. ``known``: when it was last certain (a number that rises)."""

    __slots__ = ("copies", "known", "since")

    def __init__(self) -> None:
        self.copies = 0
        self.known = 0
        self.since: Step | None = None


class _Block:
    def __init__(self) -> None:
        self.tiers: dict[tuple[int, Place], _Tier] = {}
        self.steps: list[tuple[int, Step]] = []


class Lives:
    """Follows ``blocks`` through the chunks of a log. Memory: their events and the holes of the log."""

    def __init__(self, names: Chunks, blocks: Sequence[int]) -> None:
        self._names = names
        self._blocks = {block: _Block() for block in blocks}
        self._hashes = np.array(sorted(self._blocks), np.uint64)
        self._missing = Missing(names)
        self._epochs: dict[int, int] = {}
        self._holes: dict[int, tuple[int, str]] = {}
        self._missed: list[tuple[int, int, Step]] = []
        self._now = 0
        self._behind = 0

    def look(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        self._behind = next_position(chunk, self._behind)
        named = chunk.event[np.isin(chunk.hash, self._hashes)]
        events = np.union1d(named, np.flatnonzero(chunk.kind == CLEARED))
        for moment in moments(chunk, self._names, self._missing.look(chunk), events):
            self._now += 1
            match moment.what:
                case EpochBegan() as mark:
                    self._turn(chunk, moment, self._names.source_number(mark.source))
                case Missed() as miss:
                    self._miss(chunk, moment, miss)
                case int(event) if moment.rank:
                    self._event(chunk, event)
                case int(row):
                    self._turn(chunk, moment, int(chunk.source[row]))

    def steps(self, block: int) -> list[Step]:
        """All that happened to a block, in order, with the holes of the sources that ever named it."""
        mine = self._blocks[block]
        speakers = {number for number, _ in mine.tiers}
        holes = [(now, step) for now, number, step in self._missed if number in speakers]
        return [step for _, step in sorted([*mine.steps, *holes], key=lambda item: item[0])]

    def holdings(self, block: int) -> list[Holding]:
        """Every tier that named a block, with what it holds of it now."""
        found = []
        for (number, place), tier in self._blocks[block].tiers.items():
            hole, why = self._holes.get(number, (0, ""))
            doubt = why if hole > tier.known else None
            source = self._names.sources[number]
            since = tier.since if tier.copies else None
            found.append(Holding(source, place.medium, place.group, tier.copies, since, doubt))
        return found

    # -- in the order of the log ---------------------------------------------------------------------------

    def _turn(self, chunk: Chunk, moment: Moment, number: int) -> None:
        """A source's epoch begins: whatever it held is gone, unless this was known."""
        before = self._epochs.get(number)
        if before == moment.epoch:
            return
        self._epochs[number] = moment.epoch
        self._holes.pop(number, None)
        if before is not None:
            self._sweep("restarted", number, self._between(chunk, moment, number), gpu_only=False)

    def _miss(self, chunk: Chunk, moment: Moment, miss: Missed) -> None:
        if self._epochs.get(miss.source, miss.epoch) == miss.epoch:
            self._holes[miss.source] = self._now, miss.why
        at = self._between(chunk, moment, miss.source)
        self._missed.append((self._now, miss.source, Step(what="missed", note=miss.why, **at)))

    def _event(self, chunk: Chunk, event: int) -> None:
        number = int(chunk.source[chunk.batch[event]])
        at = self._at(chunk, event)
        if chunk.kind[event] == CLEARED:
            self._sweep("cleared", number, at, gpu_only=True)
            return
        place = self._names.places.names[int(chunk.place[event])]
        hashes = chunk.hash[chunk.first_block[event] : chunk.first_block[event + 1]]
        named, times = np.unique(hashes[np.isin(hashes, self._hashes)], return_counts=True)
        for block, many in zip(named.tolist(), times.tolist(), strict=True):
            mine = self._blocks[block]
            tier = mine.tiers.setdefault((number, place), _Tier())
            if chunk.kind[event] == STORED:
                step = self._stored(tier, place, at, many)
            else:
                reason = int(chunk.reason[event])
                said = None if reason < 0 else self._names.reasons.names[reason]
                step = _removed(tier, place, at, many, said)
            mine.steps.append((self._now, step))

    def _stored(self, tier: _Tier, place: Place, at: dict[str, Any], many: int) -> Step:
        again = "a further copy, or announced again" if tier.copies or many > 1 else None
        before, tier.copies, tier.known = tier.copies, tier.copies + many, self._now
        step = Step(
            what="stored", medium=place.medium, group=place.group, copies=tier.copies, note=again, **at
        )
        if not before:
            tier.since = step
        return step

    def _sweep(
        self, what: Literal["cleared", "restarted"], number: int, at: dict[str, Any], *, gpu_only: bool
    ) -> None:
        for mine in self._blocks.values():
            for (source, place), tier in mine.tiers.items():
                if source != number or (gpu_only and not place.is_gpu):
                    continue
                tier.known = self._now
                if tier.copies:
                    tier.copies = 0
                    step = Step(what=what, medium=place.medium, group=place.group, copies=0, **at)
                    mine.steps.append((self._now, step))

    # -- where it stands -----------------------------------------------------------------------------------

    def _at(self, chunk: Chunk, event: int) -> dict[str, Any]:
        row = int(chunk.batch[event])
        ts = float(chunk.ts[row])
        return {
            "source": self._names.sources[int(chunk.source[row])],
            "epoch": int(chunk.epoch[row]),
            "position": int(chunk.position[row]),
            "seq": int(chunk.seq[row]),
            "event": int(chunk.index[event]),
            "ts": None if np.isnan(ts) else ts,
            "received_ns": int(chunk.received_ns[row]),
        }

    def _between(self, chunk: Chunk, moment: Moment, number: int) -> dict[str, Any]:
        position = moment.position(chunk, self._behind)
        return {"source": self._names.sources[number], "epoch": moment.epoch, "position": position}


def _removed(tier: _Tier, place: Place, at: dict[str, Any], many: int, reason: str | None) -> Step:
    note = None
    if tier.copies < many:
        note = "it was not known to be there" if not tier.copies else "more copies than were known"
    elif tier.copies > many:
        note = "copies stay"
    tier.copies = max(tier.copies - many, 0)
    return Step(
        what="removed",
        medium=place.medium,
        group=place.group,
        copies=tier.copies,
        reason=reason,
        note=note,
        **at,
    )


def lives(log: LogReader, blocks: Sequence[int], *, last: int | None = None) -> Lives:
    """The lives of some blocks up to position ``last`` (None: to the end of the log)."""
    names = Chunks()
    found = Lives(names, blocks)
    for chunk in chunks(log, names, naming=list(blocks), last=last):
        found.look(chunk)
    return found
