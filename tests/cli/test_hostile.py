"""The command in bad surroundings: streams that take nothing, files that are none, names nobody expects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import logs
from cli.main import app
from kvbus.sink import Sink
from tests.cli.processes import TIMEOUT_S, Kvbus, command, environment, until


def shell(line: str, *args: Path | str, cwd: Path, **env: str) -> tuple[int, str, str]:
    """``line`` in a shell, ``"$@"`` in it being the command: its exit code, stdout and stderr."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", "bash", *command(*args)],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


ANSWERS = [("stat",), ("stat", "--json"), ("check",), ("replay", "--quiet"), ("export",)]


@pytest.mark.parametrize("args", ANSWERS, ids=" ".join)
def test_a_reader_that_leaves_early_is_no_fault(args: tuple[str, ...], log: Path) -> None:
    """`… | head -n 1` and `… >&-` end with 0 and in silence, whatever the command."""
    for line in ('"$@" | head -n 1', '"$@" | true', '"$@" >&-'):
        code, _, said = shell(line, *args, log, cwd=log.parent)
        assert (code, said) == (0, ""), line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("args", [*ANSWERS, ("--version",)], ids=" ".join)
def test_an_output_that_takes_nothing_is_told(args: tuple[str, ...], log: Path) -> None:
    """A full disk under stdout ends with 2 and its own name, and is not called a fault of kvbus."""
    files = [] if args == ("--version",) else [log]
    code, _, said = shell('"$@" >/dev/full', *args, *files, cwd=log.parent)
    assert code == 2
    assert "No space left" in said
    assert "fault in kvbus" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("to", ["&-", "/dev/full"])
@pytest.mark.parametrize(
    ("args", "code"), [(("replay", "-n", "2"), 0), (("stat", "none"), 2), (("no-such-command",), 2)]
)
def test_notices_that_nobody_takes_change_nothing(
    args: tuple[str, ...], code: int, to: str, log: Path
) -> None:
    """With stderr closed or full, answer and exit code are the same, and no notice gets onto stdout."""
    files = [log] if args[0] == "replay" else []
    expected = shell('"$@" 2>/dev/null', *args, *files, cwd=log.parent)
    assert shell(f'"$@" 2>{to}', *args, *files, cwd=log.parent) == expected
    assert expected[0] == code


