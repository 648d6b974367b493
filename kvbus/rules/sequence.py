"""T1: within one source and epoch every batch's number is its predecessor's plus one.

Judged from the batches themselves; a ``Loss`` only says why. A hole is VIOLATED whatever its reason: the
publisher gave those numbers out, and the record does not have them. What is missing before an epoch's first
batch is no hole: nobody saw the beginning, so UNKNOWN. A new epoch and late strays are information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from kvbus.residency import Remark
from kvbus.rules.rule import About, begins_epoch, named, numbers, reasons
from kvbus.verdict import EXAMPLES, Findings, RuleVerdict, Witness, judged, witness

LOSSES_MAX: Final = 64
"""Losses remembered between two batches of a stream: enough to say why, whatever a log claims."""


class _Stream:
    """One source in one epoch: its last batch, the losses since, and the last batch of the epoch before."""

    __slots__ = ("epoch", "last_position", "last_seq", "losses", "previous")

    def __init__(self, epoch: int, previous: Witness | None) -> None:
        self.epoch = epoch
        self.previous = previous
        self.last_seq = -1
        self.last_position: int | None = None
        self.losses: list[Loss] = []


class SequenceRule:
    """See the module. Remembers one batch and at most ``LOSSES_MAX`` losses a source."""

    about = About(
        id="T1",
        name="sequence",
        means="Within one source and epoch, batches are numbered without a hole, a double or a step back.",
        clouded_by="An epoch whose beginning was not seen: a late join, a replay that begins too late.",
        source="vLLM kv_events.py (one counter a process); llm-d-router#1737; WIRE.md T1, T3, T4",
    )

    def __init__(self, *, examples: int = EXAMPLES) -> None:
        self._streams: dict[SourceId, _Stream] = {}
        self._violations = Findings(examples)
        self._unknown = Findings(examples)
        self._information = Findings(examples)

    def observe(self, at: PositionedEntry, _: Sequence[Remark], /) -> None:
        entry = at.entry
        if type(entry) is Received:
            stream = self._stream(entry.source, entry.epoch)
            if entry.seq != stream.last_seq + 1 or stream.last_position is None or stream.losses:
                self._judge(stream, entry, at.position)
                stream.losses.clear()
            stream.last_seq, stream.last_position = entry.seq, at.position
        elif type(entry) is Loss:
            losses = self._stream(entry.source, entry.epoch).losses
            if len(losses) < LOSSES_MAX:
                losses.append(entry)
        elif type(entry) is EpochBegan:
            self._stream(entry.source, entry.epoch)
        elif type(entry) is Stray:
            self._stray(entry)

    def verdict(self) -> RuleVerdict:
        violations, unknown = self._violations.copy(), self._unknown.copy()
        for source, stream in self._streams.items():
            _end(source, stream, violations, unknown)
        return judged(
            self.about.name,
            self.about.id,
            violations=violations,
            unknown=unknown,
            information=self._information,
        )

    def _stream(self, source: SourceId, epoch: int) -> _Stream:
        old = self._streams.get(source)
        if old is not None and old.epoch == epoch:
            return old
        previous = None
        if old is not None:
            _end(source, old, self._violations, self._unknown)
            previous = old.previous
            if old.last_position is not None:
                previous = witness(source, old.epoch, old.last_seq, position=old.last_position)
        new = self._streams[source] = _Stream(epoch, previous)
        return new

    def _judge(self, stream: _Stream, entry: Received, position: int) -> None:
        here = witness(entry.source, entry.epoch, entry.seq, position=position)
        if stream.last_position is None:
            self._judge_beginning(stream, entry, here)
            return
        before = witness(entry.source, entry.epoch, stream.last_seq, position=stream.last_position)
        who = f"{named(entry.source)} epoch {entry.epoch}"
        if entry.seq > stream.last_seq + 1:
            why = _why_missing(stream, entry.seq)
            self._violations.add(None, f"{who}: {why}", [before, here])
        elif entry.seq <= stream.last_seq:
            what = "stands twice" if entry.seq == stream.last_seq else f"comes after {stream.last_seq}"
            self._violations.add(None, f"{who}: batch {entry.seq} {what}; numbers only rise", [before, here])
        else:
            moot = f"{named(entry.source)}: batches were declared lost between two that follow each other"
            self._information.add(("moot", entry.source), moot, [before, here])

    def _judge_beginning(self, stream: _Stream, entry: Received, here: Witness) -> None:
        who, previous = named(entry.source), stream.previous
        if previous is not None and previous.epoch > entry.epoch:
            back = f"{who}: epoch {entry.epoch} goes on after epoch {previous.epoch} had begun"
            self._violations.add(None, back, [previous, here])
        elif previous is not None:
            anew = f"{who}: the publisher began anew, epoch {entry.epoch} after epoch {previous.epoch}"
            self._information.add(("restart", entry.source), anew, [previous, here])
        if not begins_epoch(entry):
            why = reasons(stream.losses) or "the log does not say why"
            first = f"{who} epoch {entry.epoch}: first seen at batch {entry.seq}"
            self._unknown.add(
                ("beginning", entry.source), f"{first}; what came before is unknown ({why})", [here]
            )

    def _stray(self, entry: Stray) -> None:
        here = witness(entry.source, entry.epoch, entry.seq)
        who = named(entry.source)
        if entry.reason == "conflict":
            twice = f"{who} epoch {entry.epoch}: batch {entry.seq} was heard twice with different bytes"
            self._violations.add(None, twice, [here])
            return
        aside = f"{who}: batches came after they had been declared lost and are kept aside"
        self._information.add((entry.reason, entry.source), aside, [here])


def _end(source: SourceId, stream: _Stream, violations: Findings, unknown: Findings) -> None:
    """Losses after which nothing came."""
    who = f"{named(source)} epoch {stream.epoch}"
    if not stream.losses:
        return
    if stream.last_position is None:
        unknown.add(("beginning", source), f"{who}: nothing of it was seen ({reasons(stream.losses)})", [])
    elif stream.losses[-1].last_seq > stream.last_seq:
        before = witness(source, stream.epoch, stream.last_seq, position=stream.last_position)
        violations.add(None, f"{who}: {_why_missing(stream, None)}", [before])


def _why_missing(stream: _Stream, next_seq: int | None) -> str:
    """The sentence for the hole between the stream's last batch and ``next_seq`` (None: nothing came)."""
    first = covered = stream.last_seq + 1
    for loss in stream.losses:
        if loss.first_seq <= covered:
            covered = max(covered, loss.last_seq + 1)
    end = stream.losses[-1].last_seq + 1 if next_seq is None else next_seq
    why = reasons(stream.losses)
    if covered < end:
        why = f"{why}; the log does not say why all are" if why else "the log does not say why"
    between = f"after {stream.last_seq}" if next_seq is None else f"between {stream.last_seq} and {next_seq}"
    are = "is" if first == end - 1 else "are"
    return f"{numbers(first, end - 1)} {are} missing {between} ({why})"
