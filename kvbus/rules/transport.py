"""T1–T6 and what they imply for the rest: numbers, epochs, replays, and what was not seen.

Judged from the batches themselves; a ``Loss`` only says why. A hole is a violation whatever its reason: the
publisher gave those numbers out, and the record does not have them. What is missing before an epoch's first
batch is no hole: nobody saw the beginning. Batches that simply run on are passed over at once; each of the
others, and each mark, is looked at for itself. What was missed comes back as ``Missed``: it clouds the counts
(``kvbus/clouds``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from kvbus.chunk import Chunk, Ints, Mark
from kvbus.chunks import Chunks
from kvbus.findings import Findings, Group
from kvbus.log import EpochBegan, SourceId, Stray
from kvbus.rules.rank import Ranks
from kvbus.rules.stream import Stream, by_source, turns
from kvbus.rules.words import named, numbers, reasons, uncertain
from kvbus.verdict import Witness, witness

LOSSES_MAX: Final = 64
"""Losses remembered between two batches of a stream: enough to say why, whatever a log claims."""


class Missed(NamedTuple):
    """From event row ``row`` on, something of a source was not seen: ``why``.

    ``turn`` orders what has one row: twice the row of the batch it is in, or stands before (that less one).
    """

    row: int
    turn: int
    source: int
    epoch: int
    why: str


class Transport:
    """Remembers one batch and at most ``LOSSES_MAX`` losses a source."""

    def __init__(self, names: Chunks, findings: Findings) -> None:
        self._names = names
        self._findings = findings
        self._streams: dict[int, Stream] = {}
        self._batches = 0
        self._ranks = Ranks(names, findings)

    def look(self, chunk: Chunk) -> list[Missed]:
        """Take the next chunk; say what of it, or before it, was not seen."""
        missed: list[Missed] = []
        rows = by_source(chunk)
        for turn in turns(chunk, rows, self._streams, self._names):
            if turn.mark is not None:
                number = self._names.source_number(turn.mark.source)
                self._catch_up(chunk, number, rows.get(number), turn.before)
                row = int(chunk.first_event[turn.before])
                missed += self._mark(turn.mark, number, (row, 2 * turn.before - 1))
            elif turn.batch is not None:
                number = int(chunk.source[turn.batch])
                self._catch_up(chunk, number, rows.get(number), turn.batch)
                missed += self._batch(chunk, number, turn.batch)
        for number, mine in rows.items():
            self._catch_up(chunk, number, mine, len(chunk.seq))
        self._batches += len(chunk.seq)
        return missed

    def conclude(self, findings: Findings) -> None:
        """Add to ``findings`` what holds if nothing more comes: losses after the last batch."""
        for number, stream in self._streams.items():
            self._end(number, stream, findings)

    # -- where a stream stands -----------------------------------------------------------------------------

    def _catch_up(self, chunk: Chunk, number: int, rows: Ints | None, before: int) -> None:
        """The stream's last batch is the last one in front of row ``before``."""
        at = 0 if rows is None else int(np.searchsorted(rows, before))
        if rows is None or not at:
            return
        row, stream = int(rows[at - 1]), self._streams[number]
        if self._batches + row < stream.began or stream.last_position == int(chunk.position[row]):
            return
        stream.runs_on(int(chunk.seq[row]), int(chunk.position[row]))

    def _stream(self, number: int, epoch: int, row: int) -> Stream:
        """Where a source stands in an epoch, which may begin at batch row ``row`` of the chunk."""
        old = self._streams.get(number)
        if old is not None and old.epoch == epoch:
            return old
        previous = None
        if old is not None:
            self._end(number, old, self._findings)
            previous = old.previous
            if old.last_position is not None:
                previous = self._witness(number, old.epoch, old.last_seq, old.last_position)
        new = self._streams[number] = Stream(epoch, self._batches + row, previous)
        return new

    def _source(self, number: int) -> SourceId:
        return self._names.sources[number]

    def _witness(self, number: int, epoch: int, seq: int, position: int | None) -> Witness:
        return witness(self._source(number), epoch, seq, position=position)

    # -- marks ---------------------------------------------------------------------------------------------

    def _mark(self, mark: Mark, number: int, at: tuple[int, int]) -> Iterator[Missed]:
        if isinstance(mark, Stray):
            yield from self._stray(mark, number, at)
            return
        stream = self._stream(number, mark.epoch, (at[1] + 1) // 2)
        if isinstance(mark, EpochBegan):
            return
        if len(stream.losses) < LOSSES_MAX:
            stream.losses.append(mark)
        if stream.expected is not None and mark.last_seq >= stream.expected:
            why = f"{numbers(mark.first_seq, mark.last_seq)} missing ({mark.reason})"
            yield self._miss(number, stream, "lost", why, at)
            stream.expected = mark.last_seq + 1

    def _stray(self, mark: Stray, number: int, at: tuple[int, int]) -> Iterator[Missed]:
        who, stream = named(mark.source), self._streams.get(number)
        here = self._witness(number, mark.epoch, mark.seq, None)
        order = (0, -1) if stream is None else stream.end
        if mark.reason != "conflict":
            aside = f"{who}: batches came after they had been declared lost and are kept aside"
            self._findings.add(Group("sequence.late", number), order, aside, [here])
            return
        twice = f"{who} epoch {mark.epoch}: batch {mark.seq} was heard twice with different bytes"
        self._findings.add(Group("bytes.conflict", number), order, twice, [here])
        if stream is not None and stream.epoch == mark.epoch:
            why = f"batch {mark.seq} was heard with different bytes"
            yield self._miss(number, stream, "conflict", why, at, here)

    def _miss(
        self,
        number: int,
        stream: Stream,
        kind: str,
        why: str,
        at: tuple[int, int],
        here: Witness | None = None,
    ) -> Missed:
        """Something that bears on the counts was not seen: from here on they are uncertain."""
        because = uncertain(self._source(number), stream.epoch, why)
        order = stream.end if here is None else (here.position or 0, -1)
        self._findings.add(Group("refcount.missed", number, kind), order, because, [here] if here else [])
        return Missed(*at, number, stream.epoch, why)

    # -- batches that do not simply run on -----------------------------------------------------------------

    def _batch(self, chunk: Chunk, number: int, row: int) -> Iterator[Missed]:
        epoch, seq, position = int(chunk.epoch[row]), int(chunk.seq[row]), int(chunk.position[row])
        stream = self._stream(number, epoch, row)
        here = self._witness(number, epoch, seq, position)
        begins = seq == 0 or (seq == 1 and row in chunk.from_one)
        if stream.last_position is None:
            self._judge_beginning(stream, number, here, begins=begins)
        elif seq != stream.last_seq + 1 or stream.losses:
            self._judge(stream, number, here)
        if stream.expected is not None and seq != stream.expected:
            why = f"the numbers do not run on before batch {seq}"
            yield self._miss(number, stream, "lost", why, (int(chunk.first_event[row]), 2 * row), here)
        elif stream.expected is None and not begins:
            why = f"first seen at batch {seq}"
            yield self._miss(number, stream, "late", why, (int(chunk.first_event[row]), 2 * row), here)
        stream.losses.clear()
        stream.runs_on(seq, position)

    def _judge(self, stream: Stream, number: int, here: Witness) -> None:
        before = self._witness(number, stream.epoch, stream.last_seq, stream.last_position)
        who = f"{named(self._source(number))} epoch {stream.epoch}"
        order = (here.position or 0, -1)
        if here.seq > stream.last_seq + 1:
            why = stream.why_missing(here.seq)
            self._findings.add(Group("sequence.hole", number), order, f"{who}: {why}", [before, here])
            self._why(stream, number, self._findings, [before, here])
            self._ranks.skips(number, before, here)
        elif here.seq <= stream.last_seq:
            what = "stands twice" if here.seq == stream.last_seq else f"comes after {stream.last_seq}"
            back = f"{who}: batch {here.seq} {what}; numbers only rise"
            self._findings.add(Group("sequence.back", number), order, back, [before, here])
        else:
            who = named(self._source(number))
            moot = f"{who}: batches were declared lost between two that follow each other"
            self._findings.add(Group("sequence.moot", number), order, moot, [before, here])

    def _why(self, stream: Stream, number: int, findings: Findings, witnesses: list[Witness]) -> None:
        """What a hole's losses say of the publisher and its replay."""
        who = f"{named(self._source(number))} epoch {stream.epoch}"
        order = (witnesses[-1].position or 0, -1)
        for loss in stream.losses:
            missing = f"{who}: {numbers(loss.first_seq, loss.last_seq)}"
            match loss.reason:
                case "absent_from_replay":
                    because = f"{missing}: complete replays lack them, the publisher burned the numbers"
                    findings.add(Group("burned.numbers", number), order, because, witnesses)
                case "too_old":
                    because = f"{missing}: the replay no longer reached back to them"
                    findings.add(Group("replay.too_old", number), order, because, witnesses)
                case "replay_incomplete":
                    because = f"{missing}: the replay had a hole there or did not end with its marker"
                    findings.add(Group("replay.incomplete", number), order, because, witnesses)

    def _judge_beginning(self, stream: Stream, number: int, here: Witness, *, begins: bool) -> None:
        who, previous, order = named(self._source(number)), stream.previous, (here.position or 0, -1)
        if previous is not None and previous.epoch > here.epoch:
            back = f"{who}: epoch {here.epoch} goes on after epoch {previous.epoch} had begun"
            self._findings.add(Group("sequence.back", number), order, back, [previous, here])
        elif previous is not None:
            anew = f"{who}: the publisher began anew, epoch {here.epoch} after epoch {previous.epoch}"
            self._findings.add(Group("sequence.restart", number), order, anew, [previous, here])
        self._ranks.begins(number, here, at_beginning=begins)
        if begins:
            return
        why = reasons(stream.losses) or "the log does not say why"
        first = f"{who} epoch {here.epoch}: first seen at batch {here.seq}"
        unseen = f"{first}; what came before is unknown ({why})"
        self._findings.add(Group("sequence.beginning", number), order, unseen, [here])
        self._findings.add(Group("beginning.late", number), order, unseen, [here])
        for loss in stream.losses:
            if loss.reason in ("too_old", "replay_incomplete"):
                short = f"{first}; the replay that was asked for the rest did not have it ({why})"
                self._findings.add(Group("replay.beginning", number), order, short, [here])
                break

    def _end(self, number: int, stream: Stream, findings: Findings) -> None:
        """Losses after which nothing came."""
        if not stream.losses:
            return
        who = f"{named(self._source(number))} epoch {stream.epoch}"
        if stream.last_position is None:
            unseen = f"{who}: nothing of it was seen ({reasons(stream.losses)})"
            for kind in ("sequence.beginning", "beginning.late"):
                findings.add(Group(kind, number), (0, 0), unseen, [])
        elif stream.losses[-1].last_seq > stream.last_seq:
            before = self._witness(number, stream.epoch, stream.last_seq, stream.last_position)
            because = f"{who}: {stream.why_missing(None)}"
            findings.add(Group("sequence.hole", number), stream.end, because, [before])
            self._why(stream, number, findings, [before])
