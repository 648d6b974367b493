"""``kvbus check``: is the order right, in a log or of engines that are speaking."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import ci, options, rulebook
from cli.exits import NO, OK, pipe_may_close
from cli.given import refuse, refuse_all_but
from cli.json_line import json_line
from cli.render import painter
from cli.report import lines
from cli.result_file import check_place
from cli.stories import story_lines, story_object
from kvbus.config import Settings
from kvbus.errors import ConfigError
from kvbus.profile import PROFILES
from kvbus.rules.table import RULES

if TYPE_CHECKING:
    from kvbus.audit import Audit
    from kvbus.story import Story
    from kvbus.verdict import Report

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
ListRules = Annotated[bool, typer.Option("--list", help="Print every rule, and the profiles; judge nothing.")]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML too.")
]
Github = Annotated[
    bool, typer.Option("--github", help="Print GitHub annotations instead: errors and warnings of the run.")
]
WithStories = Annotated[
    bool,
    typer.Option("--story", help="Of a log: tell the life of each finding's block around its witnesses."),
]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="RULE", help="Say all about a rule, by name or id.")
]

LIVE_ONLY: Final = ("replay", "topic", "ranks", "bind", "lateness", "seconds", "exit_at_end")
LOG_ONLY: Final = ("tiers", "story")
"""Parameters that have an effect on engines alone, and on a log alone."""


def check(
    context: typer.Context,
    what: What = None,
    replay: options.Replays = None,
    topic: options.Topics = None,
    ranks: options.Ranks = None,
    bind: options.Bind = None,
    engines: options.Engines = None,
    lateness: options.Lateness = None,
    seconds: options.For = None,
    exit_at_end: options.Exit = False,
    strict: Strict = None,
    rules: Rules = None,
    profile: Profile = None,
    capacity: options.Capacity = None,
    tiers: Tiers = None,
    junit: Junit = None,
    github: Github = False,
    story: WithStories = False,
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
        alone, flag = ("list_rules", "--list") if list_rules else ("explain", "--explain")
        refuse_all_but(
            context, (alone, "as_json", "config"), f"expected without {flag}, which judges nothing"
        )
        show_rules(explain, as_json=options.settings(config, json=as_json).json)
        return
    live = is_live(what, engines)
    refuse_without_effect(context, live=live, github=github)
    flags: dict[str, object] = {"strict": strict, "json": as_json, "capacity": options.capacities(capacity)}
    if live:
        flags |= {"endpoint": what, "replay": replay, "topic": topic, "ranks": ranks, "bind": bind}
        flags |= {"tiers": engines, "lateness": lateness}
    elif what:
        flags["log"] = one_log(what)
    given = options.settings(config, **flags)
    if junit is not None:
        check_place(junit, ci.REPORT)
    apart = [[name.strip() for name in names.split(",")] for names in tiers or []]
    auditor = auditor_of(given, rules, profile, apart)
    told: Sequence[Story] = ()
    if live:
        from cli.watch import watched

        report = watched(auditor, given, seconds=seconds, exit_at_end=exit_at_end)
    else:
        from cli.judged import judged

        report, told = judged(options.log_of(given), auditor, apart, with_stories=story)
    code = exit_code(report, strict=given.strict)
    if junit is not None:
        ci.write_junit(junit, ci.junit(report, name=", ".join(what or [str(given.log)]), strict=given.strict))
    with pipe_may_close(code):
        show(report, told, given, github=github, with_stories=story)
    raise typer.Exit(code)


def show_rules(explain: str | None, *, as_json: bool) -> None:
    """One rule, or all with the profiles. Raises ``UnknownRuleError``."""
    abouts = list(RULES.values()) if explain is None else [rulebook.rule_of(explain)]
    with pipe_may_close():
        if as_json:
            sys.stdout.writelines(json_line(rulebook.rule_object(about)) for about in abouts)
            if explain is None:
                sys.stdout.writelines(json_line(rulebook.profile_object(one)) for one in PROFILES.values())
            return
        told = rulebook.listed() if explain is None else rulebook.explained(abouts[0])
        sys.stdout.writelines(line + "\n" for line in told)


def is_live(what: list[str] | None, engines: list[str] | None) -> bool:
    """Whether engines are named. Raises ``ConfigError`` where a log is named beside them."""
    names = what or []
    logs_named = [name for name in names if "://" not in name]
    live = bool(engines) or len(logs_named) < len(names)
    if live and logs_named:
        raise ConfigError(
            f"{logs_named[0]} is no endpoint, and a log cannot be judged together with engines",
            next_step="Name one log, or endpoints such as tcp://10.0.0.1:5557.",
        )
    return live


def one_log(names: list[str]) -> Path:
    """The log that is named. Raises ``ConfigError`` for several."""
    if len(names) > 1:
        raise ConfigError(f"{names[1]} is one log too many", next_step="Name one log, or endpoints.")
    return Path(names[0])


def refuse_without_effect(context: typer.Context, *, live: bool, github: bool) -> None:
    """Raise ``ConfigError`` for flags that this check would pass over."""
    if live:
        refuse(context, LOG_ONLY, "expected with a LOG, not with engines (their tiers: --engine)")
    else:
        refuse(context, LIVE_ONLY, "expected with an ENDPOINT or --engine: a log is judged at once, as it is")
    if github:
        refuse(context, ("as_json", "story"), "expected without --github, which prints annotations instead")


def auditor_of(
    given: Settings, rules: list[str] | None, profile: str | None, apart: Sequence[Sequence[str]]
) -> Audit:
    """The auditor these flags ask for; ``apart``: the sources of each ``--tiers``. Raises ``ConfigError``,
    ``UnknownRuleError``, ``UnknownProfileError``.
    """
    from kvbus.audit import Audit

    return Audit(
        [rulebook.rule_of(name).name for name in rules] if rules else None,
        profile=profile,
        capacities=given.capacity,
        engines=[*apart, *(one.tiers for one in options.engines_of(given))],
    )


def exit_code(report: Report, *, strict: bool) -> int:
    """0 holds, 1 violated; unknown is 0 unless strict."""
    if report.verdict == "UNKNOWN":
        return NO if strict else OK
    return NO if report.verdict == "VIOLATED" else OK


def show(report: Report, told: Sequence[Story], given: Settings, *, github: bool, with_stories: bool) -> None:
    """The report on stdout, in the form that was asked for."""
    if github:
        sys.stdout.writelines(line + "\n" for line in ci.github(report, strict=given.strict))
    elif given.json:
        stories_too = {"stories": [story_object(one) for one in told]} if with_stories else {}
        sys.stdout.write(json_line(report.as_object() | stories_too))
    else:
        paint = painter(sys.stdout)
        sys.stdout.writelines(line + "\n" for line in (*lines(report, paint), *story_lines(told, paint)))
