"""A sink in front of a sink: what is recorded is judged on its way, and what is wrong is kept beside it.

Every write is judged as it comes, so a violation is told, and becomes durable, with the batch that shows it.
Whatever only the end of a log could show waits for the end. Each violation is told once, also over restarts;
of a flood the first ones, and of the rest how many. The entries pass through as they are: judging delays, it
changes nothing and never stops a recording.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from kvbus.audit import Audit
from kvbus.errors import LogError
from kvbus.log import Entry, LogReader, PositionedEntry, Received, SourceId, Standing
from kvbus.sink import Sink
from kvbus.verdict import Finding, Report, RuleVerdict
from kvbus.violation import KeepsViolations, Key, Violation

UNTOLD: Final = "further ones, counted only"
COUNTED_EVERY_S: Final = 60.0
"""How long violations may go uncounted that are too many to be told, unless their number has doubled."""


class Checking:
    """A ``Sink`` that hands everything on to ``sink`` and judges it with ``auditor``, a fresh one.

    ``log`` is what the sink has already: it is judged first, so that a recorder that goes on says what a
    check of the whole log would. ``on_violation`` hears each one when it is found. A sink that
    ``KeepsViolations`` gets them with the entries; with any other they are only told. Closes ``sink`` when it
    is closed, and leaves ``log`` to its owner. Raises what ``sink`` raises, and ``LogError`` where
    ``log`` cannot be read. Not for several threads at once.
    """

    def __init__(
        self,
        sink: Sink,
        auditor: Audit,
        *,
        log: LogReader | None = None,
        on_violation: Callable[[Violation], None] | None = None,
    ) -> None:
        self._sink = sink
        self._keeper = sink if isinstance(sink, KeepsViolations) else None
        self._auditor = auditor
        self._on_violation = on_violation
        self._told: set[Key] = set()
        self._counted: Counter[str] = Counter()
        self._counted_s: dict[str, float] = {}
        self._position = 0
        self._report: Report | None = None
        self._has_failed = False
        for known in self._keeper.violations() if self._keeper is not None else ():
            self._note(known)
        if log is not None:
            auditor.observe_log(log)
            self._position = log.batch_count()

    @property
    def violation_count(self) -> int:
        """Violations found so far, those of earlier recordings into the same log included."""
        return sum(self._counted.values())

    @property
    def sources(self) -> set[str]:
        """Names of the sources of which there is something to judge, what the sink had already included."""
        return {source.source for source in self._auditor.profiles()}

    def report(self) -> Report:
        """The verdict on everything written so far, as ``kvbus check`` on the log would give it."""
        return self._auditor.verdict() if self._report is None else self._report

    # -- a sink ----------------------------------------------------------------------------------------------

    def standings(self) -> Mapping[SourceId, Standing]:
        return self._sink.standings()

    def write(self, entries: Sequence[Entry], /) -> None:
        """Judge ``entries`` and hand them on, together with what they showed.

        A write that fails is the last one: what was judged is no longer what the sink has.
        """
        if self._has_failed:
            raise LogError(
                "what is recorded can no longer be checked: an earlier write failed",
                next_step="Open the log again: what it has is judged anew.",
            )
        for entry in entries:
            self._auditor.observe(PositionedEntry(self._position, entry))
            self._position += isinstance(entry, Received)
        self._hand_on(entries, self._news(self._auditor.verdict(at_end=False)))

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        """Judge the end, keep what that shows, and close the sink. Safe to call twice."""
        try:
            if self._report is None:
                self._report = self._auditor.verdict()
                if not self._has_failed and (found := self._news(self._report, at_end=True)):
                    self._hand_on((), found)
        finally:
            self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what is new -----------------------------------------------------------------------------------------

    def _hand_on(self, entries: Sequence[Entry], found: Sequence[Violation]) -> None:
        try:
            if self._keeper is not None and found:
                self._keeper.write_judged(entries, found)
            else:
                self._sink.write(entries)
        except BaseException:
            self._has_failed = True
            raise
        for violation in found:
            self._note(violation)
            if self._on_violation is not None:
                self._on_violation(violation)

    def _news(self, report: Report, *, at_end: bool = False) -> list[Violation]:
        """The violations that were not told yet, rule by rule."""
        grown = [rule for rule in report.rules if rule.violation_count > self._counted[rule.rule]]
        return [one for rule in grown for one in self._news_of(rule, at_end=at_end)]

    def _news_of(self, rule: RuleVerdict, *, at_end: bool) -> list[Violation]:
        """Those of a rule; how many more there are is told when their number has doubled, from time to time,
        and at the end.
        """
        found = [self._violation(rule, finding) for finding in rule.violations]
        found = [one for one in found if one.key not in self._told]
        counted = self._counted[rule.rule] + sum(one.count for one in found)
        more, now = rule.violation_count - counted, time.monotonic()
        is_due = now - self._counted_s.setdefault(rule.rule, now) >= COUNTED_EVERY_S
        if more > 0 and (at_end or is_due or more >= counted):
            self._counted_s[rule.rule] = now
            found.append(self._violation(rule, Finding(UNTOLD, [], more)))
        return found

    def _violation(self, rule: RuleVerdict, finding: Finding) -> Violation:
        witnesses = tuple(finding.witnesses)
        now_ns = time.time_ns()
        return Violation(
            rule.rule, rule.id, finding.because, witnesses, finding.count, self._position, now_ns
        )

    def _note(self, violation: Violation) -> None:
        self._counted[violation.rule] += violation.count
        if violation.witnesses:
            self._told.add(violation.key)
