"""``kvbus baseline``: a log's order as text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cli.processes import Kvbus, command, environment


def test_a_baseline_goes_to_stdout_or_a_file(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """Both are the same text; what was written is said on stderr, or with --json on stdout."""
    shown = kvbus("baseline", log)
    assert (shown.returncode, shown.stderr) == (0, "")
    done = kvbus("baseline", log, "-o", "x.baseline", "--json")
    told = json.loads(done.stdout)
    text = (tmp_path / "x.baseline").read_text()
    assert text == shown.stdout
    assert text.startswith("kvbus baseline 1\n")
    assert told["file"] == "x.baseline"
    assert told["events"] == len([line for line in text.splitlines() if line[0].isdigit()])
    assert "x.baseline: " in done.stderr
    again = kvbus("baseline", log, "-o", "x.baseline")
    assert (again.returncode, again.stdout) == (0, "")


def test_nothing_else_is_overwritten(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """A file that is no baseline stays; --json without a file has nothing to say."""
    (tmp_path / "notes").write_text("mine")
    for args in (["-o", "notes"], ["--json"], ["-o", "no/such/folder"]):
        assert kvbus("baseline", log, *args).returncode == 2
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_setting_of_json_is_for_where_it_matters(log: Path, kvbus: Kvbus) -> None:
    """KVBUS_JSON does not keep the text from stdout."""
    done = kvbus("baseline", log, env={"KVBUS_JSON": "1"})
    assert (done.returncode, done.stdout[:17]) == (0, "kvbus baseline 1\n")


def test_links_are_written_through(log: Path, tmp_path: Path, kvbus: Kvbus) -> None:
    """As every -o does: what the link leads to is made or replaced, here and by export."""
    for words, name in ((("baseline", log), "x.baseline"), (("export", log), "x.jsonl")):
        link = tmp_path / f"link-{name}"
        link.symlink_to(name)
        assert kvbus(*words, "-o", link).returncode == 0
        assert link.is_symlink()
        assert (tmp_path / name).stat().st_size > 0
    assert kvbus("baseline", log, "-o", "link-x.baseline").returncode == 0
    assert kvbus("export", log, "-o", "link-x.jsonl").returncode == 2


def test_a_reader_that_leaves_is_no_fault(log: Path) -> None:
    """``| head`` ends it with 0 and no word on stderr."""
    process = subprocess.Popen(
        command("baseline", log),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"kvbus baseline 1\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0
