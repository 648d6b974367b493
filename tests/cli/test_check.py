"""``kvbus check``: of a log, of engines that are speaking, and for machines that run it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

from kvbus.profile import PROFILES
from kvbus.rules.table import RULES
from sinks.duckdb import DuckDBLog
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
    assert kvbus("check", log, "--capacity", "gpu=1000000", "--tiers", "engine, engine").returncode == 0
    for bad in (
        ["--capacity", "ten"],
        ["--profile", "nobody"],
        ["--rule", "none"],
        ["--tiers", "engine,other"],
        [log],
    ):
        assert kvbus("check", log, *bad).returncode == 2


def test_tiers_are_sources_of_any_log(log: Path, kvbus: Kvbus) -> None:
    """A name that a log has no source of is refused with those it has, be it DuckDB or JSON lines."""
    assert kvbus("export", log, "-o", "day.jsonl").returncode == 0
    for one in (log, Path("day.jsonl")):
        done = kvbus("check", one, "--tiers", "engine,other")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no source 'other'" in done.stderr
        assert "sources are: engine" in done.stderr


def test_a_log_is_not_judged_with_engines(log: Path, kvbus: Kvbus) -> None:
    """A log beside an endpoint is refused as what it is."""
    done = kvbus("check", log, "tcp://127.0.0.1:5557")
    assert (done.returncode, "cannot be judged together" in done.stderr) == (2, True)


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


def test_a_report_that_is_a_link_is_written_through(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """What the link leads to is the new report, and the link stays."""
    (tmp_path / "link.xml").symlink_to("out.xml")
    for _ in range(2):
        assert kvbus("check", log, "--junit", "link.xml").returncode == 0
    assert (tmp_path / "link.xml").is_symlink()
    assert len(Xml.parse(tmp_path / "out.xml").getroot()) == len(RULES)


def test_silence_is_no_verdict(sockets: Path, kvbus: Kvbus) -> None:
    """Where nobody said anything the answer is 2, and who was silent."""
    done = kvbus("check", f"ipc://{sockets}/nobody", "--for", "0.3")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"nothing was heard from ipc://{sockets}/nobody" in done.stderr


def test_nothing_holds_of_who_was_silent(
    engine: Engine, said: list[Message], sockets: Path, kvbus: Kvbus
) -> None:
    """One feed is judged; as the other said nothing the answer is UNKNOWN for every rule, told once."""
    engine.play(said[:20], wait=False)
    both = ["check", engine.endpoint, f"ipc://{sockets}/nobody", "--replay", engine.replay]
    both += ["--replay", f"ipc://{sockets}/none", "--for", "3", "--strict"]
    done = kvbus(*both, "--rule", "refcount", "--rule", "eviction")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "UNKNOWN",
        "  UNKNOWN  refcount (O1), eviction (O2)",
        f"    unknown: nothing was heard from ipc://{sockets}/nobody: it is not judged",
    ]
    assert engine.endpoint not in done.stdout


def test_an_empty_log_proves_nothing(tmp_path: Path, kvbus: Kvbus) -> None:
    """Of a log without batches every rule is UNKNOWN, which is 0, and 1 with --strict."""
    DuckDBLog(tmp_path / "empty.duckdb").close()
    (tmp_path / "empty.jsonl").touch()
    for name in ("empty.duckdb", "empty.jsonl"):
        done = kvbus("check", name, "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["verdict"]) == (0, "UNKNOWN")
        assert {rule["verdict"] for rule in report["rules"]} == {"UNKNOWN"}
    strict = kvbus("check", "empty.duckdb", "--strict")
    assert (strict.returncode, strict.stdout.count("no batch was seen")) == (1, 1)
    github = kvbus("check", "empty.duckdb", "--github").stdout.splitlines()
    assert [line.partition("::no batch")[0] for line in github] == [
        f"::warning title=kvbus sequence (T1) and {len(RULES) - 1} more"
    ]


def test_rules_are_listed_and_explained(kvbus: Kvbus) -> None:
    """--list has a line for each rule, --explain says all about one, by name or id."""
    listed = [line.split()[:2] for line in kvbus("check", "--list").stdout.splitlines()]
    assert listed[: len(RULES)] == [[about.id, about.name] for about in RULES.values()]
    by_id, by_name = kvbus("check", "--explain", "o2").stdout, kvbus("check", "--explain", "eviction").stdout
    assert by_id == by_name
    assert "eviction.at_once: warning (trtllm violation, kvbus violation)" in by_id
    assert kvbus("check", "--list", "--rule", "o2").returncode == 2
    assert kvbus("check", "--explain", "nothing").returncode == 2


def test_rules_are_objects_for_machines(kvbus: Kvbus) -> None:
    """--json has a line for each rule and profile; with --explain the one rule, the same."""
    objects = list(map(json.loads, kvbus("check", "--list", "--json").stdout.splitlines()))
    rules = {one["rule"]: one for one in objects if "rule" in one}
    assert list(rules) == list(RULES)
    assert [one["profile"] for one in objects if "profile" in one] == list(PROFILES)
    at_once = {"level": "warning", "profiles": {"trtllm": "violation", "kvbus": "violation"}}
    assert rules["eviction"]["findings"]["eviction.at_once"] == at_once
    assert json.loads(kvbus("check", "--explain", "O2", "--json").stdout) == rules["eviction"]
