"""The JSON lines log: what a crash leaves at its end is cut off, anything else that is wrong is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbus.errors import LogError, LogLockedError
from kvbus.log import Received
from sinks.jsonl import JsonlLog, open_log
from tests.logs import A, everything, numbered, received, removed

ROOT = Path(__file__).resolve().parent.parent


def written(path: Path) -> bytes:
    with JsonlLog(path) as log:
        log.write(everything())
    return path.read_bytes()


def test_torn_anywhere_it_is_a_prefix_and_goes_on(tmp_path: Path) -> None:
    """Cut at any byte, the log reads as a prefix, and a writer goes on after its last whole entry."""
    path = tmp_path / "log.jsonl"
    whole = written(path)
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        reader = open_log(path)
        found = [(one.position, one.entry) for one in reader.entries()]
        reader.close()
        assert found == numbered(everything())[: len(found)]
        count = sum(isinstance(entry, Received) for _, entry in found)
        assert reader.batch_count() == count
        with JsonlLog(path) as log:
            log.write(everything()[len(found) :])
        assert path.read_bytes() == whole, cut


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """A line that cannot be read, with more after it, is refused with its number and left as it is."""
    path = tmp_path / "log.jsonl"
    lines = written(path).splitlines(keepends=True)
    damaged = b"".join([*lines[:3], b"{]\n", *lines[3:]])
    path.write_bytes(damaged)
    for opening in (JsonlLog, open_log):
        with pytest.raises(LogError, match="line 4"):
            opening(path)
    assert path.read_bytes() == damaged


def test_one_process_writes(tmp_path: Path) -> None:
    """A second writer is refused, a reader is not."""
    path = tmp_path / "log.jsonl"
    with JsonlLog(path) as log:
        log.write(everything())
        log.flush()
        with pytest.raises(LogLockedError, match="another process"):
            JsonlLog(path)
        reader = open_log(path)
        assert reader.batch_count() == 8
        log.write([received(A, 9, removed(1), epoch=1)])
        log.flush()
        assert len(list(reader.entries())) == len(everything())
        reader.close()


def test_missing_places_are_refused(tmp_path: Path) -> None:
    """A folder that is not there, or a folder instead of a file, is refused in plain words."""
    for path in (tmp_path / "no" / "log.jsonl", tmp_path):
        for opening in (JsonlLog, open_log):
            with pytest.raises(LogError, match="cannot be opened"):
                opening(path)


FULL = """
import resource, sys
from kvbus.errors import LogError
from sinks.jsonl import JsonlLog
from tests.logs import A, received, stored
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
log = JsonlLog(sys.argv[1])
durable = 0
try:
    for seq in range(10_000):
        log.write([received(A, seq, stored(seq))])
        log.flush()
        durable = seq + 1
except LogError as error:
    print(durable, error.problem, sep="|")
for call in (log.flush, log.close, log.close):
    try:
        call()
        print("quiet")
    except LogError:
        print("still")
"""


def test_a_full_disk_loses_nothing_flushed(tmp_path: Path) -> None:
    """When the file cannot grow, the writer is told, and all that was flushed before is there."""
    path = tmp_path / "log.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, *rest = done.stdout.splitlines()
    durable, problem = first.split("|")
    assert "could not be written" in problem
    assert rest == ["still", "quiet", "quiet"]
    assert int(durable) > 100
    with JsonlLog(path) as log:
        assert log.standings()[A].next_seq == int(durable)


@pytest.mark.parametrize(
    "text", ["my diary, without a newline", '{"mine": 1}', '{"events": 2}\n', '{"sour'[:1] + "x"]
)
def test_another_file_is_left_alone(text: str, tmp_path: Path) -> None:
    """What cannot have been begun by kvbus is refused, not taken for a torn log and emptied."""
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    for opening in (JsonlLog, open_log):
        with pytest.raises(LogError):
            opening(path)
    assert path.read_text() == text


def test_a_file_that_is_another_by_now_is_not_read_on(tmp_path: Path) -> None:
    """A reader sees the log that it opened: where the file was removed or replaced since, it says so."""
    path = tmp_path / "log.jsonl"
    written(path)
    reader = open_log(path)
    path.rename(tmp_path / "old.jsonl")
    with pytest.raises(LogError, match="No such file"):
        list(reader.entries())
    with JsonlLog(path) as log:
        log.write(everything()[:1])
    with pytest.raises(LogError, match="another file"):
        list(reader.entries())
    reader.close()
