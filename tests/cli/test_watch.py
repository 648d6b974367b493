"""A live check from within: what it tells while the feeds go on."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from cli.watch import Watch
from kvbus.audit import Audit
from kvbus.engines import Engines
from kvbus.log import Entry
from kvbus.subscriber import Subscriber
from kvbus.testing import history
from kvbus.verdict import Finding, RuleVerdict


class Feeds:
    """Gives one entry a poll, and stops the check behind the last."""

    def __init__(self, text: str, stop: threading.Event) -> None:
        self._entries = [at.entry for at in history(text)]
        self._stop = stop

    def poll(self, timeout_s: float) -> list[Entry]:  # noqa: ARG002
        if len(self._entries) == 1:
            self._stop.set()
        return [self._entries.pop(0)]

    def finish(self) -> list[Entry]:
        return []


def told(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """The rules whose violations were told, one after the other, and the verdict at the end."""
    monkeypatch.setattr("cli.watch.TOLD_EVERY_S", 0.0)
    stop, found = threading.Event(), list[str]()

    def tell(rule: RuleVerdict, finding: Finding) -> None:  # noqa: ARG001
        found.append(rule.rule)

    feeds = cast(Subscriber, Feeds(text, stop))
    report = Watch(feeds, Engines(), Audit(capacities={"CPU": 2}), tell).run(
        end=None, stop=stop, until=float("inf")
    )
    return found, report.verdict


def test_what_only_the_end_can_prove_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that has not removed anything yet is no leak, and what was told is in the report."""
    text = "@q c:+a | c:+b | c:+c | c:-a c:-b c:-c"
    found, verdict = told(text, monkeypatch)
    assert (found, verdict) == (["eviction"], "VIOLATED")
    found, _ = told(text.rpartition(" | ")[0], monkeypatch)
    assert sorted(found) == ["eviction", "lifetime"]
