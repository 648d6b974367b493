"""``kvbus check``: of a log, of engines that are speaking, and for machines that run it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

from kvbus.rules.table import RULES
from tests.cli.processes import Engine, Kvbus, Message, Running, cut_out


def holed(captures: Path, to: Path, kvbus: Kvbus) -> None:
    """A log that lacks two batches."""
    cut_out(captures / "vllm011_gpu_int.frames", to.with_suffix(".frames"), {40, 41})
    assert kvbus("import", to.with_suffix(".frames"), "-o", to).returncode == 0


def test_a_live_violation_is_told_before_the_end(
    engine: Engine, said: list[Message], start: Callable[..., Running]
) -> None:
    """While the engine goes on, the hole is a line on stdout; stopped, the report follows and the answer is
    no.
    """
    running = start("check", engine.endpoint, "--json", "--no-strict")
    engine.play([message for message in said[:300] if message[1] not in (100, 101)])
    assert running.process.stdout is not None
    told = json.loads(running.process.stdout.readline())
    assert (told["rule"], told["level"]) == ("sequence", "violation")
    assert "batches 100 to 101 are missing" in told["because"]
    code, out, _ = running.stop()
    report = json.loads(out.splitlines()[-1])
    assert (code, report["verdict"]) == (1, "VIOLATED")


def test_a_live_check_comes_to_an_end(engine: Engine, said: list[Message], kvbus: Kvbus) -> None:
    """With --exit and a replay socket it judges all there is and answers as a log would."""
    engine.play(said, wait=False)
    done = kvbus("check", engine.endpoint, "--replay", engine.replay, "--exit", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "HOLDS"), done.stdout[-800:]


def test_junit_has_a_case_for_each_rule(captures: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """The violated rules are failures with their sentence and witnesses, unknown ones are skipped."""
    holed(captures, tmp_path / "x.duckdb", kvbus)
    done = kvbus("check", "x.duckdb", "--junit", "out.xml")
    suite = Xml.parse(tmp_path / "out.xml").getroot()
    assert done.returncode == 1
    assert [case.get("name") for case in suite] == [f"{about.name} ({about.id})" for about in RULES.values()]
    (failure,) = suite.iter("failure")
    assert "batches 40 to 41 are missing" in (failure.get("message") or "")
    assert "seq 39" in (failure.text or "")
    assert int(suite.get("skipped") or 0) == len(list(suite.iter("skipped"))) > 0
    strict = kvbus("check", "x.duckdb", "--junit", "out.xml", "--strict")
    assert strict.returncode == 1
    assert Xml.parse(tmp_path / "out.xml").getroot().get("skipped") == "0"
    refused = kvbus("check", "x.duckdb", "--junit", "no/such/folder.xml")
    assert (refused.returncode, "cannot write" in refused.stderr) == (2, True)


def test_github_gets_a_line_for_each_violation(captures: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """Errors for violations, warnings for what is unknown, each on one line."""
    holed(captures, tmp_path / "x.duckdb", kvbus)
    lines = kvbus("check", "x.duckdb", "--github").stdout.splitlines()
    assert lines[0].startswith("::error title=kvbus sequence (T1)::x rank 0 epoch 0: batches 40 to 41")
    assert "%0A  at " in lines[0]
    assert {line.partition(" ")[0] for line in lines} == {"::error", "::warning"}


def test_capacity_and_tiers_are_taken(log: Path, kvbus: Kvbus) -> None:
    """A capacity makes eviction judge; one that is none, and several logs, are refused."""
    done = kvbus("check", log, "--capacity", "gpu=10", "--rule", "eviction", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "VIOLATED")
    assert kvbus("check", log, "--capacity", "gpu=1000000", "--tiers", "engine").returncode == 0
    for bad in (
        ["--capacity", "ten"],
        ["--profile", "nobody"],
        ["--rule", "none"],
        ["--tiers", "engine,other"],
        [log],
    ):
        assert kvbus("check", log, *bad).returncode == 2


def test_a_rule_is_named_by_its_id_too(log: Path, kvbus: Kvbus) -> None:
    """--rule takes what --explain takes."""
    by_id = kvbus("check", log, "--rule", "t1", "--json")
    assert by_id.returncode == 0
    assert by_id.stdout == kvbus("check", log, "--rule", "sequence", "--json").stdout


def test_junit_overwrites_nothing_but_a_report(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """The log itself, another file, a folder, a pipe: each is refused before the log is judged, and stays."""
    other, fifo = tmp_path / "other.xml", tmp_path / "pipe"
    other.write_text('<?xml version="1.0" encoding="utf-8"?>\n<testsuite name="x"/>\n')
    os.mkfifo(fifo)
    before = log.read_bytes(), other.read_bytes()
    for place in (log, other, tmp_path, fifo):
        refused = kvbus("check", log, "--junit", place)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "is no JUnit report of kvbus" in refused.stderr
    assert (log.read_bytes(), other.read_bytes()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.xml", "pipe"]


def test_silence_is_no_verdict(sockets: Path, kvbus: Kvbus) -> None:
    """Where nobody said anything the answer is 2, and who was silent."""
    done = kvbus("check", f"ipc://{sockets}/nobody", "--for", "0.3")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"nothing was heard from ipc://{sockets}/nobody" in done.stderr


def test_who_was_silent_is_told(engine: Engine, said: list[Message], sockets: Path, kvbus: Kvbus) -> None:
    """One feed is judged, the other is named on stderr."""
    engine.play(said[:20], wait=False)
    both = ("check", engine.endpoint, f"ipc://{sockets}/nobody")
    done = kvbus(*both, "--replay", engine.replay, "--replay", f"ipc://{sockets}/none", "--for", "3")
    assert done.returncode == 0, done.stderr
    assert f"nothing was heard from ipc://{sockets}/nobody" in done.stderr
    assert engine.endpoint not in done.stderr


def test_rules_are_listed_and_explained(kvbus: Kvbus) -> None:
    """--list has a line for each rule, --explain says all about one, by name or id."""
    listed = [line.split()[:2] for line in kvbus("check", "--list").stdout.splitlines()]
    assert listed[: len(RULES)] == [[about.id, about.name] for about in RULES.values()]
    by_id, by_name = kvbus("check", "--explain", "o2").stdout, kvbus("check", "--explain", "eviction").stdout
    assert by_id == by_name
    assert "eviction.at_once: warning (trtllm violation, kvbus violation)" in by_id
    assert kvbus("check", "--explain", "nothing").returncode == 2
