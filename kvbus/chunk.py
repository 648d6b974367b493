"""A stretch of a log as numpy columns: what every rule of the audit works on.

Three levels, each in log order: batches, their events, and the events' blocks (one row a hash), with the
marks (losses, epochs, strays) that stand between batches. Made by ``kvbus/chunks``; nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from kvbus.log import EpochBegan, Loss, Stray

STORED: Final = 0
REMOVED: Final = 1
CLEARED: Final = 2
STRANGE: Final = 3
UNREADABLE: Final = 4
"""Kinds of events; ``STRANGE`` is an event under a tag nobody knows."""

GPU: Final = "GPU"
"""The canonical medium that AllBlocksCleared empties; all others lie below it."""

KINDS: Final = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": CLEARED}

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Mark = Loss | EpochBegan | Stray


class Place(msgspec.Struct, frozen=True):
    """A tier of a source as events name it: canonical medium and group."""

    medium: str
    group: int | None

    @property
    def is_gpu(self) -> bool:
        return self.medium == GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """B batches, E events, N blocks. Whatever is absent or null is -1 (``ts``: NaN), unless said otherwise.

    Batches: ``position``, ``source`` (a number, see ``Chunks.sources``), ``epoch``, ``seq``, ``ts`` (s),
    ``received_ns``, ``unknown_keys``, ``dialect`` (number of a name), ``unreadable``; ``first_event`` has
    B + 1 entries. Events: ``batch`` (row), ``index`` in the batch, ``kind``, ``medium`` and ``place``
    (numbers of names), ``size`` (tokens a block), ``terms`` (a number for what else a store says alike),
    ``reason``, ``tokens``, ``parent`` with ``has_parent``, ``emit_seq``; ``first_block`` has E + 1 entries.
    Blocks: ``hash``, ``event`` (row). ``marks``: (row of the batch it stands before, mark), in order.
    ``salts``: cache salts by event row; ``from_one``: batch rows of publishers that count from 1.
    """

    position: Hashes
    source: Ints
    epoch: Ints
    seq: Hashes
    ts: Floats
    received_ns: Ints
    unknown_keys: Ints
    dialect: Ints
    unreadable: Bools
    first_event: Ints
    batch: Ints
    index: Ints
    kind: Ints
    medium: Ints
    place: Ints
    size: Ints
    terms: Ints
    reason: Ints
    owner: Ints
    tokens: Ints
    parent: Hashes
    has_parent: Bools
    emit_seq: Ints
    first_block: Ints
    hash: Hashes
    event: Ints
    marks: Sequence[tuple[int, Mark]]
    salts: Mapping[int, str]
    from_one: frozenset[int]

    def event_sources(self) -> Ints:
        """The source of each event."""
        return self.source[self.batch]
