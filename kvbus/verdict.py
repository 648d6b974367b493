"""What a check answers, and the evidence it shows: verdicts, findings, witnesses.

HOLDS: everything the rule speaks of was seen and obeys it. VIOLATED: named events prove that it was broken.
UNKNOWN: what was not seen, or cannot be read, might decide it; so nothing holds of what was never heard. How
findings are gathered is ``kvbus/findings``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from kvbus.log import SourceId

Verdict = Literal["HOLDS", "VIOLATED", "UNKNOWN"]
Level = Literal["violation", "unknown", "warning", "information", "off"]
"""What a finding counts as: it decides VIOLATED, or UNKNOWN, or nothing (``off``: it is not even told)."""

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
    level: Level = "violation"


class RuleVerdict(Struct, frozen=True):
    """One rule's answer. ``violation_count`` counts all violations, also those not listed.

    ``information`` holds what made it UNKNOWN, then warnings, then what is merely worth knowing.
    """

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


def doubted(report: Report, reasons: Sequence[str]) -> Report:
    """The report where that was not heard at all which it is asked about, for these reasons (none: as it is):
    no rule holds of it. What is violated stays violated.
    """
    if not reasons:
        return report
    doubts = [Finding(reason, [], level="unknown") for reason in reasons]
    rules = [
        rule
        if rule.verdict == "VIOLATED"
        else structs.replace(rule, verdict="UNKNOWN", information=[*doubts, *rule.information])
        for rule in report.rules
    ]
    return Report(overall(rule.verdict for rule in rules), rules)


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
