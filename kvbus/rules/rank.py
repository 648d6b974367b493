"""T7: who speaks at an endpoint. One data-parallel rank does; several are legal where engines share it."""

from __future__ import annotations

from typing import Final

from kvbus.chunks import Chunks
from kvbus.findings import Findings, Group
from kvbus.verdict import Witness

RANKS_MAX: Final = 4096
"""Endpoints whose ranks are remembered."""


class Ranks:
    """Remembers which ranks spoke at each endpoint (source, topic, instance)."""

    def __init__(self, names: Chunks, findings: Findings) -> None:
        self._names = names
        self._findings = findings
        self._ranks: dict[tuple[str, bytes, int], set[int]] = {}

    def begins(self, number: int, here: Witness, *, at_beginning: bool) -> None:
        """A source begins an epoch with the batch ``here``. A rank that joins others on their endpoint, and
        not at its own beginning, is not who it says.
        """
        source = self._names.sources[number]
        endpoint = (source.source, source.topic, source.instance)
        if endpoint not in self._ranks and len(self._ranks) >= RANKS_MAX:
            return
        ranks = self._ranks.setdefault(endpoint, set())
        others = sorted(ranks - {source.rank})
        ranks.add(source.rank)
        if not others:
            return
        said, other = _called(source.rank), _called(others[0])
        where = f"{source.source}: batches of {said} come from the endpoint of {other}"
        kind, how = "rank.stranger", "; each rank has its own port and numbers"
        if at_beginning:
            kind, how = "rank.several", ", from their own beginning"
        self._findings.add(Group(kind, number), (here.position or 0, -1), where + how, [here])


def _called(rank: int) -> str:
    return "no rank" if rank < 0 else f"rank {rank}"
