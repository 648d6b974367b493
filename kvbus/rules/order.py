"""O3, O9: in which order tiers speak inside a drain, and who speaks for whom. No counts here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvbus.chunk import GPU, REMOVED, STORED, Ints
from kvbus.chunks import Chunks
from kvbus.findings import Group, Proof
from kvbus.names import first_sights
from kvbus.scene import Scene
from kvbus.verdict import Witness

PRIMARY: Final = ("CPU", "CPU_PINNED", "CPU_TIER1")
"""Media of a primary offloading tier: right below the GPU, above every secondary."""


def rank_of(medium: str) -> int:
    """0 for the GPU, 1 for a primary tier, 2 for anything behind."""
    return 0 if medium == GPU else 1 if medium in PRIMARY else 2


_Tier = tuple[int, int]
"""Medium and owner, by number."""


class TierOrder:
    """O3, O9: in which order tiers speak inside a drain, and who speaks for whom.

    Remembers, for each source, which of two secondary tiers came first when both spoke, and for each engine
    (feed names, primary first) whose source speaks for which tier.
    """

    def __init__(self, names: Chunks, engines: Sequence[Sequence[str]]) -> None:
        self._names = names
        self._pairs: set[tuple[int, _Tier, _Tier]] = set()
        self._engines = [list(engine) for engine in engines]
        self._speakers: dict[tuple[int, int, int], tuple[str, Witness]] = {}
        self._last_of_round: dict[int, tuple[float, int, Witness]] = {}

    def look(self, scene: Scene) -> None:
        chunk = scene.chunk
        named = np.flatnonzero((chunk.kind == STORED) | (chunk.kind == REMOVED))
        if len(named) > 1:
            self._inside(scene, named)
        if self._engines:
            self._rounds(scene)
            self._owners(scene, named)

    def _inside(self, scene: Scene, named: Ints) -> None:
        chunk = scene.chunk
        ranks = np.array([rank_of(name) for name in self._names.media.names], np.int64)
        owners = len(self._names.owners.names) + 1
        tier = chunk.medium[named] * owners + chunk.owner[named] + 1
        rank = ranks[chunk.medium[named]]
        same = chunk.batch[named[1:]] == chunk.batch[named[:-1]]
        turned = named[1:][same & (rank[1:] < rank[:-1])]
        behind = dict(zip(named[1:].tolist(), named[:-1].tolist(), strict=True)) if len(turned) else {}
        scene.told_events("tier_order.turned", turned, lambda s, event: _turned(s, behind[event], event))
        both = same & (rank[1:] == 2) & (rank[:-1] == 2) & (tier[1:] != tier[:-1])
        for at in np.flatnonzero(both).tolist():
            self._secondaries(scene, int(named[at]), int(named[at + 1]))

    def _secondaries(self, scene: Scene, before: int, event: int) -> None:
        chunk, source = scene.chunk, int(scene.event_sources()[event])
        first, second = ((int(chunk.medium[row]), int(chunk.owner[row])) for row in (before, event))
        if (source, first, second) in self._pairs:
            return
        if not self._goes_before(source, second, first):
            self._pairs.add((source, first, second))
            return
        group = Group("tier_order.turned", source, "secondaries")
        scene.findings.add(group, scene.order(event), *_turned(scene, before, event))

    def _goes_before(self, source: int, tier: _Tier, other: _Tier) -> bool:
        """Whether a tier was heard before another one inside a batch, or before one that was, and so on."""
        reached, due = {tier}, [tier]
        while due:
            at = due.pop()
            found = {after for of, before, after in self._pairs if of == source and before == at} - reached
            reached |= found
            due += found
        return other in reached

    def _rounds(self, scene: Scene) -> None:
        """Batches of one engine under one time come in the order of its tiers."""
        chunk = scene.chunk
        tiers = {name: (n, m) for n, engine in enumerate(self._engines) for m, name in enumerate(engine)}
        for row in range(len(chunk.seq)):
            source = self._names.sources[int(chunk.source[row])]
            if source.source not in tiers or np.isnan(chunk.ts[row]):
                continue
            engine, tier = tiers[source.source]
            ts = float(chunk.ts[row])
            here = self._names.witness(chunk, row)
            last = self._last_of_round.get(engine)
            if last is not None and last[0] == ts and tier < last[1]:
                because = f"{source.source}: its share of a drain comes after that of a tier behind it"
                order = int(chunk.position[row]), -1
                group = Group("tier_order.turned", int(chunk.source[row]), "rounds")
                scene.findings.add(group, order, because, [last[2], here])
            self._last_of_round[engine] = ts, tier, here

    def _owners(self, scene: Scene, named: Ints) -> None:
        chunk, media = scene.chunk, len(self._names.media.names)
        owners = len(self._names.owners.names) + 1
        engines = {name: n for n, engine in enumerate(self._engines) for name in engine}
        code = (chunk.event_sources()[named] * media + chunk.medium[named]) * owners + chunk.owner[named] + 1
        others: dict[int, tuple[str, Witness]] = {}
        for one, at in first_sights(code):
            rest, owner = divmod(one, owners)
            number, medium = divmod(rest, media)
            source, event = self._names.sources[number].source, int(named[at])
            if source not in engines:
                continue
            key = engines[source], medium, owner
            speaker = self._speakers.setdefault(key, (source, scene.witness(event)))
            if speaker[0] != source:
                others[one] = speaker
        foreign = np.isin(code, list(others))
        whose = dict(zip(named[foreign].tolist(), code[foreign].tolist(), strict=True))
        scene.told_events(
            "owner.foreign", named[foreign], lambda s, event: _foreign(s, event, *others[whose[event]])
        )


def _turned(scene: Scene, before: int, event: int) -> Proof:
    said = f"{scene.where(event)} speaks after {scene.where(before)} inside one drain"
    because = (
        f"{scene.who(event)}: {said}; the GPU comes first, then the primary tier, then the others in order"
    )
    return because, [scene.witness(before), scene.witness(event)]


def _foreign(scene: Scene, event: int, speaker: str, first: Witness) -> Proof:
    because = f"{scene.who(event)}: speaks for {scene.medium(event)}, which is {speaker}'s"
    return because, [first, scene.witness(event)]
