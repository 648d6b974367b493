"""``kvbus sql``: a log asked in SQL, and nothing else reached by it."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import Engine, Kvbus, Message, Running, command, environment, until

KINDS = "SELECT kind, medium, count(*) AS events FROM events GROUP BY ALL ORDER BY ALL"


def test_a_table_for_people(log: Path, kvbus: Kvbus) -> None:
    """Names of columns and values are laid out as a table."""
    done = kvbus("sql", log, KINDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert [
        word for word in ("kind", "medium", "events", "BlockStored", "GPU") if word not in done.stdout
    ] == []


def test_json_is_an_object_a_line(log: Path, kvbus: Kvbus) -> None:
    """--json keeps numbers numbers, up to the largest hash and sum, and names each column apart."""
    most = "18446744073709551615::UBIGINT"
    question = f"SELECT {most} AS h, sum(seq) AS s, NULL AS n, [1, 2] AS l, 1 AS h FROM batches"
    done = kvbus("sql", log, question, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found == {"h": 2**64 - 1, "s": found["s"], "n": None, "l": [1, 2], "h_2": 1}
    assert isinstance(found["s"], int)


def test_csv_has_a_line_of_names(log: Path, kvbus: Kvbus) -> None:
    """--csv is read back as what was asked: nothing for null, hexadecimal digits for bytes."""
    done = kvbus("sql", log, "SELECT 'a,b' AS x, NULL AS y, '\\xFF'::BLOB AS z", "--csv")
    assert list(csv.reader(done.stdout.splitlines())) == [["x", "y", "z"], ["a,b", "", "ff"]]


def test_no_rows_have_names_too(log: Path, kvbus: Kvbus) -> None:
    """An answer without rows still says what its columns are."""
    done = kvbus("sql", log, "SELECT seq FROM batches WHERE false;", "--csv")
    assert (done.returncode, done.stdout) == (0, "seq\n")
    assert kvbus("sql", log, "SELECT seq FROM batches WHERE false", "--json").stdout == ""


def test_the_question_can_come_from_stdin(log: Path) -> None:
    """``-`` reads the SQL from stdin; the log can be a setting."""
    done = subprocess.run(
        command("sql", "-", "--csv"),
        input="SELECT count(*) AS n FROM sources",
        env=environment(KVBUS_LOG=str(log)),
        cwd=log.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "n\n1\n"), done.stderr


@pytest.mark.parametrize(
    "question",
    [
        "DELETE FROM meta",
        "WITH gone AS (DELETE FROM meta RETURNING *) FROM gone",
        "CREATE TABLE t (a INTEGER)",
        "COPY batches TO 'out.csv'",
        "ATTACH 'other.duckdb'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT * FROM 'secret.csv'",
        "SELECT * FROM glob('*')",
        "SET enable_external_access = true",
        "FROM enable_logging(storage = 'file', storage_path = 'leak')",
        "INSTALL httpfs",
        "",
    ],
)
def test_nothing_but_the_log_is_reached(log: Path, kvbus: Kvbus, tmp_path: Path, question: str) -> None:
    """Whatever would write, or read a file, is refused with exit code 2, and the log stays as it is."""
    (tmp_path / "secret.csv").write_text("a\n7\n")
    before = log.read_bytes()
    done = kvbus("sql", log, question, "--csv")
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert len(done.stderr.splitlines()) >= 2
    assert "Traceback" not in done.stderr
    assert log.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize(
    "question", ["-- why\nSELECT 7 AS n", "--why?\n\nSELECT 7 AS n -- so", "/* why */ SELECT 7 AS n; -- so"]
)
def test_a_question_may_begin_with_a_comment(log: Path, kvbus: Kvbus, question: str) -> None:
    """As an argument like any other, with and without a named log; no option is seen in it."""
    for words in ((log, question), ("--csv", log, "--", question)):
        done = kvbus("sql", *words, *(["--csv"] if words[0] == log else []))
        assert (done.returncode, done.stdout) == (0, "n\n7\n"), done.stderr
    assert kvbus("sql", question, "--csv", env={"KVBUS_LOG": str(log)}).stdout == "n\n7\n"
    # An empty answer is described without being asked again.
    nothing = question.replace("7 AS n", "7 AS n WHERE false")
    assert kvbus("sql", log, nothing, "--csv").stdout == "n\n"


def test_a_question_is_longer_than_any_name(log: Path, kvbus: Kvbus) -> None:
    """Without a named log it is still not taken for one."""
    question = f"SELECT {' + '.join(['1'] * 300)} AS n"
    done = kvbus("sql", question, "--csv", env={"KVBUS_LOG": str(log)})
    assert (done.returncode, done.stdout) == (0, "n\n300\n"), done.stderr


def test_an_option_that_there_is_not_is_refused(log: Path, kvbus: Kvbus) -> None:
    """It is not taken for a log or a question."""
    for words in ((log, "SELECT 1", "--jsno"), (log, "--jsno", "SELECT 1"), ("-x", log, "SELECT 1")):
        done = kvbus("sql", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no option -" in done.stderr


@pytest.mark.parametrize(
    ("question", "problem", "step"),
    [
        ("", "there is no question", "SELECT"),
        ("-- only a comment\n", "there is no question", "SELECT"),
        ("SELECT 1; SELECT 2", "more than one statement", "one SELECT at a time"),
        ("DELETE FROM meta", "DELETE is not for a log", "kvbus export"),
        ("SET threads = 1", "SET is not for a log", "kvbus export"),
        ("FROM read_text('/etc/hostname')", "Permission Error", "no file"),
        ("SELEC 1", "Parser Error", "Mend the SQL"),
        ("SELECT 'x'::INT", "Conversion Error", "TRY_CAST"),
        ("SELECT positon FROM events", "positon", "SHOW TABLES"),
        ("SELECT * FROM evnts", "evnts", "SHOW TABLES"),
    ],
)
def test_what_cannot_be_asked_is_told_with_what_can(
    log: Path, kvbus: Kvbus, question: str, problem: str, step: str
) -> None:
    """Each with the problem on the first line and what helps there on the second."""
    done = kvbus("sql", log, question)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.split("\n       ", 1)
    assert (problem in first, step in second) == (True, True), done.stderr


def test_a_damaged_log_is_told_as_such(log: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """Cut short or overwritten in the middle, by sql and by stat: damaged, not somebody else's."""
    whole = log.read_bytes()
    fifth = len(whole) // 5
    asked = "SELECT sum(octet_length(payload)), sum(seq), max(received_ns) FROM batches"
    for damaged in (
        whole[:fifth],
        whole[: 3 * fifth],
        whole[:fifth] + b"\xff" * (3 * fifth) + whole[-fifth:],
    ):
        (tmp_path / "bad.duckdb").write_bytes(damaged)
        for words in (("sql", "bad.duckdb", asked), ("stat", "bad.duckdb")):
            done = kvbus(*words)
            assert (done.returncode, done.stdout) == (2, "")
            assert "Use a copy" in done.stderr


