"""``kvbus/stored_places.py``: where each source has stored, and since when."""

from __future__ import annotations

from kvbus.chunks import Chunks
from kvbus.stored_places import BEFORE, StoredPlaces
from kvbus.testing import history


def test_a_place_has_its_first_store_in_the_chunk_then_stands_from_the_beginning() -> None:
    """Removals and clears store nothing; a later chunk adds to what was there."""
    log = history("g:-x g:+a c:+a g:+b | clear s:+a c:+b")
    names = Chunks()
    stored = StoredPlaces(names)
    seen = []
    for part in (log[:2], log[2:]):
        stored.look(names.of_entries(part))
        (since,) = stored.since.values()
        seen.append({names.places.names[place].medium: event for place, event in since.items()})
    assert seen == [{"GPU": 1, "CPU": 2}, {"GPU": BEFORE, "CPU": BEFORE, "STORAGE": 1}]
