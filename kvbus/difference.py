"""What one series of events has and another has not, and what stands elsewhere: counted, the first named.

Events are equal when they say the same of the same blocks. Blocks of both sides are taken for the same where
they were the same up to the parting, where they have one hash, where they stand behind the same blocks, else
where they have the same life, in order of first sight. In order is the longest series of equal events that
both sides have; what else both have is reordered. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct, structs

from kvbus.telling import Told

EXAMPLES: Final = 20
"""Events listed as missing, extra or reordered; all are counted."""

NEAR_MAX: Final = 16
"""Equal events of the other side that are tried as the partner of one."""

Life = list[tuple[str, str, int]]
Key = tuple[Any, ...]


class Difference(Struct, frozen=True):
    """What one side has and the other has not, from the parting on.

    ``reordered``: events that both have, and that stand elsewhere among the others; ``rebatched``: events
    that stand where they should, in another batch. Of ``missing`` (only A has them), ``extra`` (only B) and
    ``moved`` (of A) the first ``EXAMPLES`` are there.
    """

    missing_count: int
    extra_count: int
    reordered: int
    rebatched: int
    missing: Sequence[Told]
    extra: Sequence[Told]
    moved: Sequence[Told]


class Named(Struct, frozen=True):
    """One side: its events from the parting on; by what number each voice is known to both, and by what hash
    of the other side each block (None: this is that other side).
    """

    events: Sequence[Told]
    voices: Mapping[int, int]
    blocks: Mapping[int, int] | None


def same_blocks(
    a: Sequence[Told], b: Sequence[Told], up_to: Mapping[int, int], *, by_hash: bool
) -> dict[int, int]:
    """B's block by A's. ``up_to``: those that were the same before the parting."""
    same = dict(up_to)
    taken = set(same.values())
    left_a = {block: life for block, life in _lives(a).items() if block not in same}
    left_b = {block: life for block, life in _lives(b).items() if block not in taken}
    if by_hash:
        for block in [block for block in left_a if block in left_b]:
            same[block] = block
            del left_a[block], left_b[block]
    codes: dict[Key, int] = {}
    from_a, from_b = _lineages(a, same, codes), _lineages(b, {block: block for block in same.values()}, codes)
    for part in (
        lambda lineage, life: (lineage, tuple(life)),
        lambda lineage, _: (lineage,),
        lambda _, life: tuple(life),
        lambda _, life: tuple(life[:1]),
    ):
        parts_a = {block: part(from_a[block], life) for block, life in left_a.items()}
        parts_b = {block: part(from_b[block], life) for block, life in left_b.items()}
        for block, other in _paired(parts_a, parts_b).items():
            same[block] = other
            del left_a[block], left_b[other]
    return same


def _paired(parts_a: Mapping[int, Key], parts_b: Mapping[int, Key]) -> dict[int, int]:
    """Blocks of both sides that have an equal part, in order of first sight."""
    of_b: dict[Key, list[int]] = defaultdict(list)
    for block in reversed(list(parts_b)):
        of_b[parts_b[block]].append(block)
    return {block: of_b[part].pop() for block, part in parts_a.items() if of_b.get(part)}


def _lives(events: Iterable[Told]) -> dict[int, Life]:
    """What is said of each block, in order of first sight; of one that is only named as a parent, nothing."""
    lives: dict[int, Life] = {}
    for event in events:
        if event.parent is not None:
            lives.setdefault(event.parent, [])
        for block in event.blocks:
            lives.setdefault(block, []).append((event.what, event.medium, event.group))
    return lives


def _lineages(events: Iterable[Told], known: Mapping[int, int], codes: dict[Key, int]) -> dict[int, int]:
    """Where each block comes from, as a number: the blocks that it was first stored behind, down to one that
    is the same on both sides (``known``: by what hash), and the shape of the events that stored them.
    """
    found: dict[int, int] = {}

    def code(*key: Any) -> int:
        return codes.setdefault(key, len(codes))

    for event in events:
        above = -1
        if event.parent is not None:
            above = found.setdefault(event.parent, code("same", known.get(event.parent)))
        shape: Key = (event.what, event.medium, event.group, len(event.blocks), event.tokens)
        for block in event.blocks:
            own = code("same", known[block]) if block in known else code(above, *shape)
            above, shape = found.setdefault(block, own), ()
    return found


def difference(a: Named, b: Named, ignore: Collection[str]) -> Difference:
    """What differs between the events of both sides; ``ignore``: names of ``TOLERANCES``."""
    keys_a, keys_b = _keys(a, ignore), _keys(b, ignore)
    batchwise = "reorder-within-batch" in ignore
    in_order = _in_order(
        keys_a,
        keys_b,
        [event.batch for event in a.events] if batchwise else list(range(len(keys_a))),
        [event.batch for event in b.events] if batchwise else list(range(len(keys_b))),
    )
    missing, extra = Counter(keys_a), Counter(keys_b)
    missing.subtract(keys_b)
    extra.subtract(keys_a)
    missed, moved = _loose(keys_a, {n for n, _ in in_order}, +missing)
    added, _ = _loose(keys_b, {m for _, m in in_order}, +extra)
    return Difference(
        len(missed),
        len(added),
        len(moved),
        0 if "batching" in ignore else _rebatched(a.events, b.events, in_order),
        [a.events[n] for n in missed[:EXAMPLES]],
        [b.events[m] for m in added[:EXAMPLES]],
        [a.events[n] for n in moved[:EXAMPLES]],
    )


def _keys(side: Named, ignore: Collection[str]) -> list[Key]:
    """What each event says, of which blocks: the same for equal events of both sides."""
    names: dict[int, int] = {}
    if side.blocks is not None:
        names = {block: -1 - n for n, block in enumerate(_lives(side.events))}
        names.update(side.blocks)
    keys: list[Key] = []
    for event in side.events:
        blocks = [names.get(block, block) for block in event.blocks]
        if "reorder-within-event" in ignore:
            blocks.sort()
        parent = None if event.parent is None else names.get(event.parent, event.parent)
        said = structs.astuple(event)[8:]
        where = side.voices[event.voice], event.what, event.medium, event.group
        keys.append((*where, tuple(blocks), parent, *said))
    return keys


def _in_order(
    keys_a: Sequence[Key], keys_b: Sequence[Key], ranks_a: Sequence[int], ranks_b: Sequence[int]
) -> list[tuple[int, int]]:
    """The longest series of pairs of equal events whose ranks rise on both sides (where ranks are shared,
    they may stay), among ``NEAR_MAX`` partners tried of each event.
    """
    shared = len(set(ranks_a)) < len(ranks_a) or len(set(ranks_b)) < len(ranks_b)
    fits = bisect_right if shared else bisect_left
    links: list[tuple[int, int, int]] = []
    tops: list[int] = []
    ends: list[int] = []
    for n, m in _partners(keys_a, keys_b, ranks_a, ranks_b, singly=shared):
        at = fits(tops, ranks_b[m])
        links.append((n, m, ends[at - 1] if at else -1))
        tops[at : at + 1] = [ranks_b[m]]
        ends[at : at + 1] = [len(links) - 1]
    found, link = [], ends[-1] if ends else -1
    while link != -1:
        n, m, link = links[link]
        found.append((n, m))
    return found[::-1]


def _partners(
    keys_a: Sequence[Key],
    keys_b: Sequence[Key],
    ranks_a: Sequence[int],
    ranks_b: Sequence[int],
    *,
    singly: bool,
) -> list[tuple[int, int]]:
    """Equal events of both sides, by A's rank; of one event the last partner first, so that a rising series
    takes one of them. ``singly``: the n-th of a kind has the n-th as its only one.
    """
    places: dict[Key, list[int]] = defaultdict(list)
    for m, key in enumerate(keys_b):
        places[key].append(m)
    used: Counter[Key] = Counter()
    found: list[tuple[int, int]] = []
    for n, key in enumerate(keys_a):
        near, nth = places.get(key, []), used[key]
        used[key] += 1
        first = nth if singly else max(0, min(nth - NEAR_MAX // 2, len(near) - NEAR_MAX))
        found += [(n, m) for m in reversed(near[first : first + (1 if singly else NEAR_MAX)])]
    if singly:
        found.sort(key=lambda pair: (ranks_a[pair[0]], ranks_b[pair[1]]))
    return found


def _loose(
    keys: Sequence[Key], in_order: set[int], surplus: Mapping[Key, int]
) -> tuple[list[int], list[int]]:
    """The events that are not in the common order: those that the other side lacks, and the others."""
    left, lacking, others = dict(surplus), list[int](), list[int]()
    for n in reversed(range(len(keys))):
        if n in in_order:
            continue
        if left.get(keys[n], 0) > 0:
            left[keys[n]] -= 1
            lacking.append(n)
        else:
            others.append(n)
    return lacking[::-1], others[::-1]


def _rebatched(a: Sequence[Told], b: Sequence[Told], in_order: Sequence[tuple[int, int]]) -> int:
    """Neighbours in the common order that share a batch on one side only."""
    return sum(
        (a[n].batch == a[n_before].batch) != (b[m].batch == b[m_before].batch)
        for (n_before, m_before), (n, m) in pairwise(in_order)
    )
