"""O4, P5, L3: what must be there, in whichever tier, before a block comes or after it leaves.

Each asks how many copies of some block some tier has at an event; ``asks`` gathers the questions of a chunk,
to be answered together with its counts. Where the counts are clouded, what is absent is doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvbus.chunk import GPU, REMOVED, STORED, Bools, Chunk, Hashes, Ints, Place
from kvbus.chunks import Chunks
from kvbus.clouds import CERTAIN
from kvbus.findings import Proof
from kvbus.moves import Asks
from kvbus.scene import Scene
from kvbus.stored_places import StoredPlaces


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
    """O4, P5, L3. Remembers to which places each source has stored."""

    def __init__(self, names: Chunks) -> None:
        self._names = names
        self._stored = StoredPlaces(names)

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
            [self._names.places.number(Place(GPU, place.group)) for place in list(places)], np.int64
        )

    def _left(self, chunk: Chunk) -> tuple[Ints, list[Ints]]:
        """Block rows of GPU removals where something is below, and the places below, an array a depth."""
        nothing = np.zeros(0, np.int64)
        gpu = self._names.gpu_places()
        if gpu[: len(self._names.places.names)].all():
            return nothing, []
        self._stored.look(chunk)
        lower, removed = self._lower(gpu), (chunk.kind == REMOVED) & gpu[chunk.place]
        if not lower or not removed.any():
            return nothing, []
        sources = chunk.event_sources()
        begun = np.full(len(chunk.kind), np.iinfo(np.int64).max)
        deepest = max(map(len, lower.values()))
        places = np.full((deepest, len(chunk.kind)), -1, np.int64)
        for source, since in lower.items():
            mine = np.flatnonzero(removed & (sources == source))
            begun[mine] = min(since.values())
            asked = list(since)
            for n in range(deepest):
                places[n, mine] = asked[n % len(asked)]
        rows = np.flatnonzero((removed & (np.arange(len(begun)) > begun))[chunk.event])
        return rows, [places[n][chunk.event[rows]] for n in range(deepest)]

    def _lower(self, gpu: Bools) -> dict[int, dict[int, int]]:
        """Of each source that has stored below the GPU, those places, as ``StoredPlaces`` has them."""
        found = {
            source: {place: event for place, event in since.items() if not gpu[place]}
            for source, since in self._stored.since.items()
        }
        return {source: places for source, places in found.items() if places}

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


def _orphan(scene: Scene, event: int) -> Proof:
    chunk = scene.chunk
    block, parent = int(chunk.hash[chunk.first_block[event]]), int(chunk.parent[event])
    said = f"block {block} is stored in {scene.where(event)} and its parent {parent} is not there"
    return f"{scene.who(event)}: {said}", [scene.witness(event)]


def _unresolvable(scene: Scene, event: int) -> Proof:
    said = "a store without tokens names blocks that were not shown with tokens before"
    return f"{scene.medium(event)}: {said}", [scene.witness(event)]


def _lost(scene: Scene, event: int) -> Proof:
    return "blocks leave the GPU and are in no lower tier", [scene.witness(event)]
