"""L1, P4: tiers that only grow, and groups that are removed from and were never stored to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvbus.chunk import REMOVED, STORED
from kvbus.chunks import Chunks
from kvbus.clouds import CERTAIN
from kvbus.findings import Findings, Group
from kvbus.names import first_sights
from kvbus.rules.rooms import Rooms
from kvbus.rules.words import named
from kvbus.scene import Scene
from kvbus.verdict import Witness


class Lifetimes:
    """Remembers the first store of each (source, medium, group), which of them had a removal; and of each
    source the epoch it last spoke in and what it last missed.
    """

    def __init__(self, names: Chunks, rooms: Rooms) -> None:
        self._names = names
        self._rooms = rooms
        self._stored: dict[tuple[int, int], Witness] = {}
        self._removed: set[tuple[int, int]] = set()
        self._epochs: dict[int, int] = {}
        self._missed: dict[int, tuple[int, str]] = {}

    def look(self, scene: Scene) -> None:
        chunk, places = scene.chunk, max(len(self._names.places.names), 1)
        code = scene.event_sources() * places + chunk.place
        touched = (chunk.kind == STORED) | (chunk.kind == REMOVED)
        self._missed |= {source: (epoch, why) for source, epoch, why in scene.sky.missed_last()}
        backwards = np.flatnonzero(touched)[::-1]
        for source, at in first_sights(scene.event_sources()[backwards]):
            self._epochs[source] = int(chunk.epoch[chunk.batch[backwards[at]]])
        for one, event in first_sights(np.where(touched, code * 2 + (chunk.kind == STORED), -1)):
            if one < 0:
                continue
            rest, stored = divmod(one, 2)
            key = divmod(rest, places)
            if stored:
                self._stored.setdefault(key, scene.witness(event))
                continue
            if key not in self._removed and key not in self._stored:
                self._unstored(scene, key, event)
            self._removed.add(key)

    def _unstored(self, scene: Scene, key: tuple[int, int], event: int) -> None:
        place = self._names.places.names[key[1]]
        groups = {
            self._names.places.names[other].group
            for source, other in self._stored
            if source == key[0] and self._names.places.names[other].medium == place.medium
        }
        doubt = scene.sky.doubts(scene.chunk, np.array([event]), scene.is_gpu(np.array([event])))
        if groups and int(doubt[0]) == CERTAIN:
            said = f"a removal from {scene.where(event)}, to which nothing was ever stored"
            because = f"{scene.who(event)}: {said} (groups with stores: {sorted(map(str, groups))})"
            group = Group("group.unstored", key[0], key[1])
            scene.findings.add(group, scene.order(event), because, [scene.witness(event)])

    def conclude(self, findings: Findings, resident: Mapping[tuple[int, int], tuple[int, int]]) -> None:
        """Add what holds if nothing more comes."""
        names = self._names
        removed = {(source, names.places.names[place].medium) for source, place in self._removed}
        held: dict[tuple[int, str], int] = {}
        firsts: dict[tuple[int, str], Witness] = {}
        for (source, place), first in self._stored.items():
            key = source, names.places.names[place].medium
            firsts.setdefault(key, first)
            held[key] = held.get(key, 0) + resident.get((source, place), (0, 0))[0]
        for (source, medium), first in firsts.items():
            if (source, medium) in removed:
                continue
            most, order = self._rooms.now(source, medium), (first.position or 0, first.event or 0)
            kept = f"{medium}: blocks are stored and none is ever removed"
            findings.add(Group("lifetime.kept", source, medium), order, kept, [first])
            if most is not None and held[source, medium] > most:
                holds = f"{medium} holds {held[source, medium]:,} blocks, has room for {most:,}"
                kind, because = self._leak(source, holds)
                findings.add(Group(kind, source, medium), order, because, [first])

    def _leak(self, source: int, holds: str) -> tuple[str, str]:
        """The kind and the sentence: what was missed in the epoch may have been the removals, and a clear
        later on brings none of them back.
        """
        who, (epoch, why) = named(self._names.sources[source]), self._missed.get(source, (-1, ""))
        if epoch == self._epochs[source]:
            return "lifetime.doubtful", f"{who}: {holds}, and no removal was seen; {why}"
        return "lifetime.leak", f"{who}: {holds}, and none was ever removed"
