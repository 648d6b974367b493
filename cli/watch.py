"""``kvbus check ENDPOINT``: engines judged while they speak.

What is wrong is told within ``TOLD_EVERY_S`` of its arrival, each violation once; the report comes at the
end, and of a feed that said nothing it knows nothing. Only the way to and fro: the judging is
``kvbus.audit``'s, the reading ``kvbus.subscriber``'s.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable
from typing import Final

from msgspec import structs

from cli import options
from cli.exits import NO, pipe_may_close, reader_gone, stop_signals
from cli.json_line import json_line
from cli.render import painter
from cli.report import STYLES, finding_lines
from cli.span import EndOfFeeds
from kvbus.audit import Audit
from kvbus.config import Settings
from kvbus.engines import Engines, Item
from kvbus.errors import KvbusError
from kvbus.feed import Feed, Notice
from kvbus.log import EpochBegan, PositionedEntry, Received
from kvbus.rounds import Round
from kvbus.subscriber import Subscriber
from kvbus.verdict import Finding, Report, RuleVerdict, doubted

POLL_S: Final = 0.1
TOLD_EVERY_S: Final = 0.5

Tell = Callable[[RuleVerdict, Finding], None]


class SilenceError(KvbusError):
    """No feed said anything: there is nothing to judge."""


def watched(auditor: Audit, given: Settings, *, seconds: float | None, exit_at_end: bool) -> Report:
    """The verdict on what engines say from now on; violations are told as they come. Raises ``SilenceError``
    where none says anything.
    """
    feeds = options.feeds_of(given)
    tell = tell_json if given.json else tell_people
    with stop_signals() as stop, Subscriber(feeds, idle_s=None) as subscriber, pipe_may_close(NO):
        end = EndOfFeeds([feed.name for feed in feeds], now=time.monotonic()) if exit_at_end else None
        watch = Watch(subscriber, Engines(options.engines_of(given)), auditor, tell)
        until = math.inf if seconds is None else time.monotonic() + seconds
        report = watch.run(end=end, stop=stop, until=until)
    silent = unheard(feeds, watch.heard)
    if len(silent) == len(feeds):
        raise SilenceError(
            f"nothing was heard from {', '.join(silent)}: nothing to judge",
            next_step="Check the address, and whether the engine publishes events there.",
        )
    return doubted(report, [silence(name) for name in silent])


def unheard(feeds: Iterable[Feed], heard: Container[str]) -> list[str]:
    """Names of the feeds that are none of those heard."""
    return [feed.name for feed in feeds if feed.name not in heard]


def silence(name: str) -> str:
    """Why nothing holds of what a feed should have said."""
    return f"nothing was heard from {name}: it is not judged"


def tell_json(rule: RuleVerdict, finding: Finding) -> None:
    """A violation as a line of its own."""
    sys.stdout.write(json_line({"rule": rule.rule, "id": rule.id, **structs.asdict(finding)}))
    sys.stdout.flush()


def tell_people(rule: RuleVerdict, finding: Finding) -> None:
    head = f"{painter(sys.stdout)(STYLES['VIOLATED'], 'VIOLATED')} {rule.rule} ({rule.id})"
    sys.stdout.writelines(line + "\n" for line in (head, *finding_lines("violated", finding)))
    sys.stdout.flush()


class Watch:
    """A live check: owns the position of the next batch, and which violations were told.

    ``heard``: the feeds of which there was something to judge.
    """

    def __init__(self, subscriber: Subscriber, engines: Engines, auditor: Audit, tell: Tell) -> None:
        self._subscriber = subscriber
        self._engines = engines
        self._auditor = auditor
        self._tell = tell
        self.heard: set[str] = set()
        self._position = 0
        self._told: set[tuple[str, str, str]] = set()

    def run(self, *, end: EndOfFeeds | None, stop: threading.Event, until: float) -> Report:
        """Judge until told to stop, until the monotonic time ``until``, or until the end of the feeds."""
        told = time.monotonic()
        while not stop.is_set() and not reader_gone() and (now := time.monotonic()) < until:
            items = self._subscriber.poll(POLL_S)
            if end is not None:
                end.note(items, time.monotonic())
            self._observe(self._engines.take(items, now_ns=time.time_ns()))
            if now - told >= TOLD_EVERY_S:
                self._tell_new(self._auditor.verdict(at_end=False))
                told = now
            if end is not None and end.reached(time.monotonic()):
                break
        self._observe(self._engines.take(self._subscriber.finish(), now_ns=time.time_ns()))
        self._observe(self._engines.finish())
        report = self._auditor.verdict()
        self._tell_new(report)
        return report

    def _observe(self, items: Iterable[Item]) -> None:
        for item in items:
            for entry in item.entries if isinstance(item, Round) else [item]:
                if isinstance(entry, Notice):
                    continue
                if not isinstance(entry, EpochBegan):
                    self.heard.add(entry.source.source)
                self._auditor.observe(PositionedEntry(self._position, entry))
                self._position += isinstance(entry, Received)

    def _tell_new(self, report: Report) -> None:
        for rule in report.rules:
            for finding in rule.violations:
                key = rule.rule, finding.because, repr(finding.witnesses)
                if key not in self._told:
                    self._told.add(key)
                    self._tell(rule, finding)
