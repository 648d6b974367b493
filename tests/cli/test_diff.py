"""``kvbus diff``: two logs, or a baseline and a log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from kvbus.tolerance import TOLERANCES
from tests.cli.processes import Engine, Kvbus, Message, Running, cut_out, until


def imported(captures: Path, folder: Path, kvbus: Kvbus, *, without: set[int], name: str) -> Path:
    capture = folder / f"{name}.frames"
    cut_out(captures / "vllm011_gpu_int.frames", capture, without)
    assert kvbus("import", capture, "-o", f"{name}.duckdb").returncode == 0
    return folder / f"{name}.duckdb"


def test_the_same_is_0_and_different_is_1(captures: Path, log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """Another source name is no difference; a batch that is gone is, with where and how much."""
    same = imported(captures, tmp_path, kvbus, without=set(), name="same")
    done = kvbus("diff", log, same)
    assert (done.returncode, done.stdout[:5]) == (0, "SAME:")
    holed = imported(captures, tmp_path, kvbus, without={40}, name="holed")
    done = kvbus("diff", log, holed, "--json")
    (engine,) = json.loads(done.stdout)["engines"]
    assert done.returncode == 1
    assert [event["seq"] for event in engine["part_a"]] == [40]
    assert engine["part_b"][0]["said"].startswith("lost 1")
    assert (engine["extra"], engine["reordered"]) == (1, 0)
    ignoring = json.loads(kvbus("diff", log, holed, "--json", "--ignore", "losses").stdout)
    assert ignoring["engines"][0]["extra"] == 0
    assert ignoring["ignored"] == ["losses"]


def test_a_baseline_stands_for_its_log(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """Either way round; people see the line of the baseline and the place in the log."""
    assert kvbus("baseline", log, "-o", "x.baseline").returncode == 0
    assert kvbus("diff", "x.baseline", log).returncode == 0
    assert kvbus("diff", log, "x.baseline").returncode == 0
    lines = (tmp_path / "x.baseline").read_text().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2].replace("|", ":")
    (tmp_path / "y.baseline").write_text("".join(lines))
    done = kvbus("diff", "y.baseline", log)
    assert done.returncode == 1
    assert "A > " in done.stdout
    assert "(line 3" in done.stdout
    assert "seq 0 event 0 position 0" in done.stdout


def test_a_log_that_is_written_to_is_compared(
    engine: Engine,
    said: list[Message],
    log: Path,
    start: Callable[..., Running],
    kvbus: Kvbus,
    tmp_path: Path,
) -> None:
    """While a recorder has it open; the recorder goes on."""
    running = start(
        "record", engine.endpoint, "--replay", engine.replay, "-o", "live.duckdb", "--flush", "0.05"
    )
    engine.play(said)
    until(lambda: kvbus("diff", log, tmp_path / "live.duckdb").returncode == 0)
    code, _, _ = running.stop()
    assert code == 0


def test_what_cannot_be_compared_is_2(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """No second log, no such log, no such tolerance, a baseline that is torn: each with a next step."""
    (tmp_path / "torn.baseline").write_text("kvbus baseline 1\nsource 1\n1 | sto")
    for args in ([log], [log, "none.duckdb"], [log, log, "--ignore", "time"], [log, "torn.baseline"]):
        done = kvbus("diff", *args)
        assert (done.returncode, done.stdout, done.stderr.startswith("kvbus: ")) == (2, "", True)
    assert "torn.baseline line 3" in kvbus("diff", log, "torn.baseline").stderr


def test_tolerances_are_listed(kvbus: Kvbus) -> None:
    """--list has a line for each, and docs/regression.md the same table."""
    listed = [line.split(maxsplit=1) for line in kvbus("diff", "--list").stdout.splitlines()]
    assert dict(listed) == TOLERANCES
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "regression.md").read_text()
    assert all(
        f"| `{name}` | {means}".replace("(ownership)", "(`ownership`)") in page
        for name, means in TOLERANCES.items()
    )
