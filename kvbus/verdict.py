"""What a check answers, and the evidence it shows: verdicts, findings, witnesses.

HOLDS: everything the rule speaks of was seen and obeys it. VIOLATED: named events prove that it was broken.
UNKNOWN: what was not seen, or cannot be read, might decide it. Equal findings are one finding with a count,
and a list of them never grows without bound: what is beyond the limit is still counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct

from kvbus.log import SourceId

Verdict = Literal["HOLDS", "VIOLATED", "UNKNOWN"]
EXAMPLES: Final = 20
"""Findings a rule shows in full, unless told otherwise; all are counted."""


class Witness(Struct, frozen=True):
    """Where a piece of evidence stands. ``event`` is an index in the batch; None: the batch as a whole.

    ``position`` is the batch's place in the log, None where it is not known; ``rank`` is None where payloads
    carry none.
    """

    source: str
    epoch: int
    seq: int
    event: int | None
    position: int | None
    topic: str
    rank: int | None
    instance: int


class Finding(Struct, frozen=True):
    """Something to know: why, and the fewest events that show it; ``count`` like it were seen."""

    because: str
    witnesses: list[Witness]
    count: int = 1


class RuleVerdict(Struct, frozen=True):
    """One rule's answer. ``violation_count`` counts all violations, also those not listed."""

    rule: str
    id: str
    verdict: Verdict
    violations: list[Finding]
    information: list[Finding]
    violation_count: int


class Report(Struct, frozen=True):
    """The answer of all rules asked: VIOLATED if one is, else UNKNOWN if one is, else HOLDS."""

    verdict: Verdict
    rules: list[RuleVerdict]

    def as_object(self) -> dict[str, object]:
        """The object that ``kvbus check --json`` prints, of dicts, lists, strings and numbers."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """VIOLATED if any, else UNKNOWN if any, else HOLDS."""
    seen = set(verdicts)
    return "VIOLATED" if "VIOLATED" in seen else "UNKNOWN" if "UNKNOWN" in seen else "HOLDS"


def witness(
    source: SourceId, epoch: int, seq: int, *, event: int | None = None, position: int | None = None
) -> Witness:
    """Evidence that stands in a batch of ``source``, or is the batch."""
    return Witness(
        source=source.source,
        epoch=epoch,
        seq=seq,
        event=event,
        position=position,
        topic=source.topic_text,
        rank=source.said_rank,
        instance=source.instance,
    )


class _Kind:
    """Findings of one kind: the first one's words, and how many."""

    __slots__ = ("because", "count", "witnesses")

    def __init__(self, because: str, witnesses: list[Witness], count: int) -> None:
        self.because = because
        self.witnesses = witnesses
        self.count = count


class Findings:
    """Findings by kind: the first of each is its example, for at most ``limit`` kinds; all are counted."""

    def __init__(self, limit: int = EXAMPLES) -> None:
        self.total = 0
        self._limit = limit
        self._kinds: dict[Hashable, _Kind] = {}

    def add(self, kind: Hashable, because: str, witnesses: list[Witness], *, count: int = 1) -> None:
        """Count a finding. ``kind`` None: it is like no other."""
        self.total += count
        known = self._kinds.get(kind) if kind is not None else None
        if known is not None:
            known.count += count
        elif len(self._kinds) < self._limit:
            self._kinds[len(self._kinds) if kind is None else kind] = _Kind(because, witnesses, count)

    def listed(self) -> list[Finding]:
        """In the order they were first seen."""
        return [Finding(kind.because, kind.witnesses, kind.count) for kind in self._kinds.values()]

    def copy(self) -> Findings:
        twin = Findings(self._limit)
        twin.total = self.total
        twin._kinds = {name: _Kind(k.because, k.witnesses, k.count) for name, k in self._kinds.items()}
        return twin


def judged(
    rule: str, id: str, *, violations: Findings, unknown: Findings, information: Findings
) -> RuleVerdict:
    """A rule's answer from what it found: any violation decides, else anything unknown, else it holds."""
    verdict: Verdict = "VIOLATED" if violations.total else "UNKNOWN" if unknown.total else "HOLDS"
    told = unknown.listed() + information.listed()
    return RuleVerdict(rule, id, verdict, violations.listed(), told, violations.total)
