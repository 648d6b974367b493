"""``kvbus check ENDPOINT``: engines judged while they speak.

What is wrong is told within ``TOLD_EVERY_S`` of its arrival, each violation once; the report comes at the
end. Only the way to and fro: the judging is ``kvbus.audit``'s, the reading ``kvbus.subscriber``'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from cli.exits import reader_gone
from cli.span import EndOfFeeds
from kvbus.aggregator import Round
from kvbus.audit import Audit
from kvbus.engines import Engines, Item
from kvbus.feed import Notice
from kvbus.log import EpochBegan, PositionedEntry, Received
from kvbus.subscriber import Subscriber
from kvbus.verdict import Finding, Report, RuleVerdict

POLL_S: Final = 0.1
TOLD_EVERY_S: Final = 0.5

Tell = Callable[[RuleVerdict, Finding], None]


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
                self._tell_new(self._auditor.verdict())
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
