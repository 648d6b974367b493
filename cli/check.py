"""``kvbus check``: is the order right, in a log or of engines that are speaking."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli import ci, logs, options
from cli.ci import place
from cli.exits import NO, OK, pipe_may_close, stop_signals
from cli.format import plain
from cli.render import Paint, painter, say
from cli.span import EndOfFeeds
from cli.stories import story_lines, story_object
from kvbus.config import Settings, faulty
from kvbus.errors import ConfigError, KvbusError
from kvbus.profile import PROFILES
from kvbus.rules.table import KINDS, RULES, About, UnknownRuleError

if TYPE_CHECKING:
    from kvbus.audit import Audit
    from kvbus.story import Story as Told
    from kvbus.verdict import Finding, Report, RuleVerdict

EPILOG: Final = """\
Exit code: 0 it holds, or it is unknown; 1 it is violated, or unknown with --strict; 2 it could not
be found out.

Examples:

\b
  kvbus check day.duckdb
  kvbus check day.duckdb --strict && echo complete and in order
  kvbus check day.duckdb --rule sequence --json | jq .verdict
  kvbus check day.duckdb --capacity CPU=300 --profile kvbus
  kvbus check day.duckdb --rule refcount --story
  kvbus check --explain eviction
  kvbus check tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558 --capacity GPU=4096"""

Strict = Annotated[
    bool | None, typer.Option("--strict/--no-strict", help="UNKNOWN is a no as well: exit with 1.")
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", metavar="NAME", help="Only this rule, by name or id; may be repeated. Default: all."
    ),
]

Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Whose habits are legal. Default: read off each stream."),
]
What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LOG | ENDPOINT...]",
        help="The log to read, being recorded to or not, or where engines publish. Default: the setting log.",
    ),
]
Tiers = Annotated[
    list[str] | None,
    typer.Option(
        "--tiers",
        metavar="SOURCE,SOURCE…",
        help="Sources of the log that are one engine's tiers, primary first; may be repeated.",
    ),
]
For = Annotated[
    float | None,
    typer.Option("--for", min=0, max=options.SECONDS_MAX, metavar="SECONDS", help="Live: judge for so long."),
]
Exit = Annotated[
    bool, typer.Option("--exit", "-e", help="Live: leave when replays are through and nothing came for 1 s.")
]
ListRules = Annotated[bool, typer.Option("--list", help="Print every rule, and the profiles; judge nothing.")]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML too.")
]
Github = Annotated[
    bool, typer.Option("--github", help="Print GitHub annotations instead: errors and warnings of the run.")
]
Story = Annotated[
    bool,
    typer.Option("--story", help="Of a log: tell the life of each finding's block around its witnesses."),
]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="RULE", help="Say all about a rule, by name or id.")
]


STYLES: Final = {"HOLDS": "BlockStored", "VIOLATED": "Undecodable", "UNKNOWN": "AllBlocksCleared"}


class SilenceError(KvbusError):
    """No feed said anything: there is nothing to judge."""


def check(
    what: What = None,
    replay: options.Replays = None,
    topic: options.Topics = None,
    ranks: options.Ranks = None,
    bind: options.Bind = None,
    engines: options.Engines = None,
    lateness: options.Lateness = None,
    seconds: For = None,
    exit_at_end: Exit = False,
    strict: Strict = None,
    rules: Rules = None,
    profile: Profile = None,
    capacity: options.Capacity = None,
    tiers: Tiers = None,
    junit: Junit = None,
    github: Github = False,
    story: Story = False,
    list_rules: ListRules = False,
    explain: Explain = None,
    as_json: options.Json = None,
    config: options.Config = None,
) -> None:
    """Judge a log, or engines while they speak: HOLDS, VIOLATED with the events that prove it, or UNKNOWN
    where something was missed.

    A log may be recorded to meanwhile. Live, a violation is told when it is seen, and the report comes at the
    end: on Ctrl-C, after --for, with --exit.
    """
    if list_rules or explain is not None:
        with pipe_may_close(OK):
            sys.stdout.writelines(line + "\n" for line in (explained(explain) if explain else listed()))
        return
    from kvbus.audit import Audit
    from kvbus.chunk import ColumnLog
    from kvbus.story import stories

    live = bool(engines) or any("://" in name for name in what or [])
    if story and (live or github):
        raise faulty(["--story: expected with a log, and without --github"])
    flags: dict[str, object] = {"strict": strict, "json": as_json}
    flags["capacity"] = options.capacities(capacity)
    if live:
        flags |= {"endpoint": what, "replay": replay, "topic": topic, "ranks": ranks, "bind": bind}
        flags |= {"tiers": engines, "lateness": lateness}
    elif what:
        flags["log"] = one_log(what)
    given = options.settings(config, **flags)
    if junit is not None:
        ci.check_junit_place(junit)
    apart = [names.split(",") for names in tiers or []]
    auditor = Audit(
        [rule_of(name).name for name in rules] if rules else None,
        profile=profile,
        capacities=given.capacity,
        engines=[*apart, *(one.tiers for one in options.engines_of(given))],
    )
    told: list[Told] = []
    if live:
        report = watched(auditor, given, seconds=seconds, exit_at_end=exit_at_end)
    else:
        with closing(logs.reader(options.log_of(given))) as reader:
            if isinstance(reader, ColumnLog):
                _all_known(apart, {source.source for source in reader.sources().values()})
            auditor.observe_log(reader)
            report = auditor.verdict()
            if story:
                told = stories(reader, report)
    code = exit_code(report, strict=given.strict)
    if junit is not None:
        ci.write_junit(junit, ci.junit(report, name=", ".join(what or [str(given.log)]), strict=given.strict))
    with pipe_may_close(code):
        if github:
            sys.stdout.writelines(line + "\n" for line in ci.github(report, strict=given.strict))
        elif given.json:
            stories_too = {"stories": [story_object(one) for one in told]} if story else {}
            sys.stdout.write(msgspec.json.encode(report.as_object() | stories_too).decode() + "\n")
        else:
            paint = painter(sys.stdout)
            sys.stdout.writelines(line + "\n" for line in (*lines(report, paint), *story_lines(told, paint)))
    raise typer.Exit(code)


def one_log(names: list[str]) -> Path:
    """The log that is named. Raises ``ConfigError`` for several."""
    if len(names) > 1:
        raise ConfigError(f"{names[1]} is one log too many", next_step="Name one log, or endpoints.")
    return Path(names[0])


def watched(auditor: Audit, given: Settings, *, seconds: float | None, exit_at_end: bool) -> Report:
    """The verdict on what engines say from now on; violations are told as they come. Raises ``SilenceError``
    where none says anything.
    """
    from cli.watch import Watch
    from kvbus.engines import Engines
    from kvbus.subscriber import Subscriber

    feeds, paint = options.feeds_of(given), painter(sys.stdout)

    def tell(rule: RuleVerdict, finding: Finding) -> None:
        if given.json:
            line = msgspec.json.encode({"rule": rule.rule, "id": rule.id, **msgspec.structs.asdict(finding)})
            sys.stdout.write(line.decode() + "\n")
        else:
            head = f"{paint(STYLES['VIOLATED'], 'VIOLATED')} {rule.rule} ({rule.id})"
            sys.stdout.writelines(line + "\n" for line in (head, *_finding_lines("violated", finding)))
        sys.stdout.flush()

    with stop_signals() as stop, Subscriber(feeds, idle_s=None) as subscriber, pipe_may_close(NO):
        end = EndOfFeeds([feed.name for feed in feeds], now=time.monotonic()) if exit_at_end else None
        watch = Watch(subscriber, Engines(options.engines_of(given)), auditor, tell)
        until = math.inf if seconds is None else time.monotonic() + seconds
        report = watch.run(end=end, stop=stop, until=until)
    silent = [feed.name for feed in feeds if feed.name not in watch.heard]
    if len(silent) == len(feeds):
        raise SilenceError(
            f"nothing was heard from {', '.join(silent)}: nothing to judge",
            next_step="Check the address, and whether the engine publishes events there.",
        )
    for name in silent:
        say(f"nothing was heard from {plain(name)}: it is not judged")
    return report


def _all_known(engines: list[list[str]], known: set[str]) -> None:
    """Raise ``ConfigError`` for a tier that is no source of the log."""
    if unknown := [name for names in engines for name in names if name not in known]:
        raise ConfigError(
            f"--tiers: the log has no source {', '.join(unknown)}",
            next_step=f"Its sources are: {', '.join(sorted(known)) or 'none'}.",
        )


def listed() -> Iterator[str]:
    """Every rule on a line, then every profile."""
    for about in RULES.values():
        yield f"{about.id:<3} {about.name:<11} {about.severity:<12} {about.means}"
    yield ""
    for profile in PROFILES.values():
        yield f"--profile {profile.name:<9} {profile.about}"


def rule_of(wanted: str) -> About:
    """The rule of this name or id. Raises ``UnknownRuleError``."""
    about = next((a for a in RULES.values() if wanted.lower() in (a.name, a.id.lower())), None)
    if about is None:
        raise UnknownRuleError(
            f"there is no rule {wanted!r}", next_step=f"The rules are: {', '.join(RULES)}."
        )
    return about


def explained(wanted: str) -> Iterator[str]:
    """All about one rule, also what its findings count as under each profile. Raises ``UnknownRuleError``."""
    about = rule_of(wanted)
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
