"""Histories of real engines with one thing wrong, and where the evidence for it must be.

Each mutator takes a clean log and a seeded ``Random`` and gives the wrong log with the events an auditor
has to name, worked out here by a slow scan that shares nothing with kvbus's own counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, canonical_medium
from kvbus.log import PositionedEntry, Received, Stray

Log = list[PositionedEntry]
Place = tuple[int, int | None]
"""(seq, index of the event), or (seq, None) for the whole batch. The captures used here have one epoch."""


class Mutant(Struct, frozen=True):
    log: Log
    rule: str
    witnesses: list[Place]


def batches(log: Log) -> list[tuple[int, Received]]:
    """(index in the log, batch) of every batch."""
    return [(i, at.entry) for i, at in enumerate(log) if isinstance(at.entry, Received)]


def events_of(received: Received) -> list[Event]:
    assert isinstance(received.batch, EventBatch)
    return received.batch.events


def with_events(log: Log, index: int, changed: list[Event]) -> Log:
    at = log[index]
    assert isinstance(at.entry, Received)
    assert isinstance(at.entry.batch, EventBatch)
    entry = replace(at.entry, batch=replace(at.entry.batch, events=changed))
    return [*log[:index], PositionedEntry(at.position, entry), *log[index + 1 :]]


def key_of(event: BlockStored | BlockRemoved, block_hash: int) -> tuple[str, int | None, int]:
    return canonical_medium(event.medium), event.group_idx, block_hash


def steps(log: Log) -> Iterator[tuple[int, int, int, Event, Counter[tuple[str, int | None, int]]]]:
    """(index in the log, seq, index of the event, event, copies before it), by the slow way."""
    held: Counter[tuple[str, int | None, int]] = Counter()
    for index, received in batches(log):
        for number, event in enumerate(events_of(received)):
            yield index, received.seq, number, event, held
            if isinstance(event, AllBlocksCleared):
                for key in [k for k in held if k[0] == "GPU"]:
                    del held[key]
            elif isinstance(event, BlockStored):
                held.update(key_of(event, h) for h in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                held.subtract(key_of(event, h) for h in event.block_hashes)


def drop_batch(log: Log, random: Random) -> Mutant:
    """A batch is gone from the log, and no Loss says so."""
    all_batches = batches(log)
    index, gone = random.choice(all_batches[1:-1])
    return Mutant(log[:index] + log[index + 1 :], "sequence", [(gone.seq - 1, None), (gone.seq + 1, None)])


def double_batch(log: Log, random: Random) -> Mutant:
    """A batch stands in the log twice."""
    index, twice = random.choice(batches(log))
    return Mutant([*log[: index + 1], *log[index:]], "sequence", [(twice.seq, None), (twice.seq, None)])


def late_batch(log: Log, random: Random) -> Mutant:
    """A batch stands a few places too late; it comes after a higher number."""
    all_batches = batches(log)
    at = random.randrange(1, len(all_batches) - 6)
    (index, late), (behind, ahead) = all_batches[at], all_batches[at + random.randint(1, 5)]
    moved = [*log[:index], *log[index + 1 : behind + 1], log[index], *log[behind + 1 :]]
    return Mutant(moved, "sequence", [(ahead.seq, None), (late.seq, None)])


def conflicting_batch(log: Log, random: Random) -> Mutant:
    """A number was heard a second time with other bytes."""
    index, twice = random.choice(batches(log))
    stray = Stray(twice.source, twice.epoch, twice.seq, b"\x90", twice.received_ns, "conflict")
    after = PositionedEntry(log[index].position + 1, stray)
    return Mutant([*log[: index + 1], after, *log[index + 1 :]], "sequence", [(twice.seq, None)])


def forge_removal(log: Log, random: Random) -> Mutant:
    """A block is removed that nobody ever stored, before any clear: only the removal bears witness."""
    clears = [i for i, _, _, event, _ in steps(log) if isinstance(event, AllBlocksCleared)]
    early = [(i, b) for i, b in batches(log) if i < min(clears, default=len(log))]
    index, received = random.choice(early)
    changed = list(events_of(received))
    at = random.randint(0, len(changed))
    changed.insert(at, BlockRemoved([random.getrandbits(64)], "GPU", 0))
    return Mutant(with_events(log, index, changed), "refcount", [(received.seq, at)])


def double_removal(log: Log, random: Random) -> Mutant:
    """The removal of a block's only copy is said twice, the second time somewhere later in the same batch."""
    single = [
        (index, seq, number, event)
        for index, seq, number, event, held in steps(log)
        if isinstance(event, BlockRemoved)
        and len(event.block_hashes) == 1
        and held[key_of(event, event.block_hashes[0])] == 1
        and not stored_later_in_batch(log, index, number, event)
    ]
    index, seq, number, event = random.choice(single)
    received = log[index].entry
    assert isinstance(received, Received)
    changed = list(events_of(received))
    again = random.randint(number + 1, len(changed))
    changed.insert(again, event)
    return Mutant(with_events(log, index, changed), "refcount", [(seq, number), (seq, again)])


