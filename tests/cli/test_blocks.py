"""A log asked about blocks: ``where``, ``history``, ``residency``, ``why-removed`` and ``check --story``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbus.testing import block, history
from sinks.duckdb import DuckDBLog
from sinks.jsonl import JsonlLog
from tests.cli.processes import Engine, Kvbus, Message, Running, command, environment, until

STORY = "@e/g#1 g:+a,b | @e/c#1 c:+a | @e/g#1 g:-a | lost(2) g:+b | @e/c#1 c:-a!evicted | c:-a | @e/g#1 clear"
A = f"0x{block('a'):016x}"


@pytest.fixture(params=["day.duckdb", "day.jsonl"])
def story(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A small log of each form, by name."""
    name = str(request.param)
    with (JsonlLog if name.endswith("jsonl") else DuckDBLog)(tmp_path / name) as log:
        log.write([at.entry for at in history(STORY)])
    return name


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_where_names_the_tiers_that_hold_it(story: str, kvbus: Kvbus) -> None:
    """At a position or a time, with the store that brought it in; none is a no."""
    done = kvbus("where", story, A, "--at", "1", "--json")
    (found,) = objects(done)
    assert (done.returncode, found["hash"], found["hex"]) == (0, block("a"), A[2:])
    assert [(one["source"], one["medium"], one["since"]["position"]) for one in found["held"]] == [
        ("e/g", "GPU", 0),
        ("e/c", "CPU", 1),
    ]
    text = kvbus("where", story, "61", "--at", "2").stdout.splitlines()
    assert text[0] == f"{A} is in 1 tier after position 2"
    assert "CPU" in text[1]
    assert "since position 1" in text[1]
    gone = kvbus("where", story, A)
    assert (gone.returncode, gone.stdout.splitlines()[0]) == (1, f"{A} is in no tier after position 6")
    early = kvbus("where", story, A, "--at", "2020-01-01", "--json")
    assert (early.returncode, objects(early)[0]["position"]) == (1, -1)


def test_where_says_what_is_uncertain(story: str, kvbus: Kvbus) -> None:
    """A tier whose source has a hole since is told with the reason."""
    (found,) = objects(kvbus("where", story, A, "--at", "3", "--json"))
    assert [(one["medium"], one["doubt"]) for one in [*found["held"], *found["gone"]]] == [
        ("CPU", None),
        ("GPU", "batches 2 to 3 missing (no_replay)"),
    ]


def test_history_tells_everything_in_order(story: str, kvbus: Kvbus) -> None:
    """Signed and short spellings mean the block; every line says where it stands."""
    steps = objects(kvbus("history", story, A, "--json"))
    assert [(step["position"], step["what"], step["source"], step["reason"]) for step in steps] == [
        (0, "stored", "e/g", None),
        (1, "stored", "e/c", None),
        (2, "removed", "e/g", None),
        (3, "missed", "e/g", None),
        (4, "removed", "e/c", "evicted"),
        (5, "removed", "e/c", None),
    ]
    assert steps[-1]["note"] == "it was not known to be there"
    lines = kvbus("history", story, str(block("a")), "--at", "2").stdout.splitlines()
    assert len(lines) == 3
    assert lines[2].split()[-3:] == ["removed", "GPU", "gone"]


@pytest.mark.parametrize("verb", ["where", "history"])
def test_a_block_that_is_not_there_is_a_no(verb: str, story: str, kvbus: Kvbus) -> None:
    """Nothing on stdout that could be mistaken; what is no hash, and a place that is none, are errors."""
    signed = kvbus(verb, story, "-7")
    assert signed.returncode == 1
    assert kvbus(verb, story, "0xfff").returncode == 1
    for bad in (["zz"], ["0x6"], [A, "--at", "7"], [A, "--at", "noon"]):
        done = kvbus(verb, story, *bad)
        assert (done.returncode, done.stdout) == (2, "")
        assert "\n       " in done.stderr


