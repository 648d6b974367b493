"""The life of the blocks that findings are about, around the events that prove them.

A finding names events, not blocks; an event may name many. Told are the blocks that its sentence names, if
one of its events names them too; else those that all its events name. A story is bounded: what lies far from
the witnesses is left out, and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.life import Step, lives
from kvbus.log import LogReader, Received
from kvbus.verdict import Finding, Report, Witness

STORIES_MAX: Final = 100
"""Findings whose stories are told."""
BLOCKS_MAX: Final = 2
"""Blocks of one finding."""
BEFORE: Final = 6
AFTER: Final = 2
BETWEEN_MAX: Final = 12
"""Steps before the first witness, after the last, and in between."""

_NUMBER = re.compile(r"\d{1,20}")


class Story(Struct, frozen=True):
    """A block's life around a finding's witnesses; ``earlier`` and ``later`` steps are left out, and
    ``between`` in the middle.
    """

    rule: str
    finding: Finding
    block: int
    steps: list[Step]
    earlier: int
    between: int
    later: int


def stories(log: LogReader, report: Report) -> list[Story]:
    """The stories of a report's violations and of what made it unknown, as far as they are about blocks."""
    told = [(rule.rule, finding) for rule in report.rules for finding in rule.violations]
    told += [
        (rule.rule, finding)
        for rule in report.rules
        for finding in rule.information
        if finding.level == "unknown"
    ]
    about = [(rule, finding, blocks_of(log, finding)) for rule, finding in told[:STORIES_MAX]]
    followed = lives(log, sorted({block for *_, blocks in about for block in blocks}))
    return [
        _story(rule, finding, block, followed.steps(block))
        for rule, finding, blocks in about
        for block in blocks
    ]


def blocks_of(log: LogReader, finding: Finding) -> list[int]:
    """Which blocks a finding is about; none where its events name none, or too many in common."""
    named = [set(_hashes(log, witness)) for witness in finding.witnesses if witness.event is not None]
    every = set[int]().union(*named)
    said = [number for text in _NUMBER.findall(finding.because) if (number := int(text)) in every]
    if said:
        return list(dict.fromkeys(said))[:BLOCKS_MAX]
    common = sorted(set.intersection(*named)) if named else []
    return common if len(common) <= BLOCKS_MAX else []


def _hashes(log: LogReader, witness: Witness) -> Iterator[int]:
    """The blocks that an event names, its parent among them."""
    if witness.position is None or witness.event is None:
        return
    for at in log.entries(witness.position, witness.position):
        if isinstance(at.entry, Received) and isinstance(at.entry.batch, EventBatch):
            event = at.entry.batch.events[witness.event]
            if isinstance(event, BlockStored | BlockRemoved):
                yield from event.block_hashes
            if isinstance(event, BlockStored) and event.parent_block_hash is not None:
                yield event.parent_block_hash


def _story(rule: str, finding: Finding, block: int, steps: Sequence[Step]) -> Story:
    positions = [witness.position for witness in finding.witnesses if witness.position is not None]
    first, last = _span(steps, positions)
    start, end = max(first - BEFORE, 0), min(last + 1 + AFTER, len(steps))
    kept, left_out = _without_middle(steps[start:end])
    return Story(rule, finding, block, kept, start, left_out, len(steps) - end)


def _span(steps: Sequence[Step], positions: Iterable[int]) -> tuple[int, int]:
    """The first and the last step that stands in a witness's batch; the whole life where none does."""
    wanted = set(positions)
    found = [n for n, step in enumerate(steps) if step.position in wanted and step.seq is not None]
    return (found[0], found[-1]) if found else (0, max(len(steps) - 1, 0))


def _without_middle(steps: Sequence[Step]) -> tuple[list[Step], int]:
    most = BEFORE + BETWEEN_MAX + AFTER
    if len(steps) <= most:
        return list(steps), 0
    half = most // 2
    return [*steps[:half], *steps[-half:]], len(steps) - 2 * half
