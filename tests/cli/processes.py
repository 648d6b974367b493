"""Running the command as people do: as a process, with its own stdout, stderr, signals and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvbus.capture import CaptureWriter, read_capture
from kvbus.publisher import Publisher

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 60

Kvbus = Callable[..., "subprocess.CompletedProcess[str]"]
Message = tuple[bytes, int, bytes]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would configure kvbus or colour its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVBUS_")}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        kept.pop(name, None)
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"} | more


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "cli.entry", *map(str, args)]


class Running:
    """A command that has been started. ``stop`` sends a signal and waits for the exit code."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        self.process.send_signal(number)
        return self.finish()

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


def messages(path: Path, limit: int | None = None) -> list[Message]:
    """Topic, seq and payload of each live message in a capture."""
    found = [(r.frames[0], int.from_bytes(r.frames[1], "big"), r.frames[2]) for r in read_capture(path)]
    return found[:limit]


class Engine:
    """A real publisher that plays a capture, live to whoever is there and from its replay socket."""

    def __init__(self, sockets: Path) -> None:
        self.endpoint = f"ipc://{sockets}/pub"
        self.replay = f"ipc://{sockets}/rep"
        self.publisher = Publisher(self.endpoint, replay_endpoint=self.replay, when_full="wait")

    def play(self, said: Sequence[Message], *, wait: bool = True) -> None:
        if wait:
            assert self.publisher.wait_for_subscriber(TIMEOUT_S)
        for message in said:
            self.publisher.forward(*message)
        deadline = time.monotonic() + TIMEOUT_S
        while self.publisher.counts().waiting and time.monotonic() < deadline:
            time.sleep(0.01)


def cut_out(capture: Path, to: Path, seqs: set[int]) -> None:
    """A copy of a capture without some of its messages."""
    with CaptureWriter(to) as writer:
        for record in read_capture(capture):
            if int.from_bytes(record.frames[1], "big") not in seqs:
                writer.write(record.received_ns, record.frames)


def until(condition: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
