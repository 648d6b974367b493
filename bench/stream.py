"""The stream that is measured on: a real engine's, at the rate of nobody's engine.

The large capture is used where it lies beside the checkout, else a small committed one; the bench says
which. Repeated, its numbers run on, so that a subscriber sees one long stream without a hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from msgspec import Struct

from kvbus.capture import read_capture
from kvbus.dialects import DialectReader
from kvbus.events import EventBatch
from kvbus.wire import Live, read_live

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = (
    ROOT.parent / "shared" / "captures" / "vllm032_large_engine.frames",
    ROOT / "tests" / "captures" / "vllm032_gpu_int.frames",
)


class Stream(Struct, frozen=True):
    """The batches of a capture, in order; ``events`` counts those inside them, ``bytes`` their payloads'."""

    name: str
    batches: tuple[Live, ...]
    events: int
    bytes: int

    def repeated(self, batches: int) -> Iterator[Live]:
        """So many batches, the capture over and over, their seq running on from 0."""
        for seq, batch in enumerate(islice(cycle(self.batches), batches)):
            yield Live(batch.topic, seq, batch.payload)


def load() -> Stream:
    path = next(path for path in CAPTURES if path.exists())
    reader = DialectReader()
    batches = [live for record in read_capture(path) if isinstance(live := read_live(record.frames), Live)]
    events = sum(len(read.events) for b in batches if isinstance(read := reader.read(b.payload), EventBatch))
    return Stream(path.stem, tuple(batches), events, sum(len(b.payload) for b in batches))
