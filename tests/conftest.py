"""What every test can lean on: the folder of captures, and nothing that outlives a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kvbus.arrival import Arrival
from kvbus.capture import read_capture
from kvbus.dialects import DialectReader
from kvbus.log import Entry, PositionedEntry, Received
from kvbus.sequencer import Sequencer

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "tests" / "captures"
SHARED = ROOT.parent / "shared" / "captures"


@pytest.fixture(scope="session")
def captures() -> Path:
    """Streams of real engines: the whole set where it is laid beside the checkout, else the committed few."""
    return SHARED if SHARED.is_dir() else COMMITTED


@pytest.fixture(scope="session")
def capture_entries(captures: Path) -> Callable[[str], list[PositionedEntry]]:
    """``capture_entries(name)``: a capture as the log that importing it gives, made once a session."""

    @cache
    def entries(name: str) -> list[PositionedEntry]:
        path = captures / f"{name}.frames"
        if not path.exists():
            pytest.skip(f"the capture {name} is not laid beside this checkout")
        return ordered(path)

    return entries


def ordered(path: Path) -> list[PositionedEntry]:
    """A capture's messages, read, put in order and given positions."""
    reader, sequencer = DialectReader(), Sequencer("capture", can_ask=False)
    entries: list[Entry] = []
    now_ns = 0
    for record in read_capture(path):
        topic, seq, payload = record.frames
        number, now_ns = int.from_bytes(seq, "big"), record.received_ns
        batch = reader.read(payload)
        entries += sequencer.live(Arrival(topic, number, payload, now_ns, batch, reader.dialect))
    entries += sequencer.finish(now_ns)
    placed: list[PositionedEntry] = []
    position = 0
    for entry in entries:
        placed.append(PositionedEntry(position, entry))
        position += isinstance(entry, Received)
    return placed
