"""O3, O4, O9, P5, L3: order across events and tiers: who comes first in a drain, and what must be there
before.

O4, P5 and L3 ask how many copies of some block some tier has at an event; ``asks`` gathers the questions of a
chunk, to be answered together with its counts. Where the counts are clouded, what is absent is doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import REMOVED, STORED, Bools, Chunk, Chunks, Hashes, Ints, Place, first_sights
from kvbus.clouds import CERTAIN
from kvbus.findings import Group, Told
from kvbus.moves import Asks
from kvbus.scene import Say, Scene
from kvbus.verdict import Witness

PRIMARY: Final = ("CPU", "CPU_PINNED", "CPU_TIER1")
"""Media of a primary offloading tier: right below the GPU, above every secondary."""


def rank_of(medium: str) -> int:
    """0 for the GPU, 1 for a primary tier, 2 for anything behind."""
    return 0 if medium == "GPU" else 1 if medium in PRIMARY else 2


class Questions(NamedTuple):
    """The asks of a chunk and, of each rule, its event (or block) rows and where its answers are."""

    asks: Asks
    parents: Ints
    parent_own: Ints
    parent_gpu: Ints
    bare: Ints
    bare_own: Ints
    bare_gpu: Ints
    left: Ints
    left_below: Sequence[Ints]


class Crossing:
    """O4, P5, L3. Remembers the lower places each source has stored to."""

    def __init__(self, names: Chunks) -> None:
        self._names = names
        self._lower: dict[int, dict[int, int]] = {}

    def asks(self, chunk: Chunk) -> Questions:
        """What has to be known of the counts during the chunk."""
        counts = np.diff(chunk.first_block)
        parents = np.flatnonzero(
            (chunk.kind == STORED) & chunk.has_parent & (chunk.parent != 0) & (counts > 0)
        )
        bare_events = (chunk.kind == STORED) & ((chunk.tokens <= 0) | (chunk.size <= 0))
        bare = np.flatnonzero(bare_events[chunk.event]) if bare_events.any() else np.zeros(0, np.int64)
        on_gpu = self._gpu_places()
        asks = [
            _before(parents, chunk.place[parents], chunk.parent[parents]),
            _before(parents, on_gpu[chunk.place[parents]], chunk.parent[parents]),
            _before(chunk.event[bare], chunk.place[chunk.event[bare]], chunk.hash[bare]),
            _before(chunk.event[bare], on_gpu[chunk.place[chunk.event[bare]]], chunk.hash[bare]),
        ]
        left, below = self._left(chunk)
        lasts = chunk.first_event[chunk.batch[chunk.event[left]] + 1] - 1
        for places in below:
            asks.append(Asks(event=lasts, slot=lasts + 1, place=places, hash=chunk.hash[left]))
        joined, where = Asks.joined(asks)
        return Questions(joined, parents, where[0], where[1], bare, where[2], where[3], left, where[4:])

    def _gpu_places(self) -> Ints:
        """For each place, the GPU's with the same group."""
        places = self._names.places.names
        return np.array(
            [self._names.places.number(Place("GPU", place.group)) for place in list(places)], np.int64
        )

    def _left(self, chunk: Chunk) -> tuple[Ints, list[Ints]]:
        """Block rows of GPU removals where something is below, and the places below, an array a depth."""
        nothing = np.zeros(0, np.int64)
        gpu = np.array([place.medium == "GPU" for place in self._names.places.names], np.bool_)
        if gpu.all():
            return nothing, []
        sources = chunk.event_sources()
        stores = np.flatnonzero((chunk.kind == STORED) & ~gpu[chunk.place])
        code = sources[stores] * len(gpu) + chunk.place[stores]
        for one, at in first_sights(code):
            source, place = divmod(one, len(gpu))
            self._lower.setdefault(source, {}).setdefault(place, int(stores[at]))
        removed = (chunk.kind == REMOVED) & gpu[chunk.place]
        if not self._lower or not removed.any():
            self._settle()
            return nothing, []
        begun = np.full(len(chunk.kind), np.iinfo(np.int64).max)
        deepest = max(map(len, self._lower.values()))
        places = np.full((deepest, len(chunk.kind)), -1, np.int64)
        for source, lower in self._lower.items():
            mine = np.flatnonzero(removed & (sources == source))
            begun[mine] = min(lower.values())
            asked = list(lower)
            for n in range(deepest):
                places[n, mine] = asked[n % len(asked)]
        self._settle()
        rows = np.flatnonzero((removed & (np.arange(len(begun)) > begun))[chunk.event])
        return rows, [places[n][chunk.event[rows]] for n in range(deepest)]

    def _settle(self) -> None:
        """Places seen in this chunk have been there from the next one's beginning."""
        for lower in self._lower.values():
            for place in lower:
                lower[place] = -1

    def look(self, scene: Scene, questions: Questions) -> None:
        """Tell what the answers show."""
        copies, seen = scene.holdings.answers(scene.chunk, scene.moves, questions.asks)
        absent = (copies[questions.parent_own] == 0) & (copies[questions.parent_gpu] == 0)
        orphans = questions.parents[absent]
        certain = self._certain(scene, orphans)
        gpu = scene.is_gpu(orphans)
        scene.told_events("parent.absent", orphans[certain & gpu], _orphan)
        scene.told_events("parent.below", orphans[certain & ~gpu], _orphan)
        scene.told_events("parent.doubtful", orphans[~certain], _orphan)
        unseen = ~seen[questions.bare_own] & ~seen[questions.bare_gpu]
        bare = np.unique(scene.chunk.event[questions.bare[unseen]])
        scene.told_events("resolvable.unseen", bare[self._certain(scene, bare)], _unresolvable)
        lost = np.ones(len(questions.left), np.bool_)
        for where in questions.left_below:
            lost &= copies[where] == 0
        scene.told_events("demotion.lost", scene.chunk.event[questions.left[lost]], _lost)

    def _certain(self, scene: Scene, events: Ints) -> Bools:
        found: Bools = scene.sky.doubts(scene.chunk, events, scene.is_gpu(events)) == CERTAIN
        return found


