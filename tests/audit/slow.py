"""The rules once more, event by event with dicts and sets: slow, and short enough to be seen to be right.

Shares nothing with the columns. It counts findings by kind; where each stands is the matter of the mutants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Unrecognized,
    canonical_medium,
    token_count,
)
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray

Place = tuple[str, int | None]
JUDGED = {
    *("refcount.below", "refcount.doubtful", "eviction.over", "eviction.doubtful", "eviction.at_once"),
    *("parent.absent", "parent.below", "parent.doubtful", "chain.twice", "chain.own_parent"),
    *("copies.again", "remaining.copies", "clear.survivor", "epoch.survivor", "clear.storm", "clear.others"),
    *("copies.doubtful", "remaining.doubtful"),
    *("content.differs", "group.unstored", "resolvable.unseen", "demotion.lost", "tier_order.turned"),
    *("dense.empty", "dense.placeholder", "decode.payload", "decode.event", "decode.tag"),
}
"""The kinds of findings that are counted here."""


class Life:
    """One medium and group of a source between two resets."""

    def __init__(self, former: set[int], *, cleared: bool) -> None:
        self.former = former
        self.cleared = cleared
        self.copies: Counter[int] = Counter()
        self.content: dict[int, object] = {}
        self.stored: dict[int, tuple[int, int]] = {}
        self.seen: set[int] = set()
        self.perhaps: set[int] = set()
        """Resident by the count, but a removal since the last store may have taken the last copy."""


class Engine:
    """One source."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.next_seq: int | None = None
        self.clouded = {"GPU": False, "other": False}
        self.lives: dict[Place, Life] = {}
        self.ended: dict[Place, set[int]] = {}
        self.cleared = False
        self.ever_stored: set[Place] = set()
        self.ever_removed: set[Place] = set()
        self.empty_clears = 0
        self.pairs: set[tuple[str, str]] = set()

    def begin(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.next_seq, self.cleared = epoch, None, False
            self.clouded, self.empty_clears = {"GPU": False, "other": False}, 0
            for place in list(self.lives):
                self.end(place)

    def end(self, place: Place) -> None:
        self.ended[place] = {h for h, n in self.lives.pop(place).copies.items() if n > 0}

    def cloud(self) -> None:
        self.clouded = {"GPU": True, "other": True}

    def is_clouded(self, medium: str) -> bool:
        return self.clouded["GPU" if medium == "GPU" else "other"]

    def life(self, place: Place) -> Life:
        if place not in self.lives:
            cleared = self.cleared and place[0] == "GPU"
            self.lives[place] = Life(self.ended.pop(place, set()), cleared=cleared)
        return self.lives[place]

    def copies(self, place: Place, block: int) -> int:
        return self.lives[place].copies[block] if place in self.lives else 0

    def level(self, medium: str) -> int:
        return sum(n > 0 for p, life in self.lives.items() if p[0] == medium for n in life.copies.values())

    def sure_level(self, medium: str) -> int:
        return self.level(medium) - sum(len(life.perhaps) for p, life in self.lives.items() if p[0] == medium)


def slow_counts(entries: list[PositionedEntry], capacities: Mapping[str, int]) -> dict[str, int]:
    """Findings by kind, of the kinds in ``JUDGED``."""
    engines: dict[SourceId, Engine] = {}
    found: Counter[str] = Counter()
    for at in entries:
        entry = at.entry
        engine = engines.setdefault(entry.source, Engine())
        if isinstance(entry, Stray):
            if entry.reason == "conflict" and entry.epoch == engine.epoch:
                engine.cloud()
            continue
        engine.begin(entry.epoch)
        if isinstance(entry, Loss):
            if engine.next_seq is not None and entry.last_seq >= engine.next_seq:
                engine.cloud()
                engine.next_seq = entry.last_seq + 1
        elif isinstance(entry, Received):
            if entry.seq != (engine.next_seq or 0):
                engine.cloud()
            engine.next_seq = entry.seq + 1
            if isinstance(entry.batch, EventBatch):
                judge(engine, at.position, entry.batch.events, capacities, found)
            else:
                found["decode.payload"] += 1
                engine.cloud()
        else:
            assert isinstance(entry, EpochBegan)
    return {kind: n for kind, n in found.items() if n}


def judge(
    engine: Engine, batch: int, events: list[Event], capacities: Mapping[str, int], found: Counter[str]
) -> None:
    left: list[int] = []
    spoke: str | None = None
    for number, event in enumerate(events):
        if isinstance(event, AllBlocksCleared):
            clear(engine, found)
        elif isinstance(event, BlockStored):
            stored(engine, (batch, number), event, capacities, found)
        elif isinstance(event, BlockRemoved):
            if canonical_medium(event.medium) == "GPU" and any(p[0] != "GPU" for p in engine.ever_stored):
                left += event.block_hashes
            removed(engine, (batch, number), event, capacities, found)
        else:
            found["decode.tag" if isinstance(event, Unrecognized) else "decode.event"] += 1
            engine.cloud()
        if isinstance(event, BlockStored | BlockRemoved):
            medium = canonical_medium(event.medium)
            found["tier_order.turned"] += spoke is not None and turned(engine, spoke, medium)
            spoke = medium
    for block in left:
        found["demotion.lost"] += not any(
            engine.copies(place, block) for place in engine.lives if place[0] != "GPU"
        )


def turned(engine: Engine, before: str, medium: str) -> bool:
    ranks = {"GPU": 0, "CPU": 1}
    first, second = ranks.get(before, 2), ranks.get(medium, 2)
    if first != second or first != 2 or before == medium:
        return second < first
    if (medium, before) in engine.pairs:
        return True
    engine.pairs.add((before, medium))
    return False


def clear(engine: Engine, found: Counter[str]) -> None:
    engine.empty_clears = 1 if engine.clouded["GPU"] else engine.empty_clears + 1
    found["clear.storm"] += engine.empty_clears >= 3
    found["clear.others"] += any(place[0] != "GPU" for place in engine.ever_stored)
    engine.cleared, engine.clouded["GPU"] = True, False
    for place in [place for place in engine.lives if place[0] == "GPU"]:
        engine.end(place)


def stored(
    engine: Engine,
    here: tuple[int, int],
    event: BlockStored,
    capacities: Mapping[str, int],
    found: Counter[str],
) -> None:
    medium, hashes, parent = canonical_medium(event.medium), event.block_hashes, event.parent_block_hash
    place, doubt = (medium, event.group_idx), engine.is_clouded(medium)
    gpu = ("GPU", event.group_idx)
    bare = not event.block_size or not token_count(event.token_ids)
    engine.ever_stored.add(place)
    if medium == "GPU":
        engine.empty_clears = 0
    if not hashes:
        found["dense.empty"] += 1
        return
    found["dense.placeholder"] += bare
    if parent and not engine.copies(place, parent) and not engine.copies(gpu, parent):
        certain = "parent.absent" if medium == "GPU" else "parent.below"
        found["parent.doubtful" if doubt else certain] += 1
    seen = {h for p in (place, gpu) if p in engine.lives for h in engine.lives[p].seen}
    found["resolvable.unseen"] += bare and not doubt and not set(hashes) <= seen
    found["chain.own_parent"] += parent in hashes
    found["chain.twice"] += len(hashes) - len(set(hashes))
    life = engine.life(place)
    for n, block in enumerate(hashes):
        content = (event.block_size, parent if n == 0 else hashes[n - 1])
        if not bare:
            found["content.differs"] += life.content.get(block, content) != content
            life.content[block] = content
        found["copies.doubtful" if doubt else "copies.again"] += life.copies[block] > 0
        if not life.copies[block]:
            life.stored[block] = here
        else:
            life.stored.pop(block, None)
        comes = not life.copies[block] or block in life.perhaps
        life.copies[block] += 1
        life.seen.add(block)
        life.perhaps.discard(block)
        if medium in capacities:
            too_many = capacities[medium] + 1
            over = comes and engine.sure_level(medium) == too_many and not doubt
            found["eviction.over"] += over
            found["eviction.doubtful"] += (
                life.copies[block] == 1 and engine.level(medium) == too_many and not over
            )


def removed(
    engine: Engine,
    here: tuple[int, int],
    event: BlockRemoved,
    capacities: Mapping[str, int],
    found: Counter[str],
) -> None:
    medium = canonical_medium(event.medium)
    place, doubt = (medium, event.group_idx), engine.is_clouded(medium)
    if place not in engine.ever_stored | engine.ever_removed and not doubt:
        found["group.unstored"] += any(p[0] == medium for p in engine.ever_stored)
    engine.ever_removed.add(place)
    for block in event.block_hashes:
        life = engine.life(place)
        if not life.copies[block]:
            found["refcount.doubtful" if doubt else "refcount.below"] += 1
            if block in life.former and not doubt:
                found["clear.survivor" if life.cleared else "epoch.survivor"] += 1
            continue
        life.copies[block] -= 1
        found["remaining.doubtful" if doubt else "remaining.copies"] += life.copies[block] > 0
        if life.copies[block]:
            life.perhaps.add(block)
            continue
        life.perhaps.discard(block)
        if block in life.stored and life.stored[block][0] == here[0] and medium not in capacities:
            found["eviction.at_once"] += event.reason not in ("evicted", "deleted", "corrupt", "reset")
