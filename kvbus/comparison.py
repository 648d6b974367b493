"""Two tellings held side by side: are they the same order, and where do they part.

Engine by engine, each with its like. Where they part is exact: the first unit (``kvbus/tolerance``) that is
not the same, whatever blocks are called. What is different in all, ``kvbus/difference`` counts. Nothing here
reads or prints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct, structs

from kvbus.difference import Difference, Named, difference, same_blocks
from kvbus.matching import Who, matched
from kvbus.telling import Telling, Told, mentioned
from kvbus.tolerance import Unit, Units, levelled


class Parting(Struct, frozen=True):
    """Where two tellings part. ``same``: events before it; ``a``, ``b``: the first that differ (an event, or
    a batch), empty where that side has come to its end. ``rest_a`` and ``rest_b`` begin with them.
    """

    same: int
    a: Sequence[Told]
    b: Sequence[Told]
    rest_a: Sequence[Told]
    rest_b: Sequence[Told]


class Pair(Struct, frozen=True):
    """One engine on both sides. ``a``, ``b``: its events with nothing that is ignored left in; one of them
    is empty where only the other log has the engine. ``same_block``: B's blocks by A's, as far as they are
    the same.
    """

    media: Sequence[str]
    rank: int
    a: Sequence[Told]
    b: Sequence[Told]
    parting: Parting | None
    difference: Difference | None
    same_block: Mapping[int, int]


class Comparison(Struct, frozen=True):
    """Every engine of both logs, in A's order, B's own at the end."""

    a: Telling
    b: Telling
    pairs: Sequence[Pair]

    @property
    def same(self) -> bool:
        return all(pair.parting is None for pair in self.pairs)


def compare(a: Telling, b: Telling, ignore: Collection[str] = ()) -> Comparison:
    """``a`` against ``b``; ``ignore``: names of ``TOLERANCES``, checked (``tolerances``)."""
    sides = _Side(a, ignore), _Side(b, ignore)
    pairs = matched(*([side.who(engine) for engine in side.engines] for side in sides))
    return Comparison(a, b, [_pair(*sides, n, m, ignore) for n, m in pairs])


class _Side:
    """A telling, engine by engine; what is ignored is left out."""

    def __init__(self, telling: Telling, ignore: Collection[str]) -> None:
        self.telling = telling
        apart = "interleaving" in ignore
        self.engines = [[n] for n in range(len(telling.voices))] if apart else telling.engines()
        self._media = telling.media()
        of = {voice: n for n, engine in enumerate(self.engines) for voice in engine}
        self.events: list[list[Told]] = [[] for _ in self.engines]
        for event in levelled(telling.events, ignore):
            self.events[of[event.voice]].append(event)

    def who(self, voices: Sequence[int]) -> Who:
        return frozenset().union(*(self._media[voice] for voice in voices)), self.telling.voices[voices[0]]

    def voices(self, engine: int | None) -> Sequence[int]:
        return () if engine is None else self.engines[engine]

    def told(self, engine: int | None) -> Sequence[Told]:
        return () if engine is None else self.events[engine]


def _pair(a: _Side, b: _Side, n: int | None, m: int | None, ignore: Collection[str]) -> Pair:
    """One engine of A and one of B; None: the other side has none like it."""
    voices = matched([a.who([voice]) for voice in a.voices(n)], [b.who([voice]) for voice in b.voices(m)])
    common_a = {a.voices(n)[i]: number for number, (i, _) in enumerate(voices) if i is not None}
    common_b = {b.voices(m)[j]: number for number, (_, j) in enumerate(voices) if j is not None}
    units = Units(ignore, common_a), Units(ignore, common_b)
    parting, up_to = _parting(*units, a.told(n), b.told(m))
    media, first = b.who(b.voices(m)) if n is None else a.who(a.voices(n))
    found = Pair(sorted(media), first.rank, a.told(n), b.told(m), parting, None, up_to)
    if parting is None:
        return found
    # From the last that is the same on: whether the next one shares its batch is part of the difference.
    rest_a, rest_b = (side[max(0, parting.same - 1) :] for side in (found.a, found.b))
    same_block = same_blocks(rest_a, rest_b, up_to, by_hash=a.telling.is_log and b.telling.is_log)
    from_a, from_b = Named(rest_a, common_a, same_block), Named(rest_b, common_b, None)
    return structs.replace(found, difference=difference(from_a, from_b, ignore), same_block=same_block)


def _parting(
    units_a: Units, units_b: Units, events_a: Sequence[Told], events_b: Sequence[Told]
) -> tuple[Parting | None, Mapping[int, int]]:
    """Where two series part, and which blocks were the same until then."""
    same = 0
    numbers_a: Mapping[int, int] = {}
    walk: Iterator[tuple[Unit | None, Unit | None]] = zip_longest(units_a.of(events_a), units_b.of(events_b))
    for a, b in walk:
        if a is None or b is None or a.key != b.key:
            of_a, of_b = a.events if a else (), b.events if b else ()
            seen = {block for event in events_a[:same] for block in mentioned(event)}
            numbers_a = {block: number for block, number in units_a.numbers.items() if block in seen}
            seen = {block for event in events_b[:same] for block in mentioned(event)}
            numbers_b = {block: number for block, number in units_b.numbers.items() if block in seen}
            parting = Parting(same, of_a, of_b, events_a[same:], events_b[same:])
            return parting, _by_number(numbers_a, numbers_b)
        same += len(a.events)
    return None, {}


def _by_number(numbers_a: Mapping[int, int], numbers_b: Mapping[int, int]) -> dict[int, int]:
    of_b: dict[int, list[int]] = defaultdict(list)
    for block, number in reversed(list(numbers_b.items())):
        of_b[number].append(block)
    return {block: of_b[number].pop() for block, number in numbers_a.items() if of_b.get(number)}
