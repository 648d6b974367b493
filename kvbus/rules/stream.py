"""Where one source stands in one epoch, and which batches and marks of a chunk do not simply run on.

Nearly all batches do: those are passed over at once. Nothing is judged here; ``kvbus/rules/transport`` looks
at the others, each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kvbus.chunk import Chunk, Ints, Mark
from kvbus.chunks import Chunks
from kvbus.findings import EVENT_MAX, Order
from kvbus.log import Loss
from kvbus.rules.words import numbers, reasons
from kvbus.verdict import Witness


class Stream:
    """One source in one epoch: its last batch, the losses since, and the last batch of the epoch before.

    ``began``: the number of the batch of the log it may begin with; ``expected``: the seq that would run on
    (None: nothing was seen).
    """

    __slots__ = ("began", "epoch", "expected", "last_position", "last_seq", "losses", "previous")

    def __init__(self, epoch: int, began: int, previous: Witness | None) -> None:
        self.epoch = epoch
        self.began = began
        self.previous = previous
        self.last_seq = -1
        self.last_position: int | None = None
        self.expected: int | None = None
        self.losses: list[Loss] = []

    def runs_on(self, seq: int, position: int) -> None:
        """Take a batch as the last one."""
        self.last_seq, self.last_position, self.expected = seq, position, seq + 1

    @property
    def end(self) -> Order:
        """Behind everything of its last batch."""
        return (0, -1) if self.last_position is None else (self.last_position, EVENT_MAX)

    def why_missing(self, next_seq: int | None) -> str:
        """The sentence for the hole between its last batch and ``next_seq`` (None: nothing came)."""
        first = covered = self.last_seq + 1
        for loss in self.losses:
            if loss.first_seq <= covered:
                covered = max(covered, loss.last_seq + 1)
        end = self.losses[-1].last_seq + 1 if next_seq is None else next_seq
        why = reasons(self.losses)
        if covered < end:
            why = f"{why}; the log does not say why all are" if why else "the log does not say why"
        between = f"after {self.last_seq}" if next_seq is None else f"between {self.last_seq} and {next_seq}"
        are = "is" if first == end - 1 else "are"
        return f"{numbers(first, end - 1)} {are} missing {between} ({why})"


class Turn(NamedTuple):
    """A batch that does not simply run on (``batch``: its row), or a mark before row ``before``."""

    before: int
    batch: int | None
    mark: Mark | None


def by_source(chunk: Chunk) -> dict[int, Ints]:
    """The rows of each source's batches."""
    order = np.argsort(chunk.source, kind="stable")
    found, firsts = np.unique(chunk.source[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, firsts[1:]), strict=True)) if len(order) else {}


def turns(chunk: Chunk, rows: Mapping[int, Ints], streams: Mapping[int, Stream], names: Chunks) -> list[Turn]:
    """Marks, and batches that do not simply run on, in the order of the log; ``rows`` as of ``by_source``."""
    odd: set[int] = set()
    for number, mine in rows.items():
        seq, epoch = chunk.seq[mine], chunk.epoch[mine]
        runs_on = (seq[1:] == seq[:-1] + np.uint64(1)) & (epoch[1:] == epoch[:-1])
        odd.update(mine[1:][~runs_on].tolist())
        stream = streams.get(number)
        if stream is None or stream.losses or (stream.epoch, stream.expected) != (int(epoch[0]), int(seq[0])):
            odd.add(int(mine[0]))
    for before, mark in chunk.marks:
        mine = rows.get(names.source_number(mark.source), np.zeros(0, np.int64))
        odd.update(mine[np.searchsorted(mine, before) :][:1].tolist())
    marks = [Turn(before, None, mark) for before, mark in chunk.marks]
    return sorted([*(Turn(row, row, None) for row in odd), *marks], key=_when)


def _when(turn: Turn) -> tuple[int, bool]:
    return turn.before, turn.batch is not None