def test_residency_counts_and_lists(story: str, kvbus: Kvbus) -> None:
    """Tiers with their blocks at any place; with --list a line a block."""
    found = objects(kvbus("residency", story, "--at", "3", "--json"))
    assert [
        (one["source"], one["medium"], one["blocks"], one["copies"], one["certain"]) for one in found
    ] == [
        ("e/c", "CPU", 1, 1, True),
        ("e/g", "GPU", 1, 2, False),
    ]
    listed = kvbus("residency", story, "--at", "1", "--list").stdout.splitlines()
    assert listed[0] == f"CPU - e/c {A[2:]} 1"
    assert len(listed) == 3
    assert [one["copies"] for one in objects(kvbus("residency", story, "--at", "3", "--list", "--json"))] == [
        1,
        2,
    ]
    assert "after position 6" in kvbus("residency", story).stdout


def test_why_removed_sorts_every_removal(story: str, kvbus: Kvbus) -> None:
    """Counts by source, tier and class; with --list each of them."""
    found = objects(kvbus("why-removed", story, "--json"))
    assert [(one["medium"], one["why"], one["how"], one["blocks"]) for one in found] == [
        ("CPU", "evicted", "said", 1),
        ("CPU", "unknown", "inferred", 1),
        ("GPU", "demoted", "inferred", 1),
        ("GPU", "reset", "said", 1),
    ]
    lines = kvbus("why-removed", story, "--list").stdout.splitlines()
    assert [line.split()[-2:] for line in lines[:1]] == [["demoted", "inferred"]]
    assert len(lines) == 4
    assert [one["blocks"] for one in objects(kvbus("why-removed", story, "--list", "--json"))] == [1, 1, 1, 1]
    assert "demoted" in kvbus("why-removed", story).stdout


def test_check_tells_the_story_of_a_violation(story: str, kvbus: Kvbus) -> None:
    """Under the report, the block's life with the witnesses marked; in JSON beside the rules."""
    done = kvbus("check", story, "--story", "--rule", "refcount")
    assert done.returncode == 1
    tale = done.stdout.partition(f"the story of block {A}")[2].splitlines()[1:]
    assert [line[0] for line in tale] == [" ", " ", " ", " ", "▶", "▶"]
    told = json.loads(kvbus("check", story, "--story", "--rule", "refcount", "--json").stdout)
    assert [step["what"] for step in told["stories"][0]["steps"]][-2:] == ["removed", "removed"]
    assert told["verdict"] == "VIOLATED"
    assert kvbus("check", story, "--story", "--github").returncode == 2


def test_they_read_while_a_recorder_writes(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """The log is as it was when it was asked; the recorder is not disturbed."""
    recorder = start("record", engine.endpoint, "--replay", engine.replay, "-o", "x.duckdb", "--flush", "0.1")
    engine.play(said)
    until(lambda: (tmp_path / "x.duckdb").exists() and bool(kvbus("residency", "x.duckdb", "--list").stdout))
    first = kvbus("residency", "x.duckdb", "--list").stdout.split()[3]
    assert kvbus("where", "x.duckdb", first).returncode in (0, 1)
    assert kvbus("history", "x.duckdb", first).stdout != ""
    assert kvbus("why-removed", "x.duckdb").returncode == 0
    assert recorder.stop()[0] == 0


@pytest.mark.parametrize("verb", [["residency", "--list"], ["why-removed", "--list"]])
def test_a_reader_that_leaves_is_an_end(verb: list[str], log: Path) -> None:
    """``| head -1`` ends the command with 0 and without a word."""
    with subprocess.Popen(
        command(*verb, log), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0


@pytest.mark.parametrize("verb", ["where", "history", "residency", "why-removed"])
def test_help_ends_with_examples(verb: str, kvbus: Kvbus) -> None:
    """The last lines of --help can be pasted."""
    assert (
        kvbus(verb, "--help").stdout.strip().splitlines()[-1].strip().startswith(f"kvbus {verb} day.duckdb")
    )
