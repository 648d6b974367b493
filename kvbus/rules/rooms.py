"""How many distinct blocks fit into a tier, as far as that is known: what was given, else what the publisher
said of itself when its epoch began (``EpochBegan.capacity``).

Nothing is judged here. A word that comes when the epoch is known already is passed over: what was counted
until then was counted without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.events import canonical_medium
from kvbus.log import EpochBegan

EPOCHS_MAX: Final = 16
"""Of a source: what is left of an old epoch may come after the new one began, but not for ever."""

ENDLESS: Final = int(np.iinfo(np.int64).max)
"""Where no capacity is known."""


class Declared(NamedTuple):
    """What a publisher said of its ``epoch``, and from which batch of the chunk on that holds."""

    epoch: int
    first: int
    fits: Mapping[str, int]


class Rooms:
    """``given``: blocks by canonical medium, for every source; it overrides what publishers say."""

    def __init__(self, names: Chunks, given: Mapping[str, int]) -> None:
        self._names = names
        self._given = given
        self._told: dict[int, deque[Declared]] = {}
        self._epochs: dict[int, int] = {}

    def look(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        for source, told in self._told.items():
            self._told[source] = deque((one._replace(first=0) for one in told), EPOCHS_MAX)
        for before, mark in chunk.marks:
            if isinstance(mark, EpochBegan):
                self._begun(chunk, before, mark)
        for source in np.unique(chunk.source).tolist():
            self._heard(source, chunk, len(chunk.source))

    def _begun(self, chunk: Chunk, before: int, mark: EpochBegan) -> None:
        source = self._names.source_number(mark.source)
        self._heard(source, chunk, before)
        is_new = mark.epoch > self._epochs.get(source, -1)
        self._epochs[source] = max(mark.epoch, self._epochs.get(source, -1))
        if is_new and mark.capacity:
            fits = {canonical_medium(medium): blocks for medium, blocks in mark.capacity.items()}
            self._told.setdefault(source, deque(maxlen=EPOCHS_MAX)).append(Declared(mark.epoch, before, fits))

    def _heard(self, source: int, chunk: Chunk, rows: int) -> None:
        epochs = chunk.epoch[:rows][chunk.source[:rows] == source]
        if len(epochs):
            self._epochs[source] = max(int(epochs.max()), self._epochs.get(source, -1))

    def media(self) -> set[str]:
        """Those of which any capacity is known."""
        said = [one.fits for told in self._told.values() for one in told]
        return {*self._given, *chain.from_iterable(said)}

    def of(self, source: int, medium: str, chunk: Chunk, batches: Ints) -> Ints:
        """What fits for each of some rows of the chunk's batches; ``ENDLESS`` where nobody knows."""
        most = np.full(len(batches), self._given.get(medium, ENDLESS))
        if medium not in self._given:
            for epoch, first, fits in self._told.get(source, ()):
                most[(batches >= first) & (chunk.epoch[batches] == epoch)] = fits.get(medium, ENDLESS)
        return most

    def now(self, source: int, medium: str) -> int | None:
        """What fits in the newest epoch; None where nobody knows."""
        if medium in self._given:
            return self._given[medium]
        told = self._told.get(source)
        return told[-1].fits.get(medium) if told and told[-1].epoch == self._epochs[source] else None
