"""A comparison in words: where two logs part, with what came before and after, and what is different in all.

The same words serve the command, its JSON and the messages of failed tests. Text and plain objects only;
nothing here compares or prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kvbus.baseline import said
from kvbus.calls import Calls
from kvbus.comparison import Comparison, Pair, Parting
from kvbus.difference import Difference
from kvbus.telling import Telling, Told, mentioned

CONTEXT: Final = 3
"""Events shown before and after the first ones that differ."""

LIVES_MAX: Final = 2
LIFE_EVENTS_MAX: Final = 6
"""Blocks whose life is told, and events of a life."""


def lines(found: Comparison) -> Iterator[str]:
    """The comparison for people."""
    a, b = found.a, found.b
    if found.same:
        yield f"SAME: {len(a.events):,} events of {a.name} and {len(b.events):,} of {b.name} are in one order"
        return
    yield f"DIFFERENT: A is {a.name}, B is {b.name}"
    for pair in found.pairs:
        if pair.parting is not None and pair.difference is not None:
            yield from _pair_lines(_Names(found, pair), pair.parting, pair.difference)
        else:
            yield f"  {_label(pair)}: {len(pair.a):,} events, in one order"


class _Names:
    """What blocks are called in a comparison: A's names; those that only B has come after them."""

    def __init__(self, found: Comparison, pair: Pair) -> None:
        self.found, self.pair = found, pair
        self.calls_a = Calls()
        for event in pair.a:
            self.calls_a.meet(event)
        of_b = {other: self.calls_a.name(block) for block, other in pair.same_block.items()}
        for block in dict.fromkeys(block for event in pair.b for block in mentioned(event)):
            if block not in of_b:
                of_b[block] = self.calls_a.name(-1 - block)  # no hash of A's: a name behind all of A's
        self.calls_b = Calls(of_b)

    def a(self, event: Told) -> str:
        return said(event, self.calls_a)

    def b(self, event: Told) -> str:
        return said(event, self.calls_b)


def _pair_lines(names: _Names, parting: Parting, difference: Difference) -> Iterator[str]:
    pair = names.pair
    yield f"  {_label(pair)}: {_parted(pair, parting)}"
    for event in pair.a[max(0, parting.same - CONTEXT) : parting.same]:
        yield f"      = {names.a(event)}"
    yield from _sides(names, parting)
    yield from _lives(names, parting)
    yield f"    in all: {_total(difference)}"
    yield from _examples(names, difference)


def _sides(names: _Names, parting: Parting) -> Iterator[str]:
    """What each log says where they part, and then."""
    pair, found = names.pair, names.found
    alike = [names.a(event) for event in parting.a] == [names.b(event) for event in parting.b]
    for side, telling, differing, rest, word in (
        ("A", found.a, parting.a, parting.rest_a, names.a),
        ("B", found.b, parting.b, parting.rest_b, names.b),
    ):
        for event in differing or ():
            where = _place(event, telling) + (_batch(pair, parting, event, side) if alike else "")
            yield f"    {side} > {word(event)}   ({where})"
        if not differing:
            yield f"    {side} > ends here"
        for event in rest[len(differing) : len(differing) + CONTEXT]:
            yield f"    {side}   {word(event)}"


def _examples(names: _Names, difference: Difference) -> Iterator[str]:
    """A few events of each way to differ."""
    a, b = names.found.a, names.found.b
    for what, events, telling, word in (
        ("missing", difference.missing, a, names.a),
        ("extra", difference.extra, b, names.b),
        ("reordered", difference.moved, a, names.a),
    ):
        for event in islice(events, CONTEXT):
            yield f"      {what}: {word(event)}   ({_place(event, telling)})"


def _label(pair: Pair) -> str:
    """An engine by its media and rank."""
    media = "+".join(pair.media) or "no medium"
    return media + (f" rank {pair.rank}" if pair.rank >= 0 else "")


def _place(event: Told, telling: Telling) -> str:
    """Where an event stands, in words that other commands take."""
    at = event.where
    if at.line:
        return f"line {at.line}"
    return f"epoch {at.epoch} seq {at.seq} event {at.event} position {at.position}" + (
        f" of {telling.voices[event.voice].told_as}" if len(telling.voices) > 1 else ""
    )


