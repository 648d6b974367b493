"""O2 by capacity: residency counted event by event, against what fits. Only stores that cross the line are
told.
"""

from __future__ import annotations

import numpy as np

from kvbus.chunk import Ints
from kvbus.clouds import CERTAIN
from kvbus.findings import Proof
from kvbus.names import distinct
from kvbus.rules.rooms import Rooms
from kvbus.scene import Scene


class Capacity:
    """O2: a tier holds no more distinct blocks than it has ``rooms`` for, at any event.

    Remembers a number for each (source, medium) that has a capacity.
    """

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._held: dict[tuple[int, str], int] = {}
        self._lives: dict[tuple[int, str], int] = {}

    def look(self, scene: Scene) -> None:
        limited = self._rooms.media()
        for number, medium in enumerate(scene.names.media.names):
            if medium in limited:
                self._medium(scene, number, medium)

    def _medium(self, scene: Scene, number: int, medium: str) -> None:
        moves, chunk = scene.moves, scene.chunk
        step = (moves.after > 0).astype(np.int64) - (moves.before > 0)
        rows = np.flatnonzero((step != 0) & (chunk.medium[moves.event] == number))
        rows = rows[np.argsort(moves.time[rows])]
        sources = scene.event_sources()[moves.event[rows]]
        for source in distinct(sources).tolist():
            mine = rows[sources == source]
            life = scene.holdings.lives(moves.shelf[mine])
            held = np.cumsum(step[mine])
            first = np.ones(len(mine), np.bool_)
            first[1:] = life[1:] != life[:-1]
            starts = np.flatnonzero(first)
            before = held[starts] - step[mine][starts]
            key = (source, medium)
            carried = self._held.get(key, 0) if self._lives.get(key) == int(life[0]) else 0
            base = np.zeros(len(starts), np.int64)
            base[0] = carried
            held = held + (base - before)[np.cumsum(first) - 1]
            self._held[key], self._lives[key] = int(held[-1]), int(life[-1])
            most = self._rooms.of(source, medium, chunk, chunk.batch[moves.event[mine]])
            crosses = (held - 1 == most) & (step[mine] > 0)
            self._over(scene, mine[crosses], medium, most[crosses])

    def _over(self, scene: Scene, rows: Ints, medium: str, fits: Ints) -> None:
        most_at = dict(zip(rows.tolist(), fits.tolist(), strict=True))
        doubts = scene.doubts(rows)

        def say(scene: Scene, row: int) -> Proof:
            event, most = int(scene.moves.event[row]), most_at[row]
            because = (
                f"{scene.who(event)}: with block {int(scene.moves.hash[row])} {medium} holds {most + 1:,} "
                f"blocks, and has room for {most:,}: somebody had to leave before"
            )
            return because, [scene.witness(event)]

        scene.told("eviction.over", rows[doubts == CERTAIN], say)
        scene.told("eviction.doubtful", rows[doubts != CERTAIN], say)
