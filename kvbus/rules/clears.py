"""O8: clears of what is empty already, and clears that say nothing of the other tiers.

Blocks from before a clear that are spoken of after it are told where removals are judged (``residency``).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kvbus.chunk import CLEARED, STORED, Ints
from kvbus.findings import Group
from kvbus.names import distinct
from kvbus.rules.words import named
from kvbus.scene import Scene
from kvbus.verdict import Witness

STORM_CLEARS: Final = 3
"""Clears of a GPU in a row, with nothing stored between them, that make a storm."""


class Clears:
    """Remembers, for each source, the first of the clears in a row, which are of one epoch, and how many they
    are; and whether it has lower tiers.
    """

    def __init__(self) -> None:
        self._runs: dict[int, tuple[int, Witness]] = {}
        self._lower: set[int] = set()

    def look(self, scene: Scene) -> None:
        chunk, sources = scene.chunk, scene.event_sources()
        clears, stores = chunk.kind == CLEARED, chunk.kind == STORED
        gpu = scene.is_gpu(np.arange(len(chunk.kind)))
        for number in {*distinct(sources[clears]).tolist(), *self._runs}:
            mine = sources == number
            missed = scene.sky.missed.get(number, np.zeros(0, np.int64))
            between = np.sort(np.concatenate((np.flatnonzero(mine & stores & gpu), missed)))
            self._runs_of(scene, number, np.flatnonzero(mine & clears), between)
            if clears[mine].any():
                lower = np.flatnonzero(mine & stores & ~gpu)
                self._ambiguous(scene, number, np.flatnonzero(mine & clears), lower)
        self._lower.update(distinct(sources[stores & ~gpu]).tolist())

    def _runs_of(self, scene: Scene, number: int, clears: Ints, between: Ints) -> None:
        """Clears with nothing ``between`` them, neither a store nor something missed (that comes before its
        row), counted on from chunk to chunk.
        """
        upto, previous = np.searchsorted(between, clears, side="right"), 0
        for clear, passed in zip(clears.tolist(), upto.tolist(), strict=True):
            if passed > previous:
                self._runs.pop(number, None)
            previous = passed
            here = scene.witness(clear)
            run, first = self._runs.get(number, (0, here))
            if first.epoch != here.epoch:
                run, first = 0, here
            self._runs[number] = run + 1, first
            if run + 1 >= STORM_CLEARS:
                because = (
                    f"{scene.who(clear)}: the GPU is cleared again and again, and nothing is stored between"
                )
                group = Group("clear.storm", number)
                scene.findings.add(group, scene.order(clear), because, [first, here])
        if previous < len(between):
            self._runs.pop(number, None)

    def _ambiguous(self, scene: Scene, number: int, clears: Ints, lower: Ints) -> None:
        """Clears of a source that has stored to lower tiers: of those they say nothing."""
        since = -1 if number in self._lower else int(lower[0]) if len(lower) else None
        mine = clears[clears > since] if since is not None else clears[:0]
        if not len(mine):
            return
        who = named(scene.names.sources[number])
        because = f"{who}: a clear speaks of the GPU; what other tiers hold stays as it was"
        group = Group("clear.others", number)
        first = int(mine[0])
        scene.findings.add(group, scene.order(first), because, [scene.witness(first)], count=len(mine))
