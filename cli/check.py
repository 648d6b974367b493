"""``kvbus check``: was the order right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import logs, options
from cli.exits import NO, OK, pipe_may_close
from cli.format import plain
from cli.render import Paint, painter
from kvbus.errors import ConfigError
from kvbus.profile import PROFILES
from kvbus.rules.table import KINDS, RULES, UnknownRuleError

if TYPE_CHECKING:
    from kvbus.verdict import Finding, Report, RuleVerdict, Witness

EPILOG: Final = """\
Exit code: 0 it holds, or it is unknown; 1 it is violated, or unknown with --strict; 2 it could not
be found out.

Examples:

\b
  kvbus check day.duckdb
  kvbus check day.duckdb --strict && echo complete and in order
  kvbus check day.duckdb --rule sequence --json | jq .verdict
  kvbus check day.duckdb --capacity CPU=300 --profile kvbus
  kvbus check --explain eviction"""

Strict = Annotated[
    bool | None, typer.Option("--strict/--no-strict", help="UNKNOWN is a no as well: exit with 1.")
]
Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="NAME", help="Only this rule; may be repeated. Default: all."),
]

Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Whose habits are legal. Default: read off each stream."),
]
Capacity = Annotated[
    list[str] | None,
    typer.Option("--capacity", metavar="MEDIUM=N", help="Blocks that fit into a tier; may be repeated."),
]
Engine = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        metavar="SOURCE,SOURCE…",
        help="Sources that are one engine's tiers, primary first; may be repeated.",
    ),
]
ListRules = Annotated[bool, typer.Option("--list", help="Print every rule, and the profiles; judge nothing.")]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="RULE", help="Say all about a rule, by name or id.")
]

STYLES: Final = {"HOLDS": "BlockStored", "VIOLATED": "Undecodable", "UNKNOWN": "AllBlocksCleared"}


def check(
    log: options.LogArgument = None,
    strict: Strict = None,
    rules: Rules = None,
    profile: Profile = None,
    capacity: Capacity = None,
    engine: Engine = None,
    list_rules: ListRules = False,
    explain: Explain = None,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Judge a log: HOLDS, VIOLATED with the events that prove it, or UNKNOWN where the log has a hole.

    Works while the log is being recorded to.
    """
    if list_rules or explain is not None:
        with pipe_may_close(OK):
            sys.stdout.writelines(line + "\n" for line in (explained(explain) if explain else listed()))
        return
    import msgspec

    from kvbus.audit import Audit

    given = options.settings(config, log=log, strict=strict, json=as_json)
    auditor = Audit(
        rules or None,
        profile=profile,
        capacities=capacities(capacity or []),
        engines=[names.split(",") for names in engine or []],
    )
    with closing(logs.reader(options.log_of(given))) as reader:
        auditor.observe_log(reader)
        report = auditor.verdict()
    code = exit_code(report, strict=given.strict)
    with pipe_may_close(code):
        if given.json:
            sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        else:
            sys.stdout.writelines(line + "\n" for line in lines(report, painter(sys.stdout)))
    raise typer.Exit(code)


def capacities(given: list[str]) -> dict[str, int]:
    """``CPU=300`` and the like, as a mapping. Raises ``ConfigError``."""
    found = {}
    for text in given:
        medium, _, blocks = text.partition("=")
        if not medium or not blocks.isdecimal():
            raise ConfigError(
                f"--capacity {text} is no capacity",
                next_step="Write a medium and blocks: --capacity CPU=300.",
            )
        found[medium] = int(blocks)
    return found


def listed() -> Iterator[str]:
    """Every rule on a line, then every profile."""
    for about in RULES.values():
        yield f"{about.id:<3} {about.name:<11} {about.severity:<12} {about.means}"
    yield ""
    for profile in PROFILES.values():
        yield f"--profile {profile.name:<9} {profile.about}"


def explained(wanted: str) -> Iterator[str]:
    """All about one rule, also what its findings count as under each profile. Raises ``UnknownRuleError``."""
    about = next((a for a in RULES.values() if wanted.lower() in (a.name, a.id.lower())), None)
    if about is None:
        raise UnknownRuleError(
            f"there is no rule {wanted!r}", next_step=f"The rules are: {', '.join(RULES)}."
        )
    yield f"{about.name} ({about.id}), a {about.severity} at its worst"
    yield f"  {about.means}"
    yield f"  unknown under: {about.clouded_by}"
    yield f"  from: {about.source}"
    for kind in (kind for kind in KINDS if kind.partition(".")[0] == about.name):
        others = [f"{p.name} {p.level(kind)}" for p in PROFILES.values() if p.level(kind) != KINDS[kind]]
        yield f"  {kind}: {KINDS[kind]}" + (f" ({', '.join(others)})" if others else "")


def exit_code(report: Report, *, strict: bool) -> int:
    """0 holds, 1 violated; unknown is 0 unless strict."""
    if report.verdict == "UNKNOWN":
        return NO if strict else OK
    return NO if report.verdict == "VIOLATED" else OK


def lines(report: Report, paint: Paint) -> Iterator[str]:
    """The report for people."""
    yield paint(STYLES[report.verdict], report.verdict)
    quiet = [rule for rule in report.rules if rule.verdict == "HOLDS" and not rule.information]
    for rule in report.rules:
        if rule not in quiet:
            yield from _rule_lines(rule, paint)
    if quiet:
        names = ", ".join(f"{rule.rule} ({rule.id})" for rule in quiet)
        first, *rest = wrap(names, 100)
        yield f"  {paint(STYLES['HOLDS'], 'HOLDS   ')} {first}"
        yield from (" " * 11 + line for line in rest)


def _rule_lines(rule: RuleVerdict, paint: Paint) -> Iterator[str]:
    yield f"  {paint(STYLES[rule.verdict], f'{rule.verdict:<8}')} {rule.rule} ({rule.id})"
    for finding in rule.violations:
        yield from _finding_lines("violated", finding)
    beyond = rule.violation_count - sum(finding.count for finding in rule.violations)
    if beyond > 0:
        yield f"    … and {beyond:,} more violations"
    for finding in rule.information:
        yield from _finding_lines("note" if finding.level == "information" else finding.level, finding)


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
