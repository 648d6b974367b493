"""What a test expects of an order, held against what was said: nothing, or what is wrong and where.

Functions of told events. An expectation that had nothing to judge is not met: it would prove nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final

from msgspec import Struct

from kvbus.baseline import said
from kvbus.calls import Calls
from kvbus.errors import KvbusError
from kvbus.events import canonical_medium
from kvbus.foreign_events import Key, Keys
from kvbus.telling import CLEARED, REMOVED, STORED, Told

STORY_LINES_MAX: Final = 60
AROUND: Final = 8
"""Lines of a story; with more events, those so near to what it is about."""

Step = tuple[str] | tuple[str, Key] | tuple[str, Key, str]
"""What is expected to happen: ``stored`` or ``removed``, the block's key, and, if it matters, the medium; or
``cleared``."""


class StepError(KvbusError):
    """What a test expects is not put so that it can be judged."""


class Fault(Struct, frozen=True):
    """What is wrong, and at which events (indices)."""

    problem: str
    at: Sequence[int] = ()


def fault_of_order(events: Sequence[Told], steps: Sequence[Step], keys: Keys) -> Fault | None:
    """Steps that happen one after the other, others between them. Raises ``StepError``."""
    if not steps:
        return Fault("no step was named: nothing to judge")
    at, marks = (-1, -1), list[int]()
    for n, step in enumerate(steps):
        places = list(_places(events, step, keys))
        after = next((place for place in places if place > at), None)
        if after is not None:
            at = after
            marks.append(at[0])
        elif places:
            last = places[-1][0]
            drain = f"last in drain {events[last].where.seq}"
            problem = f"{words(step)} did not happen after {words(steps[n - 1])}, but before it, {drain}"
            return Fault(problem, [*marks, last])
        else:
            return Fault(f"{words(step)} never happened", marks)
    return None


def words(step: Step) -> str:
    key = "" if len(step) == 1 else f" {step[1]!r}"
    return f"{step[0]}{key}" + (f" in {step[2]}" if len(step) == 3 else "")


def _places(events: Sequence[Told], step: Step, keys: Keys) -> Iterator[tuple[int, int]]:
    """Where a step is fulfilled: (event, place of the block in it)."""
    what, *rest = step if isinstance(step, tuple) else [None]
    if what not in (STORED, REMOVED, CLEARED) or (not rest) != (what == CLEARED):
        raise StepError(
            f"{step!r} is nothing that can happen",
            next_step='Write ("stored", key), ("removed", key, "CPU") or ("cleared",).',
        )
    block, group = keys.block(rest[0]) if rest else (None, None)
    medium = canonical_medium(str(rest[1])) if len(rest) == 2 else None
    for n, event in enumerate(events):
        if event.what != what or medium not in (None, event.medium) or group not in (None, event.group):
            continue
        if block is None:
            yield n, 0
        yield from ((n, place) for place, its in enumerate(event.blocks) if its == block)


def fault_of_tiers(events: Sequence[Told], tiers: Sequence[str]) -> Fault | None:
    """Events of these tiers, in each drain in this order. A tier is a medium or an ownership. Raises
    ``StepError`` for what is no name of one.
    """
    if wrong := [tier for tier in tiers if not isinstance(tier, str)]:
        raise StepError(
            f"{wrong[0]!r} is no name of a tier", next_step='Name them one by one: "GPU", "CPU", "STORAGE".'
        )
    ranked: list[tuple[int, int, int]] = []
    for n, event in enumerate(events):
        rank = _rank(event, tiers)
        if rank is None:
            return Fault(f"this is said by none of {', '.join(tiers)}", [n])
        ranked.append((event.batch, rank, n))
    compared = False
    for _, drain in groupby(ranked, key=itemgetter(0)):
        for (_, rank, n), (_, next_rank, m) in pairwise(drain):
            compared |= rank != next_rank
            if next_rank < rank:
                return Fault(f"{tiers[next_rank]} speaks after {tiers[rank]} in one drain", [n, m])
    return None if compared else Fault("no drain has events of two of these tiers: nothing to judge")


def _rank(event: Told, tiers: Sequence[str]) -> int | None:
    medium = "GPU" if event.what == CLEARED else event.medium
    owned = (n for n, tier in enumerate(tiers) if tier == event.owner and event.owner)
    return next(owned, next((n for n, tier in enumerate(tiers) if canonical_medium(tier) == medium), None))


def capacities(
    capacity: int | Mapping[str, int] | None, medium: str | None, events: Sequence[Told]
) -> dict[str, int]:
    """Blocks that fit, by canonical medium. Raises ``StepError`` where it is not said of which medium, or no
    number of blocks.
    """
    if capacity is None:
        return {}
    said = list(capacity.values()) if isinstance(capacity, Mapping) else [capacity]
    if any(isinstance(most, bool) or not isinstance(most, int) or most < 1 for most in said):
        raise StepError(
            f"capacity={capacity!r} is no number of blocks",
            next_step='Give a whole number from 1 up, or one for each medium: {"CPU": 2}.',
        )
    if not isinstance(capacity, int):
        return {canonical_medium(name): most for name, most in capacity.items()}
    spoken = sorted({event.medium for event in events if event.what == STORED})
    if medium is None and len(spoken) > 1:
        raise StepError(
            f"which of {', '.join(spoken)} has room for {capacity} blocks?",
            next_step='Say medium="CPU", or capacity={"CPU": 2}.',
        )
    return {canonical_medium(medium) if medium else (*spoken, "any tier")[0]: capacity}


def fault_of_silence(events: Sequence[Told], media: Collection[str]) -> Fault | None:
    """Nothing was stored in one of these media, or, if there are none, anywhere."""
    spoken = {event.medium for event in events if event.what == STORED}
    silent = [name for name in media if name not in spoken] or ([] if spoken else ["any tier"])
    return Fault(f"nothing was stored in {', '.join(silent)}: nothing to judge") if silent else None


def story(fault: Fault, events: Sequence[Told], names: Mapping[int, str]) -> str:
    """What is wrong, and under it what was said, drain by drain, with marks at what it is about."""
    calls, shown = Calls(names), list[str]()
    for n, event in enumerate(events):
        sign = "|" if not n or events[n - 1].batch != event.batch else ":"
        shown.append(f"  {'>' if n in fault.at else ' '} {event.where.seq:>4} {sign} {said(event, calls)}")
    near = range(len(shown))
    if len(shown) > STORY_LINES_MAX and fault.at:
        first, last = min(fault.at) - AROUND, max(fault.at) + AROUND
        near = range(max(0, first), min(last + 1, len(shown)))
        if len(near) > STORY_LINES_MAX:
            near = range(max(near[0], near[-1] - STORY_LINES_MAX + 1), near[-1] + 1)
    near = near[:STORY_LINES_MAX]
    gap = [f"  … of {len(shown):,} events"] if len(near) < len(shown) else []
    return "\n".join([fault.problem, "what was said, drain by drain:", *(shown[n] for n in near), *gap])
