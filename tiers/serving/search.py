"""Which blocks of a request the tiers can supply: the longest run from the first one on, found step by step.

Every block found is pinned at once, since what a later lookup of the same step brings up may evict it.
Looking goes on behind a block that is not ready yet, so that everything that has to come up is on its way
early. Pins only grow, so this comes to an end; a CPU tier without more room cuts the run short there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiers.keys import OffloadKey
from tiers.manager import LookupResult
from tiers.request import ReqContext
from tiers.specs import CPULoadStoreSpec, block_ids
from tiers.tiering.manager import TieringOffloadingManager

CPU: Final = 1
FIRST_BEHIND: Final = 2


@dataclass(frozen=True, slots=True)
class Found:
    """Pinned blocks: ``keys[i]`` lies in slot i of ``cpu`` and was supplied by tier ``suppliers[i]`` (1 the
    CPU, 2 the first tier behind it, and so on).
    """

    keys: list[OffloadKey]
    cpu: CPULoadStoreSpec
    suppliers: list[int]


class PrefixSearch:
    """The search of one request. Owns its pins until ``take`` hands them over."""

    def __init__(
        self, manager: TieringOffloadingManager, keys: Sequence[OffloadKey], *, req_context: ReqContext
    ) -> None:
        self._manager = manager
        self._keys = keys
        self._req_context = req_context
        self._end = len(keys)
        self._open: Sequence[int] = range(len(keys))
        self._slots: dict[int, int] = {}
        self._suppliers: dict[int, int] = {}

    @property
    def pinned(self) -> int:
        """Blocks found so far; it grows as long as there is progress."""
        return len(self._slots)

    def look(self) -> bool:
        """Ask for every block not found yet. True when the run is known; else ask again in the next step."""
        still_open = []
        for position in self._open:
            found = self._manager.lookup(self._keys[position], self._req_context)
            if found is LookupResult.MISS:
                self._end = position
                break
            if found is LookupResult.HIT:
                self._pin(position)
            else:
                self._note_supplier(position)
                still_open.append(position)
        self._open = still_open
        return not still_open

    def take(self) -> Found:
        """What was found, in order. Whoever takes it unpins it, by ``complete_load``."""
        beyond = [self._keys[position] for position in self._slots if position >= self._end]
        if beyond:
            self._manager.complete_load(beyond, self._req_context)
        run = range(self._end)
        return Found(
            [self._keys[position] for position in run],
            CPULoadStoreSpec([self._slots[position] for position in run]),
            [self._suppliers[position] for position in run],
        )

    def _pin(self, position: int) -> None:
        spec = self._manager.prepare_load([self._keys[position]], self._req_context)
        self._slots[position] = int(block_ids(spec)[0])
        self._suppliers.setdefault(position, CPU)

    def _note_supplier(self, position: int) -> None:
        tier_idx = self._manager.supplier_of(self._keys[position])
        if tier_idx is not None:
            self._suppliers[position] = FIRST_BEHIND + tier_idx