def stored_later_in_batch(log: Log, index: int, number: int, removed: BlockRemoved) -> bool:
    received = log[index].entry
    assert isinstance(received, Received)
    (block_hash,) = removed.block_hashes
    later = events_of(received)[number + 1 :]
    return any(
        isinstance(event, AllBlocksCleared)
        or (isinstance(event, BlockStored) and block_hash in event.block_hashes)
        for event in later
    )


def swap_store_and_removal(log: Log, random: Random) -> Mutant:
    """A block's first store and its removal, batches apart, have changed places."""
    stored: dict[tuple[str, int | None, int], tuple[int, int, int, BlockStored]] = {}
    pairs = []
    cleared = False
    for index, seq, number, event, held in steps(log):
        cleared = cleared or isinstance(event, AllBlocksCleared)
        if isinstance(event, BlockStored) and not cleared:
            for block_hash in event.block_hashes:
                key = key_of(event, block_hash)
                if key in stored or len(event.block_hashes) > 1:
                    stored[key] = (-1, -1, -1, event)  # stored before, or with others: not this one
                else:
                    stored[key] = (index, seq, number, event)
        elif isinstance(event, BlockRemoved) and len(event.block_hashes) == 1:
            key = key_of(event, event.block_hashes[0])
            first = stored.get(key)
            if first and -1 < first[0] < index and held[key] == 1:
                pairs.append((first, (index, number, event)))
    (first_index, first_seq, first_number, store), (index, number, removal) = random.choice(pairs)
    for place, at, event in ((first_index, first_number, removal), (index, number, store)):
        received = log[place].entry
        assert isinstance(received, Received)
        changed = list(events_of(received))
        changed[at] = event
        log = with_events(log, place, changed)
    return Mutant(log, "refcount", [(first_seq, first_number)])


def removal_after_clear(log: Log, random: Random) -> Mutant:
    """A block that AllBlocksCleared has taken is removed once more afterwards."""
    cleared = [
        (index, seq, number, [k for k, n in held.items() if n > 0 and k[0] == "GPU"])
        for index, seq, number, event, held in steps(log)
        if isinstance(event, AllBlocksCleared)
    ]
    index, seq, number, held = random.choice([c for c in cleared if c[3]])
    _, group, block_hash = random.choice(held)
    received = log[index].entry
    assert isinstance(received, Received)
    changed = list(events_of(received))
    changed.insert(number + 1, BlockRemoved([block_hash], "GPU", group))
    return Mutant(with_events(log, index, changed), "refcount", [(seq, number), (seq, number + 1)])


def hidden_drop(log: Log, random: Random) -> Mutant:
    """A store is lost before its batch gets a number: no hole shows, only the block's removal does."""
    pairs = []
    stored: dict[tuple[str, int | None, int], tuple[int, int]] = {}
    cleared = False
    for index, seq, number, event, held in steps(log):
        cleared = cleared or isinstance(event, AllBlocksCleared)
        if isinstance(event, BlockStored) and not cleared:
            for block_hash in event.block_hashes:
                key = key_of(event, block_hash)
                fresh = key not in stored and len(event.block_hashes) == 1
                stored[key] = (index, number) if fresh else (-1, -1)
        elif isinstance(event, BlockRemoved) and len(event.block_hashes) == 1 and not cleared:
            key = key_of(event, event.block_hashes[0])
            first = stored.get(key)
            if first and first[0] >= 0 and first[0] != index and held[key] == 1:
                pairs.append((first, (seq, number)))
    (index, number), removal = random.choice(pairs)
    received = log[index].entry
    assert isinstance(received, Received)
    changed = list(events_of(received))
    del changed[number]
    return Mutant(with_events(log, index, changed), "refcount", [removal])


MUTATORS: list[Callable[[Log, Random], Mutant]] = [
    drop_batch,
    double_batch,
    late_batch,
    conflicting_batch,
    forge_removal,
    double_removal,
    swap_store_and_removal,
    removal_after_clear,
    hidden_drop,
]
