"""O2 by capacity: residency counted event by event, against what fits. Only stores that cross the line are
told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvbus.chunk import Ints
from kvbus.clouds import CERTAIN
from kvbus.findings import Told
from kvbus.names import distinct
from kvbus.scene import Scene


class Capacity:
    """O2, L1: a tier holds no more distinct blocks than ``capacities`` (by canonical medium) say, at any
    event.

    Remembers a number for each (source, medium) that has a capacity.
    """

    def __init__(self, capacities: Mapping[str, int]) -> None:
        self._capacities = capacities
        self._held: dict[tuple[int, str], int] = {}
        self._lives: dict[tuple[int, str], int] = {}

    def look(self, scene: Scene) -> None:
        for medium, most in self._capacities.items():
            numbers = [n for n, name in enumerate(scene.names.media.names) if name == medium]
            if numbers:
                self._medium(scene, numbers[0], medium, most)

    def _medium(self, scene: Scene, number: int, medium: str, most: int) -> None:
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
            over = mine[(held > most) & (step[mine] > 0) & (held - 1 == most)]
            self._over(scene, over, medium, most)

    def _over(self, scene: Scene, rows: Ints, medium: str, most: int) -> None:
        doubts = scene.doubts(rows)

        def say(scene: Scene, row: int) -> Told:
            event = int(scene.moves.event[row])
            because = (
                f"{scene.who(event)}: with block {int(scene.moves.hash[row])} {medium} holds {most + 1:,} "
                f"blocks, and has room for {most:,}: somebody had to leave before"
            )
            return because, [scene.witness(event)]

        scene.told("eviction.over", rows[doubts == CERTAIN], say)
        scene.told("eviction.doubtful", rows[doubts != CERTAIN], say)
