"""A report for people: the verdict, then rule by rule what was found and where. Forms only.

Rules that found the same thing are told together, so that what is true of all of them stands there once.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from cli.format import plain
from cli.render import Paint
from kvbus.verdict import Finding, Report, RuleVerdict, Witness

STYLES: Final = {"HOLDS": "BlockStored", "VIOLATED": "Undecodable", "UNKNOWN": "AllBlocksCleared"}
NAMES_WIDTH: Final = 100
"""Letters of rule names on a line."""


def lines(report: Report, paint: Paint) -> Iterator[str]:
    """The report, those rules last that found nothing."""
    yield paint(STYLES[report.verdict], report.verdict)
    for alike in sorted(alike_in(report), key=lambda rules: _found_nothing(rules[0])):
        yield from _named(alike, paint)
        yield from _rule_lines(alike[0])


def alike_in(report: Report) -> list[list[RuleVerdict]]:
    """The rules in their order, those together that answer the same for the same reasons."""
    found: dict[str, list[RuleVerdict]] = {}
    for rule in report.rules:
        key = repr((rule.verdict, rule.violations, rule.information, rule.violation_count))
        found.setdefault(key, []).append(rule)
    return list(found.values())


def _found_nothing(rule: RuleVerdict) -> bool:
    return not rule.violations and not rule.information


def _named(rules: list[RuleVerdict], paint: Paint) -> Iterator[str]:
    first, *rest = wrap(", ".join(f"{rule.rule} ({rule.id})" for rule in rules), NAMES_WIDTH)
    verdict = rules[0].verdict
    yield f"  {paint(STYLES[verdict], f'{verdict:<8}')} {first}"
    yield from (" " * 11 + line for line in rest)


def _rule_lines(rule: RuleVerdict) -> Iterator[str]:
    for finding in rule.violations:
        yield from finding_lines("violated", finding)
    beyond = rule.violation_count - sum(finding.count for finding in rule.violations)
    if beyond > 0:
        yield f"    … and {beyond:,} more violations"
    for finding in rule.information:
        yield from finding_lines("note" if finding.level == "information" else finding.level, finding)


def finding_lines(label: str, finding: Finding) -> Iterator[str]:
    """A finding under a word, and its witnesses."""
    times = f" ({finding.count:,} times; the first:)" if finding.count > 1 else ""
    yield f"    {label}: {plain(finding.because)}{times}"
    for witness in finding.witnesses:
        yield f"      at {place(witness)}"


def place(witness: Witness) -> str:
    """Where a witness stands, in words that other commands take."""
    text = plain(witness.source)
    text += f" {plain(witness.topic)}" if witness.topic else ""
    text += f" rank {witness.rank}" if witness.rank is not None else ""
    text += f" epoch {witness.epoch} seq {witness.seq}"
    text += f" event {witness.event}" if witness.event is not None else ""
    return text + (f" (position {witness.position})" if witness.position is not None else "")
