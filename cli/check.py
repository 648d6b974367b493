"""``kvbus check``: was the order right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import logs, options
from cli.exits import NO, OK, pipe_may_close
from cli.format import plain
from cli.render import Paint, painter

if TYPE_CHECKING:
    from kvbus.verdict import Finding, Report, RuleVerdict, Witness

EPILOG: Final = """\
Exit code: 0 it holds, or it is unknown; 1 it is violated, or unknown with --strict; 2 it could not
be found out.

Examples:

\b
  kvbus check day.duckdb
  kvbus check day.duckdb --strict && echo complete and in order
  kvbus check day.duckdb --rule sequence --json | jq .verdict"""

Strict = Annotated[
    bool | None, typer.Option("--strict/--no-strict", help="UNKNOWN is a no as well: exit with 1.")
]
Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="NAME", help="Only this rule; may be repeated. Default: all."),
]

STYLES: Final = {"HOLDS": "BlockStored", "VIOLATED": "Undecodable", "UNKNOWN": "AllBlocksCleared"}


def check(
    log: options.LogArgument = None,
    strict: Strict = None,
    rules: Rules = None,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Judge a log: HOLDS, VIOLATED with the events that prove it, or UNKNOWN where the log has a hole.

    Works while the log is being recorded to.
    """
    import msgspec

    from kvbus.audit import audit

    given = options.settings(config, log=log, strict=strict, json=as_json)
    with closing(logs.reader(options.log_of(given))) as reader:
        report = audit(reader.entries(), rules or None)
    code = exit_code(report, strict=given.strict)
    with pipe_may_close(code):
        if given.json:
            sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        else:
            sys.stdout.writelines(line + "\n" for line in lines(report, painter(sys.stdout)))
    raise typer.Exit(code)


def exit_code(report: Report, *, strict: bool) -> int:
    """0 holds, 1 violated; unknown is 0 unless strict."""
    if report.verdict == "UNKNOWN":
        return NO if strict else OK
    return NO if report.verdict == "VIOLATED" else OK


def lines(report: Report, paint: Paint) -> Iterator[str]:
    """The report for people."""
    yield paint(STYLES[report.verdict], report.verdict)
    for rule in report.rules:
        yield from _rule_lines(rule, paint)


def _rule_lines(rule: RuleVerdict, paint: Paint) -> Iterator[str]:
    yield f"  {paint(STYLES[rule.verdict], f'{rule.verdict:<8}')} {rule.rule} ({rule.id})"
    for finding in rule.violations:
        yield from _finding_lines("violated", finding)
    beyond = rule.violation_count - sum(finding.count for finding in rule.violations)
    if beyond > 0:
        yield f"    … and {beyond:,} more violations"
    for finding in rule.information:
        yield from _finding_lines("note", finding)


def _finding_lines(label: str, finding: Finding) -> Iterator[str]:
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
