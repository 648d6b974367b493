"""D1, P1, P3: what cannot be read, and stores whose numbers do not add up. Told event by event; no counts
here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kvbus.chunk import STORED, STRANGE, UNREADABLE, Chunk, Hashes
from kvbus.chunks import Chunks
from kvbus.findings import Findings, Group, Proof
from kvbus.names import Names, distinct, first_sights, numbered
from kvbus.rules.transport import Missed
from kvbus.rules.words import named, uncertain
from kvbus.scene import Say, Scene
from kvbus.verdict import Witness

GENERATIONS: Final = {"map": "maps", "array": "arrays"}
"""How dialect names begin, and what events are in such a generation of the schema."""


class Decoding:
    """D1. Remembers the generation each source speaks, and the first batch in it."""

    def __init__(self, names: Chunks, findings: Findings) -> None:
        self._names = names
        self._findings = findings
        self._spoken: dict[int, tuple[str, Witness]] = {}

    def look(self, chunk: Chunk) -> list[Missed]:
        """Take the next chunk; say what of it cannot be read."""
        missed = [self._payload(chunk, row) for row in np.flatnonzero(chunk.unreadable).tolist()]
        odd = (chunk.kind == UNREADABLE) | (chunk.kind == STRANGE)
        missed += [self._event(chunk, row) for row in np.flatnonzero(odd).tolist()]
        self._keys(chunk)
        self._generations(chunk)
        return missed

    def _payload(self, chunk: Chunk, row: int) -> Missed:
        seq, here = int(chunk.seq[row]), self._names.witness(chunk, row)
        why = f"batch {seq} cannot be read"
        return self._unread(chunk, row, int(chunk.first_event[row]), "payload", why, here, -1)

    def _event(self, chunk: Chunk, event: int) -> Missed:
        row = int(chunk.batch[event])
        seq, index = int(chunk.seq[row]), int(chunk.index[event])
        here = self._names.witness(chunk, row, index)
        if chunk.kind[event] == UNREADABLE:
            why = f"an event of batch {seq} cannot be read"
            return self._unread(chunk, row, event, "event", why, here, index)
        tag = self._names.tags.names[int(chunk.terms[event])]
        why = f"batch {seq} has an event of unknown kind {tag}"
        return self._unread(chunk, row, event, "tag", why, here, index)

    def _unread(
        self, chunk: Chunk, row: int, event: int, kind: str, why: str, here: Witness, index: int
    ) -> Missed:
        number, epoch = int(chunk.source[row]), int(chunk.epoch[row])
        source, order = self._names.sources[number], (int(chunk.position[row]), index)
        because = f"{named(source)} epoch {epoch}: {why}"
        self._findings.add(Group(f"decode.{kind}", number), order, because, [here])
        missed = Group("refcount.tag" if kind == "tag" else "refcount.missed", number, kind)
        self._findings.add(missed, order, uncertain(source, epoch, why), [here])
        return Missed(event, 2 * row, number, epoch, why)

    def _keys(self, chunk: Chunk) -> None:
        rows = np.flatnonzero(chunk.unknown_keys > 0)
        for number in distinct(chunk.source[rows]).tolist():
            mine = rows[chunk.source[rows] == number]
            first, count = int(mine[0]), int(chunk.unknown_keys[mine].sum())
            because = f"{named(self._names.sources[number])}: keys or fields that are kept and not understood"
            here = self._names.witness(chunk, first)
            order = int(chunk.position[first]), -1
            self._findings.add(Group("decode.keys", number), order, because, [here], count=count)

    def _generations(self, chunk: Chunk) -> None:
        names = [name.partition("-")[0] for name in self._names.dialects.names]
        known = sorted(GENERATIONS)
        coded = np.array([known.index(n) if n in GENERATIONS else -1 for n in names], np.int64)
        spoken = coded[chunk.dialect] if len(coded) else chunk.dialect
        rows = np.flatnonzero((spoken >= 0) & (np.diff(chunk.first_event) > 0))
        order = np.argsort(chunk.source[rows], kind="stable")
        rows = rows[order]
        turns = np.ones(len(rows), np.bool_)
        for column in (chunk.source, chunk.epoch, spoken):
            turns[1:] &= column[rows[1:]] == column[rows[:-1]]
        turns[1:] = ~turns[1:]
        for row in np.sort(rows[turns]).tolist():
            self._speaks(chunk, row, known[int(spoken[row])])

    def _speaks(self, chunk: Chunk, row: int, generation: str) -> None:
        number = int(chunk.source[row])
        here = self._names.witness(chunk, row)
        before = self._spoken.get(number)
        if before is not None and (before[0], before[1].epoch) == (generation, here.epoch):
            return
        self._spoken[number] = generation, here
        if before is not None and before[1].epoch == here.epoch:
            was, now = GENERATIONS[before[0]], GENERATIONS[generation]
            because = f"{named(self._names.sources[number])}: events are {now} from here on, and were {was}"
            group = Group("decode.generation", number)
            self._findings.add(group, (here.position or 0, -1), because, [before[1], here])


def dense(scene: Scene) -> None:
    """P1: stores of nothing, without tokens, with more tokens than their blocks have, or with fewer."""
    chunk, stores = scene.chunk, scene.stores()
    held = np.diff(chunk.first_block)[stores]
    size, ids = np.maximum(chunk.size[stores], 0), np.maximum(chunk.tokens[stores], 0)
    empty, bare = held == 0, (size == 0) | (ids == 0)
    scene.told_events("dense.empty", stores[empty], _oddity("stores of no blocks (masked or null blocks)"))
    placeholder = _oddity("stores without tokens or block size (placeholders)")
    scene.told_events("dense.placeholder", stores[~empty & bare], placeholder)
    long = _oddity("token lists longer than their blocks (some were skipped)")
    scene.told_events("dense.long", stores[~empty & ~bare & (ids > size * held)], long)
    short = _oddity("token lists shorter than their blocks")
    scene.told_events("dense.short", stores[~empty & ~bare & (ids < size * held)], short)


def _oddity(said: str) -> Say:
    def say(scene: Scene, event: int) -> Proof:
        return f"{scene.medium(event)}: {said}", [scene.witness(event)]

    return say


class Sizes:
    """P3: blocks of two sizes in one (source, medium, group). Remembers the first size of each."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], tuple[int, Witness]] = {}

    def look(self, scene: Scene) -> None:
        chunk, places = scene.chunk, max(len(scene.names.places.names), 1)
        stores = scene.stores()
        stores = stores[(chunk.size[stores] > 0) & (chunk.tokens[stores] > 0)]
        code = scene.event_sources()[stores] * places + chunk.place[stores]
        for one, at in first_sights(code):
            event = int(stores[at])
            self._sizes.setdefault(divmod(one, places), (int(chunk.size[event]), scene.witness(event)))
        codes, which = numbered(code)
        firsts = np.array([self._sizes[divmod(one, places)][0] for one in codes.tolist()], np.int64)
        scene.told_events("size.mixed", stores[chunk.size[stores] != firsts[which]], self._mixed)

    def _mixed(self, scene: Scene, event: int) -> Proof:
        chunk = scene.chunk
        first, here = self._sizes[int(chunk.source[chunk.batch[event]]), int(chunk.place[event])]
        said = f"blocks of {int(chunk.size[event])} tokens beside blocks of {first}"
        return f"{scene.where(event)}: {said}", [here, scene.witness(event)]


def fresh_contents(chunk: Chunk, salts: Names[str]) -> Hashes:
    """A digest of what each block row's store says of its block, for P2; 0 where it says nothing certain.

    Parent, LoRA, salt, block size: of dense stores, where each block's parent is the one before it.
    """
    counts = np.diff(chunk.first_block)
    dense_store = (chunk.kind == STORED) & (chunk.size > 0) & (chunk.tokens == chunk.size * counts)
    parent = np.zeros(len(chunk.hash), np.uint64)
    parent[1:] = chunk.hash[:-1]
    firsts = chunk.first_block[:-1][counts > 0]
    parent[firsts] = np.where(chunk.has_parent, chunk.parent, np.uint64(0))[counts > 0]
    terms = chunk.terms.astype(np.uint64)
    for event, salt in chunk.salts.items():
        terms[event] += np.uint64((salts.number(salt) + 1) << 32)
    digest = (parent ^ (terms[chunk.event] * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xFF51AFD7ED558CCD)
    digest ^= digest >> np.uint64(32)
    found: Hashes = np.where(dense_store[chunk.event], digest | np.uint64(1), np.uint64(0))
    return found
