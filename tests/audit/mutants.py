"""Histories of real engines with one thing wrong, and where the evidence for it must be.

Each mutator takes a clean log and a seeded ``Random`` and gives the wrong log with the events an auditor
has to name, worked out here by a slow scan that shares nothing with kvbus's own counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from msgspec import Raw, Struct
from msgspec.structs import replace

from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    canonical_medium,
    token_count,
    token_list,
    tokens,
)
from kvbus.log import Loss, PositionedEntry, Received, SourceId, Stray

Log = list[PositionedEntry]


class Settings(Struct, frozen=True):
    """What an audit can be told beside the log."""

    capacities: dict[str, int] = {}
    engines: list[list[str]] = []


Place = tuple[int, int | None]
"""(seq, index of the event), or (seq, None) for the whole batch. The captures used here have one epoch."""


class Mutant(Struct, frozen=True):
    """``settings``: what the audit has to be told beside (capacities, engines); ``many``: it breaks more than
    one thing.
    """

    log: Log
    rule: str
    witnesses: list[Place]
    settings: Settings = Settings()
    many: bool = False


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
    return Mutant([*log[: index + 1], after, *log[index + 1 :]], "bytes", [(twice.seq, None)])


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


def changed_event(log: Log, place: tuple[int, int], event: Event) -> Log:
    """The log with one event replaced; ``place``: index in the log, index of the event."""
    entry = log[place[0]].entry
    assert isinstance(entry, Received)
    events = list(events_of(entry))
    events[place[1]] = event
    return with_events(log, place[0], events)


def inserted(log: Log, place: tuple[int, int], *new: Event) -> Log:
    """The log with events put in before the one at ``place``."""
    entry = log[place[0]].entry
    assert isinstance(entry, Received)
    events = list(events_of(entry))
    events[place[1] : place[1]] = new
    return with_events(log, place[0], events)


def stores_of(log: Log, medium: str = "GPU") -> Iterator[tuple[int, int, int, BlockStored, bool]]:
    """(index, seq, number, store, whether all its blocks are new) of dense stores in a medium."""
    for index, seq, number, event, held in steps(log):
        if isinstance(event, BlockStored) and event.block_hashes and canonical_medium(event.medium) == medium:
            size = event.block_size or 0
            if token_count(event.token_ids) == size * len(event.block_hashes) > 0:
                yield index, seq, number, event, all(not held[key_of(event, h)] for h in event.block_hashes)


def bridge_restart(log: Log, random: Random) -> Mutant:
    """Something between engine and log counts from 0 again; the engine's blocks live on."""
    found = []
    for index, seq, number, event, held in steps(log):
        if isinstance(event, AllBlocksCleared):
            break
        if isinstance(event, BlockRemoved) and len(event.block_hashes) == 1:
            found.append((index, seq, number, held[key_of(event, event.block_hashes[0])]))
    index, seq, number, _ = random.choice([place for place in found[len(found) // 2 :] if place[3] == 1])
    # The epoch begins at the batch of the removal, so nothing in it can have stored the block before.
    first, changed = None, list[PositionedEntry]()
    for at in log[index:]:
        assert isinstance(at.entry, Received)
        first = at.entry.seq if first is None else first
        entry = replace(at.entry, epoch=1, seq=at.entry.seq - first)
        changed.append(PositionedEntry(at.position, entry))
    earliest = next(
        n for n, event in enumerate(events_of_entry(log[index])) if isinstance(event, BlockRemoved)
    )
    del seq, number
    return Mutant([*log[:index], *changed], "epoch", [(0, earliest)], many=True)


def events_of_entry(at: PositionedEntry) -> list[Event]:
    assert isinstance(at.entry, Received)
    return events_of(at.entry)


def late_join(log: Log, random: Random) -> Mutant:
    """The subscriber came after the first batches."""
    index, first = random.choice(batches(log)[1:])
    return Mutant([log[0], *log[index:]], "beginning", [(first.seq, None)])


def lost(log: Log, random: Random, reason: str, rule: str) -> Mutant:
    index, gone = random.choice(batches(log)[1:-1])
    loss = Loss(gone.source, gone.epoch, gone.seq, gone.seq, reason, gone.received_ns)
    log = [*log[:index], PositionedEntry(log[index].position, loss), *log[index + 1 :]]
    return Mutant(log, rule, [(gone.seq - 1, None), (gone.seq + 1, None)])


def short_replay(log: Log, random: Random) -> Mutant:
    """A hole whose replay begins too late."""
    return lost(log, random, "too_old", "replay")


def torn_replay(log: Log, random: Random) -> Mutant:
    """A hole whose replay ended without its marker."""
    return lost(log, random, "replay_incomplete", "replay")


def burned_number(log: Log, random: Random) -> Mutant:
    """A number that complete replays lack."""
    return lost(log, random, "absent_from_replay", "burned")


def wrong_rank(log: Log, random: Random) -> Mutant:
    """A batch says that it is another rank's."""
    index, batch = random.choice(batches(log)[1:])
    entry = replace(batch, source=replace(batch.source, rank=batch.source.rank + 3))
    log = [*log[:index], PositionedEntry(log[index].position, entry), *log[index + 1 :]]
    return Mutant(log, "rank", [(batch.seq, None)])


def clock_back(log: Log, random: Random) -> Mutant:
    """A batch's own time is before that of its predecessor."""
    index, batch = random.choice(batches(log)[1:])
    assert isinstance(batch.batch, EventBatch)
    entry = replace(batch, batch=replace(batch.batch, ts=batch.batch.ts - 30.0))
    log = [*log[:index], PositionedEntry(log[index].position, entry), *log[index + 1 :]]
    return Mutant(log, "clock", [(batch.seq - 1, None), (batch.seq, None)])


def unreadable_event(log: Log, random: Random) -> Mutant:
    """An event is not an event."""
    index, batch = random.choice([(i, b) for i, b in batches(log) if events_of(b)])
    number = random.randrange(len(events_of(batch)))
    return Mutant(
        changed_event(log, (index, number), Undecodable("torn", Raw(b"\x07"))),
        "decode",
        [(batch.seq, number)],
    )


def unreadable_batch(log: Log, random: Random) -> Mutant:
    """A payload is no batch."""
    index, batch = random.choice(batches(log))
    entry = replace(batch, batch=Undecodable("torn", Raw(b"\xc1")))
    return Mutant(
        [*log[:index], PositionedEntry(log[index].position, entry), *log[index + 1 :]],
        "decode",
        [(batch.seq, None)],
    )


def levels(log: Log, medium: str = "GPU") -> Iterator[tuple[int, int, int, Event, int]]:
    """(index, seq, number, event, distinct blocks in a medium after it), by the slow way."""
    held: Counter[tuple[str, int | None, int]] = Counter()
    for index, seq, number, event, before in steps(log):
        held = Counter(before)
        if isinstance(event, AllBlocksCleared):
            held = Counter({k: n for k, n in held.items() if k[0] != "GPU"})
        elif isinstance(event, BlockStored):
            held.update(key_of(event, h) for h in event.block_hashes)
        elif isinstance(event, BlockRemoved):
            held.subtract(key_of(event, h) for h in event.block_hashes)
        yield index, seq, number, event, sum(1 for k, n in held.items() if n > 0 and k[0] == medium)


def late_victim(log: Log, random: Random) -> Mutant:
    """A tier is full, and the removal of a victim comes after the store that took its room."""
    log = log[: len(log) // 3]
    told = list(levels(log))
    most = max(level for *_, level in told)
    full = []
    for place, (index, seq, number, event, level) in enumerate(told):
        if level != most or not isinstance(event, BlockStored):
            continue
        freed = None
        for before, after in zip(
            told[max(0, place - 40) : place], told[max(1, place - 39) : place], strict=False
        ):
            if after[0] == index and isinstance(after[3], BlockRemoved) and after[4] < before[4]:
                freed = after[2]
        if freed is not None:
            full.append((index, seq, number, freed))
    index, seq, number, victim = random.choice(full)
    events = list(events_of_entry(log[index]))
    events.insert(number, events.pop(victim))
    return Mutant(
        with_events(log, index, events), "eviction", [(seq, number - 1)], Settings(capacities={"GPU": most})
    )


def evicted_at_once(log: Log, random: Random) -> Mutant:
    """A block is removed in the batch that stored it."""
    fresh = [s for s in stores_of(log) if s[4]]
    index, seq, number, store, _ = random.choice(fresh)
    events = list(events_of_entry(log[index]))
    events.append(BlockRemoved([store.block_hashes[-1]], store.medium, store.group_idx))
    return Mutant(with_events(log, index, events), "eviction", [(seq, number), (seq, len(events) - 1)])


def wrong_parent(log: Log, random: Random) -> Mutant:
    """A store names a parent that nobody has."""
    found = [s for s in stores_of(log) if s[4] and s[3].parent_block_hash is not None]
    index, seq, number, store, _ = random.choice(found)
    wrong = replace(store, parent_block_hash=random.getrandbits(64))
    return Mutant(changed_event(log, (index, number), wrong), "parent", [(seq, number)])


def twice_in_one(log: Log, random: Random) -> Mutant:
    """A store names its last block twice."""
    index, seq, number, store, _ = random.choice([s for s in stores_of(log) if s[4]])
    wrong = replace(store, block_hashes=[*store.block_hashes, store.block_hashes[-1]])
    return Mutant(changed_event(log, (index, number), wrong), "chain", [(seq, number)])


def own_parent(log: Log, random: Random) -> Mutant:
    """A block is its own parent."""
    index, seq, number, store, _ = random.choice(list(stores_of(log)))
    wrong = replace(store, parent_block_hash=store.block_hashes[0])
    return Mutant(changed_event(log, (index, number), wrong), "chain", [(seq, number)])


def stored_twice(log: Log, random: Random) -> Mutant:
    """A store is said twice (an engine that holds each block once)."""
    index, seq, number, store, _ = random.choice([s for s in stores_of(log) if s[4]])
    return Mutant(inserted(log, (index, number + 1), store), "copies", [(seq, number), (seq, number + 1)])


def copy_left(log: Log, random: Random) -> Mutant:
    """A store is said twice, so that the block's removal leaves a copy."""
    pairs = []
    last: dict[tuple[str, int | None, int], tuple[int, int, BlockStored]] = {}
    for index, seq, number, event, _ in steps(log):
        if isinstance(event, BlockStored):
            last |= {key_of(event, h): (index, number, event) for h in event.block_hashes}
        elif isinstance(event, BlockRemoved):
            for h in event.block_hashes:
                if (found := last.pop(key_of(event, h), None)) and found[0] < index:
                    pairs.append((found, seq, number, h))
    (index, number, store), seq, at, h = random.choice(pairs)
    # Only that block: others of the store would leave copies too, and earlier.
    twin = replace(store, block_hashes=[h], parent_block_hash=None, token_ids=tokens([]), block_size=0)
    return Mutant(inserted(log, (index, number + 1), twin), "remaining", [(seq, at)])


def clear_survivor(log: Log, random: Random) -> Mutant:
    """The same as a removal after a clear, for the rule of clears."""
    mutant = removal_after_clear(log, random)
    return replace(mutant, rule="clear")


def clear_storm(log: Log, random: Random) -> Mutant:
    """The engine says on every lookup that all is cleared."""
    clears = [(index, seq, n) for index, seq, n, e, _ in steps(log) if isinstance(e, AllBlocksCleared)]
    index, seq, n = random.choice(clears)
    log = inserted(log, (index, n), AllBlocksCleared(), AllBlocksCleared())
    return Mutant(log, "clear", [(seq, n), (seq, n + 2)])


def short_tokens(log: Log, random: Random) -> Mutant:
    """A store has fewer tokens than its blocks."""
    index, seq, number, store, _ = random.choice(list(stores_of(log)))
    wrong = replace(store, token_ids=tokens(token_list(store.token_ids)[:-1]))
    return Mutant(changed_event(log, (index, number), wrong), "dense", [(seq, number)])


def other_content(log: Log, random: Random) -> Mutant:
    """A resident block is stored again, of another LoRA."""
    single = [s for s in stores_of(log) if s[4] and len(s[3].block_hashes) == 1]
    index, seq, number, store, _ = random.choice(single)
    twin = replace(store, lora_name="somebody-else")
    return Mutant(inserted(log, (index, number + 1), twin), "content", [(seq, number), (seq, number + 1)])


def other_size(log: Log, random: Random) -> Mutant:
    """A store has blocks of another size."""
    found = list(stores_of(log))
    first_of: dict[int | None, Place] = {}
    for _, seq, number, store, _ in found:
        first_of.setdefault(store.group_idx, (seq, number))
    index, seq, number, store, _ = random.choice(found[1:])
    ids = token_list(store.token_ids) * 2
    wrong = replace(store, block_size=(store.block_size or 0) * 2, token_ids=tokens(ids))
    log = changed_event(log, (index, number), wrong)
    return Mutant(log, "size", [first_of[store.group_idx], (seq, number)])


def wrong_group(log: Log, random: Random) -> Mutant:
    """A removal names a group that has nothing."""
    removals = [s for s in steps(log) if isinstance(s[3], BlockRemoved)]
    index, seq, number, event, _ = random.choice(removals)
    assert isinstance(event, BlockRemoved)
    return Mutant(changed_event(log, (index, number), replace(event, group_idx=7)), "group", [(seq, number)])


def unresolvable(log: Log, random: Random) -> Mutant:
    """A lower tier stores, without tokens, a block nobody has shown."""
    index, batch = random.choice(batches(log))
    number = len(events_of(batch))
    bare = BlockStored([random.getrandbits(64)], None, tokens([]), 0, None, "CPU", group_idx=0)
    return Mutant(inserted(log, (index, number), bare), "resolvable", [(batch.seq, number)])


def never_removed(log: Log, random: Random) -> Mutant:
    """A tier forgets to say that blocks leave."""
    first = next((seq, n) for _, seq, n, e, _ in steps(log) if isinstance(e, BlockStored) and e.block_hashes)
    for index, batch in batches(log):
        log = with_events(log, index, [e for e in events_of(batch) if isinstance(e, BlockStored)])
    return Mutant(log, "lifetime", [first], Settings(capacities={"GPU": random.randint(8, 64)}))


def silent_tier(log: Log, random: Random) -> Mutant:
    """A tier that is there says nothing."""
    first = batches(log)[0][1].seq
    return Mutant(log, "silence", [(first, None)], Settings(capacities={"DISK": random.randint(1, 9)}))


def undemoted(log: Log, random: Random) -> Mutant:
    """There is a lower tier, and blocks leave the GPU without going there."""
    index, batch = random.choice(batches(log)[: len(log) // 2])
    number = len(events_of(batch))
    bare = BlockStored([random.getrandbits(64)], None, tokens([]), 0, None, "CPU", group_idx=0)
    log = inserted(log, (index, number), bare)
    for at, seq, n, event, held in steps(log):
        if (at, n) <= (index, number) or not isinstance(event, BlockRemoved):
            continue
        if any(held[key_of(event, h)] == 1 for h in event.block_hashes):
            return Mutant(log, "demotion", [(seq, n)])
    raise AssertionError("no block leaves the GPU")


def turned_tiers(log: Log, random: Random) -> Mutant:
    """A lower tier speaks before the GPU does."""
    found = {
        index: (seq, n)
        for index, seq, n, event, _ in reversed([(*step[:4], None) for step in steps(log)])
        if isinstance(event, BlockStored | BlockRemoved)
    }
    index = random.choice(sorted(found))
    seq, number = found[index]
    below = BlockStored([random.getrandbits(64)], None, tokens([]), 0, None, "CPU", group_idx=0)
    return Mutant(inserted(log, (index, number), below), "tier_order", [(seq, number), (seq, number + 1)])


def split_by_tier(log: Log) -> Log:
    """The GPU's share and the others' as two sources of one engine, drain by drain."""
    out: Log = []
    for index, batch in batches(log):
        assert isinstance(batch.batch, EventBatch)
        for name, gpu in (("gpu", True), ("cpu", False)):
            share = [
                e for e in events_of(batch) if gpu == (canonical_medium(getattr(e, "medium", None)) == "GPU")
            ]
            source = SourceId(name, batch.source.topic, batch.source.rank)
            entry = replace(batch, source=source, batch=replace(batch.batch, events=share))
            out.append(PositionedEntry(2 * index + (not gpu), entry))
    return out


def foreign_tier(log: Log, random: Random) -> Mutant:
    """Of two sources of an engine, one speaks for the other's tier."""
    split = split_by_tier(log)
    mine = [i for i, b in batches(split) if b.source.source == "gpu" and events_of(b)]
    index = random.choice(mine[1:])
    first = next((b.seq, 0) for _, b in batches(split) if b.source.source == "gpu" and events_of(b))
    stolen = events_of_entry(split[index])[0]
    seq = batches(split)[index][1].seq
    log = inserted(split, (index + 1, 0), stolen)
    return Mutant(log, "owner", [first, (seq, 0)], Settings(engines=[["gpu", "cpu"]]))


def turned_sources(log: Log, random: Random) -> Mutant:
    """The secondary's share of a drain stands before the primary's."""
    split = split_by_tier(log)
    index = 2 * random.randrange(1, len(split) // 2)
    split[index], split[index + 1] = split[index + 1], split[index]
    seq = batches(split)[index][1].seq
    return Mutant(split, "tier_order", [(seq, None), (seq, None)], Settings(engines=[["gpu", "cpu"]]))


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
    bridge_restart,
    late_join,
    short_replay,
    torn_replay,
    burned_number,
    wrong_rank,
    clock_back,
    unreadable_event,
    unreadable_batch,
    late_victim,
    evicted_at_once,
    wrong_parent,
    twice_in_one,
    own_parent,
    clear_survivor,
    clear_storm,
    short_tokens,
    other_content,
    other_size,
    wrong_group,
    unresolvable,
    never_removed,
    silent_tier,
    undemoted,
    turned_tiers,
    foreign_tier,
    turned_sources,
]
"""What each breaks is named in what it returns; all of them work on a vLLM stream."""

UNIQUE_MUTATORS: list[Callable[[Log, Random], Mutant]] = [stored_twice, copy_left]
"""On a stream of an engine that holds each block once (SGLang)."""
