"""What rules found, by kind and by whom it is about: all of it counted, the first of each kept with its
evidence.

What a finding counts as (violation, unknown, warning, information) is decided last, by the profile of the
stream it was found in: which engine speaks may show only later. A flood costs a number each. Nothing here
judges.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kvbus.verdict import EXAMPLES, Finding, Level, Witness

GROUPS_MAX: Final = 1024
"""Groups that keep examples: those found first in the log. Findings of others are counted."""

Proof = tuple[str, list[Witness]]
"""Because, and the fewest events that show it."""

Order = tuple[int, int]
"""(batch, event) as a log counts them, -1 for the batch as a whole: findings are shown in this order."""

EVENT_MAX: Final = 1 << 32
"""No event of a batch has such an index: what comes behind all of them."""


class Group(NamedTuple):
    """What findings are about: the source by number (-1: the log), and what sets them apart from others."""

    kind: str
    source: int
    apart: Hashable = None

    @property
    def rule(self) -> str:
        return self.kind.partition(".")[0]


class _Found:
    """How many findings a group has, and the first ``limit`` of them."""

    __slots__ = ("count", "examples", "limit")

    def __init__(self, limit: int, count: int = 0, examples: Iterable[tuple[Order, Proof, int]] = ()) -> None:
        self.limit = limit
        self.count = count
        self.examples = list(examples)

    @property
    def is_full(self) -> bool:
        return len(self.examples) >= self.limit


class Findings:
    """Findings by group; those of a group come in log order. ``limit``: examples each keeps."""

    def __init__(self, limit: int = EXAMPLES) -> None:
        self._limit = limit
        self._groups: dict[Group, _Found] = {}
        self._keeping: list[tuple[Order, Group]] = []

    def add(
        self, group: Group, order: Order, because: str, witnesses: list[Witness], *, count: int = 1
    ) -> None:
        """Count a finding; equal ones in a row are one with a count."""
        found = self._groups.get(group) or self._begin(group, order)
        found.count += count
        if found.examples and found.examples[-1][1] == (because, witnesses):
            last = found.examples[-1]
            found.examples[-1] = (*last[:2], last[2] + count)
        elif not found.is_full:
            found.examples.append((order, (because, witnesses), count))

    def flood(self, group: Group, total: int, describe: Callable[[int], tuple[Order, Proof]]) -> None:
        """Count ``total`` findings in log order; the first ones are described while there is room."""
        for n in range(total):
            found = self._groups.get(group)
            if found is not None and found.is_full:
                found.count += total - n
                return
            order, (because, witnesses) = describe(n)
            self.add(group, order, because, witnesses)

    def _begin(self, group: Group, order: Order) -> _Found:
        """A new group, whose first finding stands at ``order``; the last in the log may have to make room."""
        self._groups[group] = _Found(self._limit)
        insort(self._keeping, (order, group), key=_place)
        if len(self._keeping) > GROUPS_MAX:
            _, last = self._keeping.pop()
            self._groups[last] = _Found(0, self._groups[last].count)
        return self._groups[group]

    def listed(
        self, level: Callable[[Group], Level], rule: str
    ) -> Mapping[Level, list[tuple[Order, Finding]]]:
        """Those of a rule by level, in log order: each violation for itself, of everything else a group's
        first with its count.
        """
        told: dict[Level, list[tuple[Order, Finding]]] = {"violation": [], "unknown": [], "warning": []}
        told["information"] = []
        for group, found in self._groups.items():
            at = level(group)
            if group.rule != rule or at == "off":
                continue
            told[at] += _singly(found, at) if at == "violation" else _together(found, at)
        for findings in told.values():
            findings.sort(key=lambda item: (item[0], item[1].because))
        return told

    def totals(self) -> Iterator[tuple[Group, int]]:
        """Every group with its count."""
        return ((group, found.count) for group, found in self._groups.items())

    def copy(self) -> Findings:
        twin = Findings(self._limit)
        twin._groups = {group: _Found(f.limit, f.count, f.examples) for group, f in self._groups.items()}
        twin._keeping = list(self._keeping)
        return twin


def _place(first: tuple[Order, Group]) -> tuple[Order, str, str]:
    """Where a group stands among the others, whatever number its source has."""
    order, group = first
    return order, group.kind, str(group.apart)


def _singly(found: _Found, level: Level) -> Iterator[tuple[Order, Finding]]:
    for order, (because, witnesses), count in found.examples:
        yield order, Finding(because, witnesses, count, level)


def _together(found: _Found, level: Level) -> Iterator[tuple[Order, Finding]]:
    for order, (because, witnesses), _ in found.examples[:1]:
        yield order, Finding(because, witnesses, found.count, level)
