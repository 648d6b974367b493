"""Changes made without knowing what they break: how much of what can go wrong shows at all.

Each takes a clean log and a seeded ``Random``. ``WHY`` says of each what of it cannot be seen on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from msgspec.structs import replace

from kvbus.events import BlockRemoved, BlockStored, Event, token_list, tokens
from tests.audit.mutants import Log, batches, changed_event, events_of, events_of_entry, with_events

Blind = Callable[[Log, Random], Log]


def some_event(log: Log, random: Random) -> tuple[int, int, BlockStored | BlockRemoved]:
    """(index in the log, index of the event, event), at random."""
    while True:
        index, batch = random.choice(batches(log))
        events = list(enumerate(events_of(batch)))
        named = [(n, e) for n, e in events if isinstance(e, BlockStored | BlockRemoved) and e.block_hashes]
        if named:
            return index, *random.choice(named)


def without(log: Log, index: int, number: int) -> Log:
    events = list(events_of_entry(log[index]))
    del events[number]
    return with_events(log, index, events)


def drop_store(log: Log, random: Random) -> Log:
    """A store is not there."""
    index, number, event = some_event(log, random)
    while not isinstance(event, BlockStored):
        index, number, event = some_event(log, random)
    return without(log, index, number)


def drop_removal(log: Log, random: Random) -> Log:
    """A removal is not there."""
    index, number, event = some_event(log, random)
    while not isinstance(event, BlockRemoved):
        index, number, event = some_event(log, random)
    return without(log, index, number)


def double_event(log: Log, random: Random) -> Log:
    """An event stands twice, one after the other."""
    index, number, event = some_event(log, random)
    events = list(events_of_entry(log[index]))
    events.insert(number, event)
    return with_events(log, index, events)


def swap_neighbours(log: Log, random: Random) -> Log:
    """Two events of a batch, one after the other, have changed places."""
    index, number, _ = some_event(log, random)
    events = list(events_of_entry(log[index]))
    other = number - 1 if number else min(1, len(events) - 1)
    events[number], events[other] = events[other], events[number]
    return with_events(log, index, events)


def move_later(log: Log, random: Random) -> Log:
    """An event stands up to five batches too late."""
    index, number, event = some_event(log, random)
    later = min(index + random.randint(1, 5), len(log) - 1)
    log = without(log, index, number)
    return with_events(log, later, [event, *events_of_entry(log[later])])


def other_medium(log: Log, random: Random) -> Log:
    """An event speaks of another tier."""
    index, number, event = some_event(log, random)
    return changed_event(log, (index, number), replace(event, medium="CPU"))


def other_hash(log: Log, random: Random) -> Log:
    """A block of an event has another hash."""
    index, number, event = some_event(log, random)
    hashes = list(event.block_hashes)
    hashes[random.randrange(len(hashes))] = random.getrandbits(64)
    return changed_event(log, (index, number), replace(event, block_hashes=hashes))


def other_tokens(log: Log, random: Random) -> Log:
    """A store has other tokens, as many as before."""
    index, number, event = some_event(log, random)
    while not isinstance(event, BlockStored):
        index, number, event = some_event(log, random)
    ids = [token + 1 for token in token_list(event.token_ids)]
    changed: Event = replace(event, token_ids=tokens(ids))
    return changed_event(log, (index, number), changed)


BLIND: Final[dict[Blind, str]] = {
    drop_store: "a store whose block is never removed, nor a parent again, is missed by nobody",
    drop_removal: "a block that stays is seen when the tier is full beyond its capacity, if it ever is",
    double_event: "a second store is a legal copy where engines hold copies (vLLM)",
    swap_neighbours: "events of different blocks, with room for both, may come in either order",
    move_later: "a removal that comes later harms nobody while there is room, a store until it is used",
    other_medium: "a store to a tier that removes nothing yet, whose block nobody removes from its own",
    other_hash: "a store under another hash is seen when the block is removed or a child comes, if ever",
    other_tokens: "all of it: a log's columns hold how many tokens there are, not which",
}
"""Each with what of it cannot be seen."""
