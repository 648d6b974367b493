"""Rules that follow from counts: O1, O2, O5–O8, T2, P2, P4, L1. Each function reads a ``Scene`` and tells
what it found.

Where the counts are clouded a breach is told as doubtful, never as a violation on suspicion.
"""

from __future__ import annotations

import numpy as np

from kvbus.chunk import STORED, Bools, Ints
from kvbus.clouds import CERTAIN
from kvbus.findings import Proof
from kvbus.names import distinct
from kvbus.removals import GIVEN
from kvbus.rules.rooms import ENDLESS, Rooms
from kvbus.scene import Scene


def refcount(scene: Scene) -> None:
    """O1: a removal of a block whose count is zero; T2 and O8 where it is a block from a life before."""
    moves = scene.moves
    below = moves.in_time((moves.change < 0) & (moves.before == 0))
    if not len(below):
        return
    doubts = scene.doubts(below)
    certain = below[doubts == CERTAIN]
    scene.told("refcount.below", certain, _below)
    whys = dict(zip(below.tolist(), doubts.tolist(), strict=True))
    scene.told("refcount.doubtful", below[doubts != CERTAIN], lambda s, row: _doubtful(s, row, whys[row]))
    former = _of_former_life(scene, certain)
    cleared = np.array([scene.shelf(row).began is not None for row in former.tolist()], np.bool_)
    scene.told("clear.survivor", former[cleared], _survivor)
    scene.told("epoch.survivor", former[~cleared], _survivor)


def _below(scene: Scene, row: int) -> Proof:
    event = int(scene.moves.event[row])
    here, taken, shelf = scene.witness(event), scene.taken_before(row), scene.shelf(row)
    before, why = taken, "nothing had stored it"
    if taken is not None:
        why = "its last copy had been removed before and nothing stored it since"
    elif shelf.began is not None:
        before = scene.witness_at(shelf.began, shelf)
        why = "AllBlocksCleared had emptied the GPU and nothing stored it since"
    evidence = [here] if before is None or before == here else [before, here]
    block = int(scene.moves.hash[row])
    return f"{scene.who(event)}: block {block} is removed from {scene.where(event)}, but {why}", evidence


def _doubtful(scene: Scene, row: int, why: int) -> Proof:
    event = int(scene.moves.event[row])
    missed = f"the store may be in what was missed ({scene.sky.whys[why]})"
    return f"{scene.who(event)}: removed from {scene.where(event)}, and {missed}", [scene.witness(event)]


def _of_former_life(scene: Scene, rows: Ints) -> Ints:
    """Those of ``rows`` whose block was resident when the shelf before this one ended."""
    kept = []
    shelves = scene.moves.shelf[rows]
    for number in np.unique(shelves).tolist():
        former = scene.holdings.shelves.all[number].former
        if former is None:
            continue
        mine = rows[shelves == number]
        kept.append(mine[scene.holdings.held(former, scene.moves.hash[mine])])
    found = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    return found[np.argsort(scene.moves.time[found])]


def _survivor(scene: Scene, row: int) -> Proof:
    event, shelf = int(scene.moves.event[row]), scene.shelf(row)
    block, here = int(scene.moves.hash[row]), scene.witness(event)
    if shelf.began is not None:
        because = f"{scene.who(event)}: block {block} is removed after AllBlocksCleared had taken it"
        return because, [scene.witness_at(shelf.began, shelf), here]
    because = (
        f"{scene.who(event)}: block {block} is removed, which only epoch {shelf.former_epoch} stored: "
        "numbers began anew and the engine did not"
    )
    return because, [here]


def content(scene: Scene) -> None:
    """P2: a store says something else of a hash than the last store in that tier that said anything."""
    moves = scene.moves
    scene.told("content.differs", moves.in_time(moves.clash != -1), _differs)


def _differs(scene: Scene, row: int) -> Proof:
    event, moves = int(scene.moves.event[row]), scene.moves
    at = int(moves.clash[row])
    before = scene.witness(int(moves.event[at])) if at >= 0 else scene.told_earlier(row)
    said = f"block {int(moves.hash[row])} is stored in {scene.where(event)} with another content"
    because = f"{scene.who(event)}: {said} (parent, LoRA, salt or size) than before"
    return because, [before, scene.witness(event)]


