"""Fixtures: the command, an engine to read, and a finished log."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.processes import TIMEOUT_S, Engine, Kvbus, Message, Running, command, environment, messages
from tests.cli.tiered import Tiered


@pytest.fixture
def kvbus(tmp_path: Path) -> Kvbus:
    """``kvbus(*args)`` runs the command to its end in an empty folder."""

    def run(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*args),
            cwd=tmp_path,
            env=environment(**(env or {})),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``start(*args)`` starts the command and leaves it running; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str | Path, env: dict[str, str] | None = None) -> Running:
        process = subprocess.Popen(
            command(*args),
            cwd=tmp_path,
            env=environment(**(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Running(process)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for Unix sockets: short enough for their names."""
    folder = Path(tempfile.mkdtemp(prefix="kv-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def engine(sockets: Path) -> Iterator[Engine]:
    """An engine nobody reads yet."""
    one = Engine(sockets)
    yield one
    one.publisher.close(0)


@pytest.fixture
def tiered(sockets: Path, request: pytest.FixtureRequest) -> Iterator[Tiered]:
    """An engine that publishes tier by tier: those that the test names (default: cpu and fs)."""
    one = Tiered(sockets, getattr(request, "param", ("cpu", "fs")))
    yield one
    one.close()


@pytest.fixture
def said(captures: Path) -> list[Message]:
    """What a vLLM 0.11 engine said: 0 … N, one rank, GPU only."""
    return messages(captures / "vllm011_gpu_int.frames")


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory, captures: Path) -> Path:
    """A finished log of that engine. Not to be written to."""
    path = tmp_path_factory.mktemp("log") / "day.duckdb"
    done = subprocess.run(
        command("import", captures / "vllm011_gpu_int.frames", "-o", path, "--source", "engine"),
        env=environment(),
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path
