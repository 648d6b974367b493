"""What happens in a chunk, one thing after the other."""

from __future__ import annotations

import numpy as np

from kvbus.chunks import Chunks
from kvbus.log import EpochBegan
from kvbus.moments import Missing, moments, next_position
from kvbus.rules.transport import Missed
from kvbus.testing import history


def happenings(text: str, *, at_once: int) -> list[tuple[str, int]]:
    """What happens, with the position of each, read so many entries at once."""
    entries, names = list(history(text)), Chunks()
    missing, behind, found = Missing(names), 0, list[tuple[str, int]]()
    while entries:
        chunk, entries = names.of_entries(entries[:at_once]), entries[at_once:]
        behind = next_position(chunk, behind)
        missed = missing.look(chunk)
        for moment in moments(chunk, names, missed, np.arange(len(chunk.kind))):
            match moment.what:
                case EpochBegan():
                    what = "began"
                case Missed() as miss:
                    what = miss.why
                case _:
                    what = "event" if moment.rank else "turn"
            found.append((what, moment.position(chunk, behind)))
    return found


def test_they_come_as_the_log_has_them() -> None:
    """An epoch, the hole before its batch, its events, what cannot be read in its place; with positions."""
    assert happenings("g:+a | lost(1) g:+b ? | restart clear", at_once=99) == [
        ("began", 0),
        ("turn", 0),
        ("event", 0),
        ("batch 1 missing (no_replay)", 1),
        ("event", 1),
        ("an event of batch 2 cannot be read", 1),
        ("event", 1),
        ("began", 2),
        ("turn", 2),
        ("event", 2),
    ]


def test_a_mark_behind_a_chunk_stands_before_the_next_batch() -> None:
    """Its position is that of the batch to come, whether or not its chunk has batches."""
    text = "g:+a | g:+b | restart g:+c"
    for at_once in (1, 2, 3):
        found = happenings(text, at_once=at_once)
        assert [place for what, place in found if what == "began"] == [0, 2], at_once