def chain(scene: Scene) -> None:
    """O5: a hash twice in one store; a block that is its own parent."""
    moves, chunk = scene.moves, scene.chunk
    twice = np.zeros(len(moves.event), np.bool_)
    if len(twice):
        last = moves.put
        twice = (moves.change > 0) & (last >= 0) & (moves.event[last] == moves.event)
    scene.told("chain.twice", moves.in_time(twice), _twice)
    own = (chunk.hash == chunk.parent[chunk.event]) & chunk.has_parent[chunk.event]
    own &= chunk.kind[chunk.event] == STORED
    scene.told_events("chain.own_parent", np.unique(chunk.event[own]), _own_parent)


def _twice(scene: Scene, row: int) -> Proof:
    event = int(scene.moves.event[row])
    because = f"{scene.who(event)}: one store names block {int(scene.moves.hash[row])} more than once"
    return because, [scene.witness(event)]


def _own_parent(scene: Scene, event: int) -> Proof:
    because = f"{scene.who(event)}: block {int(scene.chunk.parent[event])} is stored as its own parent"
    return because, [scene.witness(event)]


def copies(scene: Scene) -> None:
    """O6, O7: stores of what is resident, and removals that leave copies."""
    moves = scene.moves
    again = moves.in_time((moves.change > 0) & (moves.before > 0))
    certain = scene.doubts(again) == CERTAIN
    scene.told("copies.again", again[certain], _again)
    scene.told("copies.doubtful", again[~certain], _again_perhaps)
    left = moves.in_time((moves.change < 0) & (moves.after > 0))
    certain = scene.doubts(left) == CERTAIN
    scene.told("remaining.copies", left[certain], _left)
    scene.told("remaining.doubtful", left[~certain], _left_perhaps)


def _again(scene: Scene, row: int) -> Proof:
    event, before = int(scene.moves.event[row]), scene.put_before(row)
    said = "blocks are stored again while resident: further copies, or prefix hits announced anew"
    here = scene.witness(event)
    return f"{scene.medium(event)}: {said}", [here] if before == here else [before, here]


def _left(scene: Scene, row: int) -> Proof:
    event = int(scene.moves.event[row])
    said = "blocks are removed while further copies stay: the block is still resident"
    return f"{scene.medium(event)}: {said}", [scene.witness(event)]


def _again_perhaps(scene: Scene, row: int) -> Proof:
    because, witnesses = _again(scene, row)
    return f"{because}; unless their removal was missed", witnesses


def _left_perhaps(scene: Scene, row: int) -> Proof:
    because, witnesses = _left(scene, row)
    return f"{because}; unless another removal was missed", witnesses


def at_once(scene: Scene, rooms: Rooms) -> None:
    """O2: a block that comes and goes in one drain, for no reason that is given, where nobody knows what
    fits. Where that is known, the count against it decides: one drain may hold several turns of a slot.
    """
    moves, chunk = scene.moves, scene.chunk
    if not len(moves.event):
        return
    put = moves.put
    batch = chunk.batch[moves.event]
    gone = (
        (moves.change < 0)
        & (moves.before == 1)
        & (put >= 0)
        & (batch[put] == batch)
        & (moves.before[put] == 0)
    )
    caused = [scene.names.reasons.number(reason) for reason in GIVEN]
    gone &= ~np.isin(chunk.reason[moves.event], caused)
    rows = moves.in_time(gone)
    scene.told("eviction.at_once", rows[_is_endless(scene, rooms, rows)], _at_once)


def _is_endless(scene: Scene, rooms: Rooms, rows: Ints) -> Bools:
    """Whether nobody knows what fits into the tier of each of ``rows``."""
    events = scene.moves.event[rows]
    sources, media = scene.event_sources()[events], scene.chunk.medium[events]
    endless = np.ones(len(rows), np.bool_)
    for medium in distinct(media).tolist():
        for source in distinct(sources[media == medium]).tolist():
            mine = (media == medium) & (sources == source)
            batches = scene.chunk.batch[events[mine]]
            most = rooms.of(source, scene.names.media.names[medium], scene.chunk, batches)
            endless[mine] = most == ENDLESS
    return endless


def _at_once(scene: Scene, row: int) -> Proof:
    event, moves = int(scene.moves.event[row]), scene.moves
    stored = scene.witness(int(moves.event[moves.put[row]]))
    said = f"block {int(moves.hash[row])} is stored in {scene.where(event)} and removed again in one batch"
    return f"{scene.who(event)}: {said}: whoever needed its room had to come after it", [
        stored,
        scene.witness(event),
    ]
