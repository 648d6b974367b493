"""What could not be published: all of it counted, little of it told."""

from __future__ import annotations

import logging

import pytest

from tiers.voice.unsaid import Unsaid


class UnspeakableError(Exception):
    """Cannot say what is wrong with it."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Broken(logging.Handler):
    """An application's own handler, at fault."""

    def emit(self, _: logging.LogRecord) -> None:
        raise RuntimeError("disk full")


def test_it_is_told_when_new_and_each_time_it_has_doubled(caplog: pytest.LogCaptureFixture) -> None:
    """Reason by reason, with what was wrong."""
    unsaid = Unsaid()
    for _ in range(10):
        unsaid.note("unreadable", ValueError("no keys"))
    unsaid.note("unowned", "nobody's", count=5)
    assert [record.getMessage() for record in caplog.records] == [
        *(f"not published: unreadable, {n} so far: ValueError: no keys" for n in (1, 2, 4, 8)),
        "not published: unowned, 5 so far: nobody's",
    ]
    assert unsaid.counts == {"unreadable": 10, "unowned": 5}


def test_an_error_without_words_is_told_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever its ``str`` raises."""
    Unsaid().note("unreadable", UnspeakableError())
    assert [record.getMessage() for record in caplog.records] == [
        "not published: unreadable, 1 so far: UnspeakableError"
    ]


def test_a_log_at_fault_costs_nothing() -> None:
    """A handler that raises: counted all the same, and the caller hears nothing of it."""
    unsaid, handler = Unsaid(), Broken()
    log = logging.getLogger("tiers.voice.unsaid")
    log.addHandler(handler)
    try:
        unsaid.note("unreadable", ValueError("no keys"))
    finally:
        log.removeHandler(handler)
    assert unsaid.counts == {"unreadable": 1}
