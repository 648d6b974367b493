"""What happens in a chunk, one thing after the other: epochs begin, something is missed, events speak.

For those who follow a log without judging it. That something was missed is the rules' own answer
(``kvbus/rules/transport``, ``kvbus/rules/payload``), without their findings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvbus.chunk import Chunk, Ints
from kvbus.chunks import Chunks
from kvbus.findings import Findings
from kvbus.log import EpochBegan
from kvbus.rules.payload import Decoding
from kvbus.rules.transport import Missed, Transport
from kvbus.shelves import beginnings


class Missing:
    """Says what of each chunk was not seen. Remembers what the rules do."""

    def __init__(self, names: Chunks) -> None:
        unheard = Findings(0)
        self._transport = Transport(names, unheard)
        self._decoding = Decoding(names, unheard)

    def look(self, chunk: Chunk) -> list[Missed]:
        """Take the next chunk."""
        return [*self._transport.look(chunk), *self._decoding.look(chunk)]


class Moment(NamedTuple):
    """Something in a chunk: sorted, they are as the log has them. ``turn`` as ``Missed`` counts it, ``row``
    of events; ``rank``: an epoch begins (``EpochBegan``, or the row of a batch that may begin one), then
    something was missed, then an event speaks (its row).
    """

    turn: int
    row: int
    epoch: int
    rank: int
    what: EpochBegan | Missed | int

    def position(self, chunk: Chunk, behind: int) -> int:
        """Of its batch, or the one it stands before; ``behind`` where that is behind the chunk."""
        batch = (self.turn + 1) // 2
        return int(chunk.position[batch]) if batch < len(chunk.position) else behind


def moments(chunk: Chunk, names: Chunks, missed: Iterable[Missed], events: Ints) -> list[Moment]:
    """The epochs of a chunk, what was ``missed`` and some ``events`` of it, in the order of the log."""
    first, epochs = chunk.first_event, chunk.epoch
    found = [
        Moment(2 * before - 1, int(first[before]), mark.epoch, 0, mark)
        for before, mark in chunk.marks
        if isinstance(mark, EpochBegan)
    ]
    found += [Moment(2 * row, int(first[row]), int(epochs[row]), 0, row) for row in beginnings(chunk, names)]
    found += [Moment(miss.turn, miss.row, miss.epoch, 1, miss) for miss in missed]
    for event in events.tolist():
        row = int(chunk.batch[event])
        found.append(Moment(2 * row, event, int(epochs[row]), 2, event))
    return sorted(found, key=lambda moment: moment[:4])


def next_position(chunk: Chunk, before: int) -> int:
    """The position behind a chunk's batches; where it has none that behind those before it, ``before``."""
    return int(chunk.position[-1]) + 1 if len(chunk.position) else before
