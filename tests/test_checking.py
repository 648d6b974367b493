"""Checking while recording: what is kept beside the rows, once, and with which rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kvbus.audit import Audit, audit
from kvbus.capture import read_capture
from kvbus.checking import UNTOLD, Checking
from kvbus.errors import LogError
from kvbus.feed import Feed
from kvbus.log import Entry
from kvbus.pipeline import keep, record
from kvbus.subscriber import Subscriber
from kvbus.testing import history
from kvbus.verdict import Report
from kvbus.violation import KeepsViolations, Violation
from sinks.duckdb import DuckDBLog, open_log
from sinks.memory import MemoryLog
from tests.engine import Batch, Engine
from tests.logs import of_capture

RIGHT = "c:+a | c:-a | c:+b"
WRONG = RIGHT + " | c:-a | c:-b | c:-b"


def entries_of(text: str) -> list[Entry]:
    return [at.entry for at in history(text)]


def judged(entries: Sequence[Entry], path: Path, *, at_once: int = 2) -> Checking:
    """``entries`` recorded under a check, some at a time; the log that is there is gone on with."""
    inner = DuckDBLog(path)
    with open_log(path) as log:
        checking = Checking(inner, Audit(), log=log)
    with checking:
        for first in range(0, len(entries), at_once):
            checking.write(entries[first : first + at_once])
    return checking


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with open_log(path) as reader:
        return reader.rows(sql)


def answers(report: Report) -> dict[str, tuple[str, int]]:
    return {rule.rule: (rule.verdict, rule.violation_count) for rule in report.rules}


def test_violations_are_in_the_log(tmp_path: Path) -> None:
    """Rule, reason and place of each are in the ``violations`` view, every witness in ``witnesses``."""
    path = tmp_path / "log.duckdb"
    checking = judged(entries_of(WRONG), path)
    found = rows(
        path, "SELECT rule, id, position, event, witness_count, count FROM violations ORDER BY number"
    )
    assert found == [("refcount", "O1", 3, 0, 2, 1), ("refcount", "O1", 5, 0, 2, 1)]
    assert rows(path, "SELECT position FROM witnesses ORDER BY number, nth") == [(1,), (3,), (4,), (5,)]
    assert rows(
        path,
        """SELECT kind, count(*) FROM witnesses JOIN events USING (position, event) GROUP BY kind""",
    ) == [("BlockRemoved", 4)]
    assert (checking.report().verdict, checking.violation_count) == ("VIOLATED", 2)
    assert checking.sources == {"engine"}


def test_what_is_right_leaves_nothing(tmp_path: Path, captures: Path) -> None:
    """A clean stream of a real engine has the verdict of a check of its log, and no violation."""
    path = tmp_path / "log.duckdb"
    entries = list(of_capture(captures / "vllm032_gpu_int.frames"))
    checking = judged(entries, path, at_once=100)
    assert rows(path, "SELECT count(*) FROM violations") == [(0,)]
    with open_log(path) as reader:
        again = Audit()
        again.observe_log(reader)
    assert checking.report() == again.verdict()
    assert checking.violation_count == 0


@pytest.mark.parametrize("cut", range(7))
def test_a_recorder_that_goes_on_tells_each_once(tmp_path: Path, cut: int) -> None:
    """Stopped and started again anywhere, the log has the same violations as recorded in one go."""
    path, whole = tmp_path / "log.duckdb", tmp_path / "whole.duckdb"
    entries = entries_of(WRONG)
    judged(entries[:cut], path)
    report = judged(entries[cut:], path).report()
    assert judged(entries, whole).report() == report == audit(history(WRONG))
    told = "SELECT rule, because, count, source, epoch, seq, event, position FROM violations ORDER BY number"
    assert rows(path, told) == rows(whole, told)


def test_sources_keep_their_numbers_when_a_check_goes_on(tmp_path: Path) -> None:
    """After a restart the streams are told apart as before, whoever of them speaks first."""
    path = tmp_path / "log.duckdb"
    text = "@x c:+a | @y c:+b | c:-b | @x c:-a | @y c:-b | @x c:+b"
    entries = [at.entry for at in history(text)]
    judged(entries[:4], path)
    assert judged(entries[4:], path).report() == audit(history(text))


def test_what_was_recorded_unchecked_is_judged_too(tmp_path: Path) -> None:
    """The first recording that checks brings in what the ones before it let pass."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path) as sink:
        sink.write(entries_of(WRONG))
    judged([], path)
    assert rows(path, "SELECT rule, position FROM violations ORDER BY number") == [
        ("refcount", 3),
        ("refcount", 5),
    ]


def test_a_flood_is_counted(tmp_path: Path) -> None:
    """Of 1,000 violations 20 are told; few rows more say how many there are, and the sum is right."""
    path = tmp_path / "log.duckdb"
    flood = entries_of("c:+a | c:-a" + " | c:-a" * 1000)
    checking = judged(flood, path, at_once=10)
    assert rows(path, "SELECT sum(count)::BIGINT FROM violations") == [(1000,)]
    assert rows(path, "SELECT count(*) FROM violations WHERE witness_count > 0") == [(20,)]
    ((counting,),) = rows(path, f"SELECT count(*) FROM violations WHERE because = '{UNTOLD}'")
    assert isinstance(counting, int)
    assert 1 <= counting <= 10
    assert checking.violation_count == 1000
    judged(entries_of("c:+a | c:-a" + " | c:-a" * 1002)[1003:], path)
    assert rows(path, "SELECT sum(count)::BIGINT FROM violations") == [(1002,)]


