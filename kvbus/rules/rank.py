"""T7: who speaks at an endpoint. One data-parallel rank does; several are legal where engines share it.

A rank that joins others in the middle of its numbers may be a late join, however odd: it is doubtful. It is
convicted where another rank, seen from its beginning, leaves out the very number it begins with: then both
count with one counter.
"""

from __future__ import annotations

from typing import Final

from kvbus.chunks import Chunks
from kvbus.findings import Findings, Group
from kvbus.log import SourceId
from kvbus.verdict import Witness

RANKS_MAX: Final = 4096
"""Endpoints whose ranks are remembered."""


class Ranks:
    """Remembers which ranks spoke at each endpoint (source, topic, instance), and the first batch of those
    whose beginning was not seen.
    """

    def __init__(self, names: Chunks, findings: Findings) -> None:
        self._names = names
        self._findings = findings
        self._ranks: dict[tuple[str, bytes, int], dict[int, Witness | None]] = {}

    def begins(self, number: int, here: Witness, *, at_beginning: bool) -> None:
        """A source begins an epoch with the batch ``here``, which is its first or only the first seen."""
        source = self._names.sources[number]
        if _endpoint(source) not in self._ranks and len(self._ranks) >= RANKS_MAX:
            return
        ranks = self._ranks.setdefault(_endpoint(source), {})
        others = sorted(ranks.keys() - {source.rank})
        ranks[source.rank] = None if at_beginning else here
        if not others:
            return
        said, other = _called(source.rank), _called(others[0])
        where = f"{source.source}: batches of {said} come from the endpoint of {other}"
        kind, how = "rank.doubtful", ", and its beginning was not seen"
        if at_beginning:
            kind, how = "rank.several", ", from their own beginning"
        self._findings.add(Group(kind, number), (here.position or 0, -1), where + how, [here])

    def skips(self, number: int, before: Witness, here: Witness) -> None:
        """A source leaves out the numbers between two batches of one epoch. Ranks that began between the two,
        and with these numbers, took them.
        """
        source = self._names.sources[number]
        ranks = self._ranks.get(_endpoint(source), {})
        if ranks.get(source.rank) is not None:
            return
        firsts = [first for first in ranks.values() if first is not None and _between(before, first, here)]
        free = before.seq + 1
        for first in sorted(firsts, key=lambda first: first.seq):
            if first.seq != free:
                break
            self._strange(number, before, first, here)
            free += 1

    def _strange(self, number: int, before: Witness, first: Witness, here: Witness) -> None:
        source = self._names.sources[number]
        said = f"{_called(_rank(first))} says batch {first.seq}, which {_called(source.rank)} leaves out"
        because = f"{source.source}: {said}; each rank has its own port and numbers"
        order = here.position or 0, -1
        self._findings.add(Group("rank.stranger", number), order, because, [before, first, here])


def _endpoint(source: SourceId) -> tuple[str, bytes, int]:
    return source.source, source.topic, source.instance


def _between(before: Witness, first: Witness, here: Witness) -> bool:
    return (before.position or 0) < (first.position or 0) < (here.position or 0) and first.seq < here.seq


def _rank(here: Witness) -> int:
    return -1 if here.rank is None else here.rank


def _called(rank: int) -> str:
    return "no rank" if rank < 0 else f"rank {rank}"