def test_an_output_without_our_letters_gets_others(log: Path) -> None:
    """Where stdout cannot say … or ←, they are escaped and nothing fails."""
    for args in (("tail", "--help"), ("stat", str(log)), ("check", str(log))):
        code, _, said = shell('"$@"', *args, cwd=log.parent, PYTHONIOENCODING="latin-1:strict")
        assert (code, said) == (0, ""), args


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0.05, 0.1, 0.2, 0.4])
def test_an_interruption_is_never_a_traceback(
    number: signal.Signals, delay_s: float, log: Path, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM, however early: 2 where no answer was given, a word on stderr, no half file."""
    process = subprocess.Popen(
        [command()[0], "-m", "cli.entry", "export", str(log), "-o", "out.frames"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Before the interpreter has come up, the signal is its own matter.
    started = Path(f"/proc/{process.pid}/maps")
    until(lambda: process.poll() is not None or "select" in started.read_text() or not started.exists(), 5)
    time.sleep(delay_s)
    process.send_signal(number)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert "Traceback" not in said
    if process.returncode == 0:
        assert (tmp_path / "out.frames").exists()
    elif process.returncode != -number:
        assert process.returncode == 2
        *before, last = said.splitlines()
        assert last == "kvbus: interrupted before it was done"
        assert [path.name for path in tmp_path.iterdir()] == (["out.frames"] if before else [])


@pytest.mark.parametrize("name", ["pipe.duckdb", "pipe.jsonl", "pipe.frames"])
@pytest.mark.parametrize("args", ["stat LOG", "check LOG", "export LOG", "import LOG -o x.duckdb"])
def test_a_pipe_is_no_file(args: str, name: str, kvbus: Kvbus, tmp_path: Path) -> None:
    """What is read more than once must be a file: a pipe is refused at once, with a way out."""
    os.mkfifo(tmp_path / name)
    done = kvbus(*args.replace("LOG", name).split())
    assert done.returncode == 2
    assert "is not a file" in done.stderr


@pytest.mark.parametrize("name", ["pipe.duckdb", "pipe.jsonl"])
def test_a_pipe_is_no_log_to_write(name: str, kvbus: Kvbus, tmp_path: Path, captures: Path) -> None:
    """A pipe cannot be a log: it is refused rather than waited for."""
    os.mkfifo(tmp_path / name)
    done = kvbus("import", captures / "vllm011_gpu_int.frames", "-o", name)
    assert done.returncode == 2
    assert "is not a file" in done.stderr


@pytest.mark.parametrize("name", ["x" * 300, "x" * 245 + ".duckdb", "nowhere/x.duckdb", "file/x.jsonl"])
def test_names_that_no_file_can_have_are_told(
    name: str, kvbus: Kvbus, tmp_path: Path, captures: Path
) -> None:
    """Names too long, folders that are missing or none: 2 and what is wrong, no fault of kvbus."""
    (tmp_path / "file").touch()
    capture = captures / "vllm011_gpu_int.frames"
    for args in (("stat", name), ("import", capture, "-o", name), ("import", name, "-o", "y.duckdb")):
        done = kvbus(*args)
        assert done.returncode == 2
        assert "fault in kvbus" not in done.stderr


@pytest.mark.parametrize("name", ["x.duckdb", "x.jsonl"])
def test_importers_at_once_double_nothing(
    name: str, tmp_path: Path, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another import wrote until this one was the writer is there already, and not written again."""
    args = ["import", str(captures / "vllm032_restart.frames"), "-o", str(tmp_path / name), "--json"]
    writer = logs.writer

    def late(path: Path) -> Sink:
        monkeypatch.setattr(logs, "writer", writer)
        assert json.loads(CliRunner().invoke(app, args).stdout)["batches"] == 566
        return writer(path)

    monkeypatch.setattr(logs, "writer", late)
    told = json.loads(CliRunner().invoke(app, args).stdout)
    assert (told["batches"], told["already"], told["lost_batches"]) == (0, 566, 0)


@pytest.mark.parametrize("form", ["frames", "jsonl"])
def test_an_export_that_fails_leaves_nothing(form: str, log: Path, tmp_path: Path) -> None:
    """Where the disk is full half way there is no file that looks like the whole."""
    code, _, said = shell('ulimit -f 100; trap "" XFSZ; "$@"', "export", log, "-o", f"x.{form}", cwd=tmp_path)
    assert code == 2
    assert "File too large" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args", ["replay", "export", "export -o x.jsonl", "export -o x", "export -o x.frames"]
)
def test_a_source_that_is_not_there_is_told(args: str, log: Path, kvbus: Kvbus) -> None:
    """--source with a name that the log does not have ends with 2 and the names it has."""
    done = kvbus(*args.split(), log, "--source", "nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert "engine" in done.stderr


@pytest.mark.parametrize(
    "flags", ["--kind stored", "--medium GPU", "--rank 0", "--hash 0x1", "--json", "--format %s"]
)
def test_what_shapes_a_print_is_refused_when_publishing(
    flags: str, log: Path, sockets: Path, kvbus: Kvbus
) -> None:
    """Batches are published whole: a flag that would choose events or their look is refused."""
    done = kvbus("replay", log, "--to", f"ipc://{sockets}/to", "--no-wait", "--linger", "0", *flags.split())
    assert done.returncode == 2
    assert "--to" in done.stderr


@pytest.mark.parametrize(
    "args",
    ["--for inf", "--for 1e10", "--for nan", "--ranks 70000", "--idle inf", "--flush inf"],
)
def test_numbers_out_of_reach_are_refused(args: str, sockets: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """A time that no clock can wait for, more ranks than ports: bad usage, before anything is begun."""
    done = kvbus("record", f"ipc://{sockets}/nobody", "-o", "x.duckdb", *args.split())
    assert done.returncode == 2
    assert args.split()[0] in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_slowest_speed_is_slow(log: Path, kvbus: Kvbus) -> None:
    """A speed at which the next batch is due in aeons is refused."""
    done = kvbus("replay", log, "--speed", "1e-300", "-n", "2", "--quiet")
    assert done.returncode == 2
    assert "is not a speed" in done.stderr
