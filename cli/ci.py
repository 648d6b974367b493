"""A report in the forms that CI systems read: JUnit XML as text and as a file, and GitHub's annotations. The
verdict is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as Xml

from cli.format import plain
from cli.report import place
from cli.result_file import Kind, result_file
from kvbus.rules.table import RULES
from kvbus.verdict import Finding, Report, RuleVerdict

XML_HEAD: Final = '<?xml version="1.0" encoding="utf-8"?>\n'
CASE_CLASS: Final = "kvbus.check"


def junit(report: Report, *, name: str, strict: bool) -> str:
    """A test suite named ``name`` with a case for each rule: failed where it is violated, skipped where it is
    unknown (failed, with ``strict``).
    """
    failures = [rule for rule in report.rules if is_no(rule, strict=strict)]
    skipped = [rule for rule in report.rules if rule.verdict == "UNKNOWN" and not strict]
    suite = Xml.Element(
        "testsuite",
        name=plain(name),
        tests=str(len(report.rules)),
        failures=str(len(failures)),
        errors="0",
        skipped=str(len(skipped)),
    )
    for rule in report.rules:
        case = Xml.SubElement(suite, "testcase", classname=CASE_CLASS, name=f"{rule.rule} ({rule.id})")
        if rule in failures:
            failure = Xml.SubElement(case, "failure", message=headline(rule), type=rule.verdict)
            failure.text = "\n".join(line for finding in decisive(rule) for line in told(finding))
        elif rule in skipped:
            Xml.SubElement(case, "skipped", message=headline(rule))
    Xml.indent(suite)
    return XML_HEAD + Xml.tostring(suite, encoding="unicode") + "\n"


def github(report: Report, *, strict: bool) -> Iterator[str]:
    """A line for each violation, and for what is unknown, once where several rules say the same: GitHub shows
    them beside the run, and only so many.
    """
    said_by: dict[tuple[str, str], list[RuleVerdict]] = {}
    for rule in report.rules:
        level = "error" if is_no(rule, strict=strict) else "warning"
        for finding in decisive(rule):
            said_by.setdefault((level, "\n".join(told(finding))), []).append(rule)
    for (level, text), (rule, *others) in said_by.items():
        title = f"kvbus {rule.rule} ({rule.id})" + (f" and {len(others)} more" if others else "")
        yield f"::{level} title={title}::{_escaped(text)}"


def is_no(rule: RuleVerdict, *, strict: bool) -> bool:
    return rule.verdict == "VIOLATED" or (strict and rule.verdict == "UNKNOWN")


def decisive(rule: RuleVerdict) -> list[Finding]:
    """What made a rule say no, or that it does not know."""
    return [*rule.violations, *(f for f in rule.information if f.level == "unknown")]


def headline(rule: RuleVerdict) -> str:
    findings = decisive(rule)
    count = rule.violation_count or len(findings)
    first = plain(findings[0].because) if findings else RULES[rule.rule].means
    return first if count <= 1 else f"{first} (and {count - 1:,} more)"


def told(finding: Finding) -> list[str]:
    times = f" ({finding.count:,} times)" if finding.count > 1 else ""
    return [plain(finding.because) + times, *(f"  at {place(witness)}" for witness in finding.witnesses)]


def write_junit(path: Path, text: str) -> None:
    """Write a report, over an older one if there is one, whole or not at all. Raises ``ResultFileError``."""
    with result_file(path, REPORT) as draft, draft.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _is_junit(head: bytes) -> bool:
    return head.startswith(f"{XML_HEAD}<testsuite ".encode()) and f'classname="{CASE_CLASS}"'.encode() in head


REPORT: Final = Kind("JUnit report", _is_junit)
"""What may be replaced by a report: one that ``junit`` made, by its first case."""


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