def test_a_mistake_is_explained(log: Path, kvbus: Kvbus) -> None:
    """A wrong name ends with exit code 2, what was probably meant, and where the names stand."""
    done = kvbus("sql", log, "SELECT positon FROM events")
    assert done.returncode == 2
    assert "position" in done.stderr
    assert "log-schema.md" in done.stderr


def test_what_is_not_a_question_is_refused(log: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """A log without SQL, too many words, JSON lines by any name, no such log, and no name are told apart."""
    (tmp_path / "lines.jsonl").touch()
    (tmp_path / "lines.duckdb").write_text('{"source":"x"}\n')
    for words, says in (
        ((log,), "and the SQL"),
        ((log, "SELECT", "1"), "quotes"),
        (("lines.jsonl", "SELECT 1"), "kvbus import"),
        (("lines.duckdb", "SELECT 1"), "kvbus import lines.duckdb -o lines.duckdb.duckdb"),
        (("none.duckdb", "SELECT 1"), "there is no log"),
        (("none.jsonl", "SELECT 1"), "there is no log"),
        (("", "SELECT 1"), "has an empty name"),
    ):
        done = kvbus("sql", *words)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_reader_that_leaves_ends_it(log: Path) -> None:
    """``| head``: a million rows are not asked for twice, and the exit code is 0."""
    process = subprocess.Popen(
        command("sql", log, "SELECT * FROM range(3000000)", "--csv"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "range\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_table_ends_after_a_thousand_rows(log: Path, kvbus: Kvbus) -> None:
    """A table is no place for millions of rows: it says on stderr what has them all."""
    done = kvbus("sql", log, "SELECT * FROM range(1001)")
    assert done.returncode == 0
    assert "first 1,000 rows" in done.stderr
    assert " 999 " in done.stdout
    assert " 1000 " not in done.stdout


def test_it_asks_while_a_recorder_writes(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """The recorder answers, also for the views, and is not disturbed: not by what it has to refuse either."""
    path = tmp_path / "live.duckdb"
    recorder = start("record", engine.endpoint, "-o", path, "--flush", "0.05")
    engine.play(said[:50])

    def count() -> int:
        done = kvbus("sql", path, "SELECT count(*) AS n FROM batches", "--json")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["n"])

    until(path.exists)
    until(lambda: count() == 50)
    for question, step in (
        ("FROM enable_logging(storage = 'file', storage_path = 'leak')", ""),
        ("FROM read_text('/etc/hostname')", "no file, setting or network"),
        ("DELETE FROM meta", "kvbus export"),
    ):
        done = kvbus("sql", path, question)
        assert (done.returncode, step in done.stderr.splitlines()[-1]) == (2, True), done.stderr
    done = kvbus("sql", path, "SELECT count(*) > 0 AS some FROM lifetimes", "--json")
    assert json.loads(done.stdout) == {"some": True}
    engine.play(said[50:60])
    until(lambda: count() == 60)
    code, _, err = recorder.stop()
    assert code == 0, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_long_question_can_be_stopped(
    number: signal.Signals, log: Path, start: Callable[..., Running]
) -> None:
    """While DuckDB works too, the first signal ends it with 2 and a word."""
    running = start("sql", log, "SELECT sum(hash(a.range + b.range)) FROM range(10000000) a, range(100000) b")
    time.sleep(3)
    assert running.process.poll() is None
    began = time.monotonic()
    code, out, err = running.stop(number)
    assert (code, out, err) == (2, "", "kvbus: interrupted before it was done\n")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("is_answering", [False, True])
def test_a_stopped_question_leaves_nothing_on_the_disk(
    is_answering: bool, log: Path, tmp_path: Path, start: Callable[..., Running]
) -> None:
    """What it had laid aside beside the log is removed with it, while DuckDB works and while rows come."""
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(log.read_bytes())
    wide = "SELECT range, repeat(hash(range)::VARCHAR, 50) AS s FROM range(2500000) ORDER BY s, range"
    running = start("sql", copy, wide, "--csv")
    assert running.process.stdout is not None
    if is_answering:
        assert running.process.stdout.readline() == "range,s\n"
    until(lambda: list(tmp_path.glob("copy.duckdb.tmp/*storage*")) != [])
    code, _, err = running.stop()
    assert (code, err) == (2, "kvbus: interrupted before it was done\n")
    assert list(tmp_path.iterdir()) == [copy]
