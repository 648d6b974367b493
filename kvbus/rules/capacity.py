"""O2 by capacity: residency counted event by event, against what fits. Only stores that cross the line are
told.

Counted twice over. Engines announce prefix hits like further copies, so a removal that leaves copies by the
count may have taken the last one: such a block is held until its next store only perhaps. Too many for
certain is a violation, too many with those that are perhaps held is a doubt.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kvbus.chunk import Bools, Ints
from kvbus.clouds import CERTAIN
from kvbus.findings import Proof
from kvbus.moves import NEVER, Moves
from kvbus.names import distinct
from kvbus.rules.rooms import Rooms
from kvbus.scene import Scene

PERHAPS: Final = "; unless a removal was missed, or one that left copies by the count took the last"


class Capacity:
    """O2: a tier holds no more distinct blocks than it has ``rooms`` for, at any event.

    Remembers two numbers for each (source, medium) that has a capacity: blocks held by the count, and those
    of them that are there for certain.
    """

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._held: dict[tuple[int, str], tuple[int, int]] = {}
        self._lives: dict[tuple[int, str], int] = {}

    def look(self, scene: Scene) -> None:
        limited = self._rooms.media()
        for number, medium in enumerate(scene.names.media.names):
            if medium in limited:
                self._medium(scene, number, medium)

    def _medium(self, scene: Scene, number: int, medium: str) -> None:
        moves, chunk = scene.moves, scene.chunk
        rows = moves.in_time((moves.change != 0) & (chunk.medium[moves.event] == number))
        sources = scene.event_sources()[moves.event[rows]]
        for source in distinct(sources).tolist():
            mine = rows[sources == source]
            life = scene.holdings.lives(moves.shelf[mine])
            key = (source, medium)
            begun = self._held.get(key, (0, 0)) if self._lives.get(key) == int(life[0]) else (0, 0)
            counted = (moves.after[mine] > 0).astype(np.int64) - (moves.before[mine] > 0)
            certain = (moves.change[mine] > 0).astype(np.int64) - _is_certain(moves, mine)
            held, sure = _summed(counted, life, begun[0]), _summed(certain, life, begun[1])
            self._held[key], self._lives[key] = (int(held[-1]), int(sure[-1])), int(life[-1])
            most = self._rooms.of(source, medium, chunk, chunk.batch[moves.event[mine]])
            over = (sure - 1 == most) & (certain > 0)
            over[over] = scene.doubts(mine[over]) == CERTAIN
            perhaps = (held - 1 == most) & (counted > 0) & ~over
            _tell(scene, "eviction.over", mine[over], most[over], "")
            _tell(scene, "eviction.doubtful", mine[perhaps], most[perhaps], PERHAPS)


def _is_certain(moves: Moves, rows: Ints) -> Bools:
    """Whether the block of each of ``rows`` is there before it for certain: its last move was a store."""
    put, taken = moves.put[rows], moves.taken[rows]
    certain: Bools = put > taken
    known = moves.carried[rows]
    before = np.flatnonzero((put < 0) & (taken < 0) & (known >= 0))
    facts = moves.facts[known[before]]
    first, last = facts["taken"], facts["put"]
    later = (last["position"] > first["position"]) | (
        (last["position"] == first["position"]) & (last["event"] > first["event"])
    )
    certain[before] = later | (facts["taken_row"] == NEVER)
    return certain & (moves.before[rows] > 0)


def _summed(steps: Ints, life: Ints, begun: int) -> Ints:
    """Running sums of ``steps``, from ``begun`` in the first life and from zero in each that follows."""
    total = np.cumsum(steps)
    first = np.ones(len(steps), np.bool_)
    first[1:] = life[1:] != life[:-1]
    starts = np.flatnonzero(first)
    base = steps[starts] - total[starts]
    base[0] += begun
    summed: Ints = total + base[np.cumsum(first) - 1]
    return summed


def _tell(scene: Scene, kind: str, rows: Ints, fits: Ints, unless: str) -> None:
    """Findings at stores that went beyond what ``fits``."""
    most_at = dict(zip(rows.tolist(), fits.tolist(), strict=True))

    def say(scene: Scene, row: int) -> Proof:
        event, most = int(scene.moves.event[row]), most_at[row]
        medium = scene.medium(event)
        because = (
            f"{scene.who(event)}: with block {int(scene.moves.hash[row])} {medium} holds {most + 1:,} "
            f"blocks, and has room for {most:,}: somebody had to leave before{unless}"
        )
        return because, [scene.witness(event)]

    scene.told(kind, rows, say)