def test_only_the_end_shows_what_only_the_end_can() -> None:
    """A loss after the last batch is a violation once nothing more comes, not while more may."""
    entries = entries_of("c:+a | c:+b | lost(3,absent_from_replay) | .")
    sink, heard = MemoryLog(), list[Violation]()
    checking = Checking(sink, Audit(), on_violation=heard.append)
    checking.write(entries[:-1])
    assert heard == []
    checking.close()
    assert [one.rule for one in heard] == ["sequence", "burned"]
    assert answers(checking.report())["sequence"] == ("VIOLATED", 1)


class Spy(MemoryLog):
    """A log that notes what it was given together."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, list[str]]] = []

    def write(self, entries: Sequence[Entry], /) -> None:
        self.write_judged(entries, ())

    def write_judged(self, entries: Sequence[Entry], found: Sequence[Violation], /) -> None:
        super().write(entries)
        self.given.append((len(entries), [one.rule for one in found]))

    def violations(self) -> Iterator[Violation]:
        return iter(())


def test_a_violation_goes_with_the_batch_that_shows_it() -> None:
    """The sink gets it in the same call as the entries, so that both are in one transaction."""
    sink = Spy()
    assert isinstance(sink, KeepsViolations)
    assert not isinstance(MemoryLog(), KeepsViolations)
    with Checking(sink, Audit()) as checking:
        for entry in entries_of(WRONG):
            checking.write([entry])
    assert sink.given[1:] == [(1, []), (1, []), (1, []), (1, ["refcount"]), (1, []), (1, ["refcount"])]


def test_a_killed_recorder_has_no_violation_without_its_rows(tmp_path: Path) -> None:
    """A reader of the log while it is written never sees a violation whose batch is not there."""
    path = tmp_path / "log.duckdb"
    flood = entries_of("c:+a | c:-a" + " | c:-a" * 200)
    with Checking(DuckDBLog(path, flush_batches=8, flush_s=0.001), Audit()) as checking:
        for entry in flood:
            checking.write([entry])
            if checking.violation_count % 40 == 1:
                with open_log(path) as reader:
                    ((batches, seen),) = reader.rows(
                        "SELECT (SELECT count(*) FROM batches), (SELECT max(position) FROM witnesses)"
                    )
                assert seen is None or seen < batches


def test_a_failed_write_is_the_last(tmp_path: Path) -> None:
    """After a batch that the log refuses nothing is judged that is not there: the next write says so, and
    opened again the log is judged as it is.
    """
    path, entries = tmp_path / "log.duckdb", entries_of(WRONG)
    with Checking(DuckDBLog(path), Audit()) as checking:
        checking.write(entries[:4])
        with pytest.raises(LogError, match="does not come after"):
            checking.write(entries[3:])
        with pytest.raises(LogError, match="no longer be checked"):
            checking.write(entries[4:])
    assert rows(path, "SELECT count(*) FROM violations") == [(0,)]
    assert judged(entries[4:], path).report() == audit(history(WRONG))


def test_entries_pass_as_they_are(captures: Path) -> None:
    """A log recorded under a check is the log recorded without."""
    entries = list(of_capture(captures / "vllm032_restart.frames"))
    sink = MemoryLog()
    with Checking(sink, Audit()) as checking:
        progress = keep(entries, checking)
    assert sink.durable == entries
    assert progress.batches == len(entries)


def test_record_checks_what_it_records(tmp_path: Path, captures: Path) -> None:
    """``record`` into a ``Checking``: a hole in an engine's numbers is told while it goes on, is in the log,
    and makes the answer at the end a no.
    """
    batches = [frames_of(one.frames) for one in read_capture(captures / "vllm011_gpu_int.frames")]
    stop, told, path = threading.Event(), list[Violation](), tmp_path / "log.duckdb"

    def tell(violation: Violation) -> None:
        told.append(violation)
        stop.set()

    checking = Checking(DuckDBLog(path), Audit(), on_violation=tell)
    with checking, Engine([one for one in batches if one[1] not in (100, 101)]) as engine:
        alarm = threading.Timer(30, stop.set)
        alarm.start()
        with Subscriber([Feed(engine.endpoint)], standings=checking.standings()) as subscriber:
            record(subscriber, checking, stop=stop, flush_s=0.02)
        alarm.cancel()
    assert [one.rule for one in told] == ["sequence"]
    assert checking.report().verdict == "VIOLATED"
    ((because,),) = rows(path, "SELECT because FROM violations")
    assert "batches 100 to 101 are missing" in str(because)


def frames_of(frames: Sequence[bytes]) -> Batch:
    topic, seq, payload = frames
    return topic, int.from_bytes(seq, "big"), payload
