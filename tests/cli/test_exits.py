"""How the command ends and what it says then: exit codes, closed pipes, help, docs."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.exits import GuardedGroup, stop_signals
from cli.main import app
from kvbus.errors import LogError
from tests.cli.processes import ROOT, TIMEOUT_S, Kvbus, Running, command, cut_out, environment

COMMANDS = ("tail", "record", "replay", "stat", "check", "import", "export", "run", "diff", "baseline")


def failing(error: BaseException) -> typer.Typer:
    """A command like ours that raises."""
    one = typer.Typer(cls=GuardedGroup, pretty_exceptions_enable=False)

    @one.callback()
    def root(debug: bool = False) -> None:
        """Root."""

    @one.command()
    def fail() -> None:
        raise error

    return one


def test_an_error_is_a_message_and_a_next_step() -> None:
    """What kvbus raises on purpose ends with 2, says what to do, and shows no traceback."""
    done = CliRunner().invoke(failing(LogError("it is torn", next_step="Mend it.")), ["fail"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == "kvbus: it is torn.\n       Mend it.\n"


def test_a_fault_of_ours_ends_with_2_and_says_how_to_report_it() -> None:
    """An unexpected exception is no answer: 2, never the interpreter's 1, and a short message."""
    done = CliRunner().invoke(failing(ZeroDivisionError("oh")), ["fail"])
    assert done.exit_code == 2
    assert "unexpected ZeroDivisionError: oh" in done.stderr
    assert "report" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("export", "LOG", "-o", "rows"),
        ("export", "LOG", "-o", "day.jsonl"),
        ("export", "LOG", "-o", "day.frames"),
        ("export", "LOG", "-o", "day", "--format", "parquet"),
        ("baseline", "LOG", "-o", "old"),
        ("check", "LOG", "--junit", "report.xml"),
    ],
    ids=" ".join,
)
def test_a_full_disk_is_told_and_leaves_what_was_there(
    words: tuple[str, ...], log: Path, tmp_path: Path
) -> None:
    """Exit code 2, a next step and no traceback; an older file stays as it was, no draft stays behind."""
    baseline = tmp_path / "old"
    baseline.write_text("kvbus baseline 1\n")
    copy = tmp_path / "LOG.duckdb"
    copy.write_bytes(log.read_bytes())
    done = subprocess.run(
        command(*(copy if word == "LOG" else word for word in words)),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert len(done.stderr.splitlines()) >= 2
    assert ".new" not in done.stderr, "nobody has asked for the file it was written under"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LOG.duckdb", "old"]
    assert baseline.read_text() == "kvbus baseline 1\n"


@pytest.mark.parametrize(("args", "env"), [(["--debug", "fail"], {}), (["fail"], {"KVBUS_DEBUG": "1"})])
def test_tracebacks_are_shown_when_asked(args: list[str], env: dict[str, str]) -> None:
    """--debug and KVBUS_DEBUG=1 show where it went wrong; the exit code stays."""
    done = CliRunner(env=env).invoke(failing(ZeroDivisionError("oh")), args)
    assert done.exit_code == 2
    assert "Traceback" in done.stderr


def test_an_interrupted_question_is_not_answered() -> None:
    """Ctrl-C in a command that owes an answer ends with 2."""
    done = CliRunner().invoke(failing(KeyboardInterrupt()), ["fail"])
    assert done.exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ["no-such-command"],
        ["tail", "--no-such-flag"],
        ["tail", "tcp://127.0.0.1:1", "-n", "0"],
        ["tail"],
        ["tail", "nonsense"],
        ["tail", "tcp://127.0.0.1:1", "--replay", "tcp://127.0.0.1:2", "--replay", "tcp://127.0.0.1:3"],
        ["tail", "tcp://127.0.0.1:1", "tcp://127.0.0.1:1"],
        ["tail", "tcp://127.0.0.1:1", "--format", "%z"],
        ["tail", "tcp://127.0.0.1:1", "--format", "%s", "--json"],
        ["tail", "tcp://127.0.0.1:1", "--from", "yesterday"],
        ["tail", "tcp://127.0.0.1:1", "--hash", "xyz"],
        ["tail", "tcp://127.0.0.1:1", "--config", "none.toml"],
        ["record", "tcp://127.0.0.1:1"],
        ["stat"],
        ["stat", "none.duckdb"],
        ["check", "none.duckdb"],
        ["replay", "none.duckdb"],
        ["replay", "none.duckdb", "--no-wait"],
        ["export", "none.duckdb", "-o", "x.frames"],
        ["export", "none.duckdb", "-o", "x.csv"],
        ["import", "none.frames", "-o", "x.duckdb"],
    ],
)
def test_bad_input_ends_with_2(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be done as it was asked for says so on stderr and ends with 2, stdout empty."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_the_package_s(kvbus: Kvbus) -> None:
    """--version names kvbus and a number."""
    done = kvbus("--version")
    assert re.fullmatch(r"kvbus \d+\.\d+\S*\n", done.stdout), done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples(name: str) -> None:
    """The last thing in the help of each command are commands that can be copied."""
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    examples = done.stdout.split("Examples:")[-1].split("\n")
    lines = [line.strip() for line in examples if line.strip()]
    assert lines
    assert all(line.startswith("kvbus ") for line in lines), lines


def test_the_help_of_the_root_names_every_command() -> None:
    """kvbus --help lists all commands; kvbus alone shows the same and ends with 2."""
    done = CliRunner().invoke(app, ["--help"])
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in COMMANDS)
    assert CliRunner().invoke(app, []).exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_is_in_the_docs(name: str) -> None:
    """docs/cli.md or docs/configuration.md names each command and each of its long flags."""
    docs = "".join((ROOT / "docs" / file).read_text() for file in ("cli.md", "configuration.md"))
    assert f"## {name}\n" in docs
    told = CliRunner().invoke(app, [name, "--help"]).stdout.split("Options:")[1].split("Examples:")[0]
    flags = {flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", told) if flag != "--help"}
    assert flags
    missing = {flag for flag in flags if flag not in docs and "--" + flag.removeprefix("--no-") not in docs}
    assert missing == set()


def test_a_closed_pipe_is_an_end_like_any_other(log: Path, tmp_path: Path) -> None:
    """`kvbus replay LOG | head -n 1` prints a line; kvbus ends with 0 and says nothing of the pipe."""
    with subprocess.Popen(
        command("replay", log, "--quiet"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "BlockStored" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=TIMEOUT_S) == 0


@pytest.mark.parametrize("args", [("--help",), ("tail", "--help"), ("export", "--format", "jsonl")])
def test_nobody_reads_at_all(args: tuple[str, ...], log: Path, tmp_path: Path) -> None:
    """A stdout that is closed before the first byte ends every command with 0 and in silence."""
    process = subprocess.Popen(
        command(*args, *([log] if "export" in args else [])),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=TIMEOUT_S), said) == (0, "")


def test_a_quiet_tail_notices_that_its_reader_left(start: Callable[..., Running], sockets: Path) -> None:
    """Even when nothing comes, `kvbus tail … | head` does not stay behind."""
    running = start("tail", f"ipc://{sockets}/nobody", "--quiet")
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.process.wait(timeout=TIMEOUT_S) == 0


def test_a_closed_pipe_does_not_change_a_verdict(tmp_path: Path, kvbus: Kvbus, captures: Path) -> None:
    """`kvbus check BAD | true` still ends with 1."""
    holed = tmp_path / "holed.frames"
    cut_out(captures / "vllm011_gpu_int.frames", holed, {5})
    assert kvbus("import", holed, "-o", "holed.duckdb").returncode == 0
    process = subprocess.Popen(
        command("check", "holed.duckdb"), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=TIMEOUT_S) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_does_not_wait(number: signal.Signals) -> None:
    """stop_signals notes the first signal, raises at the second, and gives back the handlers there were."""
    before = signal.getsignal(number)
    with stop_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_moment_changes_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """While the interpreter is taken down all has been said: nobody is killed by a second Ctrl-C then."""
    done = subprocess.run(
        [command()[0], "-c", LATE.format(number=int(number))],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kvbus ")


LATE = """
import os, sys

class Late:
    def __del__(self, kill=os.kill, me=os.getpid()):
        kill(me, {number})

sys.taken_down_late = Late()
from cli.entry import main
sys.argv[1:] = ["--version"]
main()
"""


def test_names_in_an_error_cannot_steer_a_terminal() -> None:
    """What is unprintable in a problem is shown; the lines of a list stay lines."""
    error = LogError("2 faults:\n  - \x1b[2J\n  - b", next_step="Mend\rthem.")
    done = CliRunner().invoke(failing(error), ["fail"])
    assert done.stderr == "kvbus: 2 faults:\n  - \\x1b[2J\n  - b.\n       Mend\\rthem.\n"


def test_output_has_no_colour_unless_it_is_a_terminal(log: Path, kvbus: Kvbus) -> None:
    """Pipes get plain text; FORCE_COLOR wants colour all the same, and NO_COLOR is stronger still."""
    plain = kvbus("replay", log, "-n", "3")
    forced = kvbus("replay", log, "-n", "3", env={"FORCE_COLOR": "1"})
    forbidden = kvbus("replay", log, "-n", "3", env={"FORCE_COLOR": "1", "NO_COLOR": "1"})
    assert "\x1b" not in plain.stdout
    assert "\x1b[32m" in forced.stdout
    assert forbidden.stdout == plain.stdout
    assert "\x1b" not in kvbus("stat", log).stdout + kvbus("check", log).stdout


def test_help_and_tail_do_not_load_what_they_do_not_need(tmp_path: Path) -> None:
    """The command comes up without the database, data frames and pydantic."""
    heavy = "{'duckdb', 'pyarrow', 'numpy', 'pydantic', 'rich'}"
    probe = f"import sys, cli.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [command()[0], "-c", probe],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == "[]\n"
