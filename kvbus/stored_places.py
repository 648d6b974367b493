"""To which places each source has stored, and from which event on: what can only lie there since then.

Remembers names of places, no blocks. Nothing is counted and nothing is judged.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kvbus.chunk import STORED, Chunk
from kvbus.chunks import Chunks
from kvbus.names import first_sights

BEFORE: Final = -1
"""In place of an event row, where the first store was in an earlier chunk."""


class StoredPlaces:
    """``since``: of each source, its places with the event row, in the present chunk, of the first store
    there, or ``BEFORE``; both in the order of the log.
    """

    def __init__(self, names: Chunks) -> None:
        self.since: dict[int, dict[int, int]] = {}
        self._names = names

    def look(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        for stored in self.since.values():
            stored.update(dict.fromkeys(stored, BEFORE))
        places = max(len(self._names.places.names), 1)
        code = np.where(chunk.kind == STORED, chunk.event_sources() * places + chunk.place, -1)
        for one, event in first_sights(code):
            if one >= 0:
                number, place = divmod(one, places)
                self.since.setdefault(number, {}).setdefault(place, event)