def _before(events: Ints, places: Ints, hashes: Hashes) -> Asks:
    return Asks(event=events, slot=events, place=places, hash=hashes)


def _orphan(scene: Scene, event: int) -> Told:
    chunk = scene.chunk
    block, parent = int(chunk.hash[chunk.first_block[event]]), int(chunk.parent[event])
    said = f"block {block} is stored in {scene.where(event)} and its parent {parent} is not there"
    return f"{scene.who(event)}: {said}", [scene.witness(event)]


def _unresolvable(scene: Scene, event: int) -> Told:
    said = "a store without tokens names blocks that were not shown with tokens before"
    return f"{scene.medium(event)}: {said}", [scene.witness(event)]


def _lost(scene: Scene, event: int) -> Told:
    return "blocks leave the GPU and are in no lower tier", [scene.witness(event)]


class TierOrder:
    """O3, O9: in which order tiers speak inside a drain, and who speaks for whom.

    Remembers, for each source, which of two secondary tiers came first when both spoke, and for each engine
    (feed names, primary first) whose source speaks for which tier.
    """

    def __init__(self, names: Chunks, engines: Sequence[Sequence[str]]) -> None:
        self._names = names
        self._pairs: dict[tuple[int, int, int], Witness] = {}
        self._engines = [list(engine) for engine in engines]
        self._speakers: dict[tuple[int, str, int], tuple[str, Witness]] = {}
        self._last_of_round: dict[int, tuple[float, int, Witness]] = {}

    def look(self, scene: Scene) -> None:
        chunk = scene.chunk
        named = np.flatnonzero((chunk.kind == STORED) | (chunk.kind == REMOVED))
        if len(named) > 1:
            self._inside(scene, named)
        if self._engines and len(named):
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
            self._secondaries(scene, int(named[at]), int(named[at + 1]), int(tier[at]), int(tier[at + 1]))

    def _secondaries(self, scene: Scene, before: int, event: int, first: int, second: int) -> None:
        source = int(scene.event_sources()[event])
        here = scene.witness(event)
        if (source, second, first) not in self._pairs:
            self._pairs.setdefault((source, first, second), here)
            return
        told = _turned(scene, before, event)
        scene.findings.add(Group("tier_order.turned", source), scene.order(event), *told)

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
                group = Group("tier_order.turned", int(chunk.source[row]))
                scene.findings.add(group, order, because, [last[2], here])
            self._last_of_round[engine] = ts, tier, here

    def _owners(self, scene: Scene, named: Ints) -> None:
        chunk, media = scene.chunk, len(self._names.media.names)
        owners = len(self._names.owners.names) + 1
        engines = {name: n for n, engine in enumerate(self._engines) for name in engine}
        code = (chunk.event_sources()[named] * media + chunk.medium[named]) * owners + chunk.owner[named] + 1
        for one, at in first_sights(code):
            rest, owner = divmod(one, owners)
            number, medium = divmod(rest, media)
            source, event = self._names.sources[number].source, int(named[at])
            if source not in engines:
                continue
            key = engines[source], self._names.media.names[medium], owner
            speaker, first = self._speakers.setdefault(key, (source, scene.witness(event)))
            if speaker != source:
                mine = named[code == one]
                scene.told_events("owner.foreign", mine, _foreign(speaker, first))


def _turned(scene: Scene, before: int, event: int) -> Told:
    said = f"{scene.where(event)} speaks after {scene.where(before)} inside one drain"
    because = (
        f"{scene.who(event)}: {said}; the GPU comes first, then the primary tier, then the others in order"
    )
    return because, [scene.witness(before), scene.witness(event)]


def _foreign(speaker: str, first: Witness) -> Say:
    def say(scene: Scene, event: int) -> Told:
        because = f"{scene.who(event)}: speaks for {scene.medium(event)}, which is {speaker}'s"
        return because, [first, scene.witness(event)]

    return say