def _parted(pair: Pair, parting: Parting) -> str:
    if not pair.a or not pair.b:
        return f"only {'A' if pair.a else 'B'} has it, {len(pair.a or pair.b):,} events"
    return f"the first {parting.same:,} events are the same, then they part"


def _batch(pair: Pair, parting: Parting, event: Told, side: str) -> str:
    """Says that it begins a batch, or does not, where that is all there is to see."""
    if len(parting.a) != 1 or len(parting.b) != 1 or not parting.same:
        return ""
    before = (pair.a if side == "A" else pair.b)[parting.same - 1]
    return ", in the same batch as the event before" if event.batch == before.batch else ", in a new batch"


def _total(difference: Difference) -> str:
    """The counts, in words."""
    return (
        f"{difference.missing_count:,} missing (only A has them), {difference.extra_count:,} extra (only B), "
        f"{difference.reordered:,} reordered, {difference.rebatched:,} in another batch"
    )


def _lives(names: _Names, parting: Parting) -> Iterator[str]:
    """The life of the blocks that the first differing events are about, on both sides."""
    pair = names.pair
    first = [block for event in parting.a[:1] for block in event.blocks]
    others = {other: block for block, other in pair.same_block.items()}
    first += [others[block] for event in parting.b[:1] for block in event.blocks if block in others]
    for block in list(dict.fromkeys(first))[:LIVES_MAX]:
        yield f"    {names.calls_a.name(block)} in A: {_life(pair.a, block)}"
        if block in pair.same_block:
            yield f"    {names.calls_a.name(block)} in B: {_life(pair.b, pair.same_block[block])}"


def _life(events: Sequence[Told], block: int) -> str:
    """A block's life in a line."""
    life = [event for event in events if block in event.blocks]
    told = [f"{e.what} {e.medium} ({_short(e)}{', ' + e.reason if e.reason else ''})" for e in life]
    more = len(told) - LIFE_EVENTS_MAX
    return ", ".join(told[:LIFE_EVENTS_MAX]) + (f", and {more} events more" if more > 0 else "")


def _short(event: Told) -> str:
    return f"line {event.where.line}" if event.where.line else f"seq {event.where.seq}"


def as_object(found: Comparison) -> dict[str, Any]:
    """The object that ``kvbus diff --json`` prints: docs/regression.md names its keys."""
    return {
        "same": found.same,
        "a": found.a.name,
        "b": found.b.name,
        "engines": [_pair_object(found, pair) for pair in found.pairs],
    }


def _pair_object(found: Comparison, pair: Pair) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "media": list(pair.media),
        "rank": None if pair.rank < 0 else pair.rank,
        "same": pair.parting is None,
        "events_a": len(pair.a),
        "events_b": len(pair.b),
    }
    if pair.parting is None or pair.difference is None:
        return told
    names, parting, counts = _Names(found, pair), pair.parting, pair.difference
    before = pair.a[max(0, parting.same - CONTEXT) : parting.same]
    told |= {"same_events": parting.same, "missing": counts.missing_count, "extra": counts.extra_count}
    told |= {"reordered": counts.reordered, "rebatched": counts.rebatched}
    told["before"] = [_event_object(event, names.a(event), found.a) for event in before]
    for name, events in (("part_a", parting.a), ("missing_events", counts.missing), ("moved", counts.moved)):
        told[name] = [_event_object(event, names.a(event), found.a) for event in events]
    for name, events in (("part_b", parting.b), ("extra_events", counts.extra)):
        told[name] = [_event_object(event, names.b(event), found.b) for event in events]
    return told


def _event_object(event: Told, words: str, telling: Telling) -> Mapping[str, Any]:
    at = event.where
    if at.line:
        return {"said": words, "line": at.line}
    where = {"epoch": at.epoch, "seq": at.seq, "event": at.event, "position": at.position}
    return {"said": words, "source": telling.voices[event.voice].told_as, **where}
