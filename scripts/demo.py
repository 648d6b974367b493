"""A stream of a real engine through three processes: publish → record → tail, then check and stat. `make
demo`

The committed capture is what a vLLM 0.32 engine published. It goes into a log, one process publishes that
log as the engine did, a second records it, a third tails it. Every claim is checked: the recording against
the capture, byte for byte, and what `stat` counts against what was counted when the engine ran. Exit code 1
if anything is not as claimed. Everything started is stopped, and what was written is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console
from rich.text import Text

from kvbus.capture import read_capture

CAPTURE: Final = Path(__file__).resolve().parent.parent / "tests" / "captures" / "vllm032_gpu_int.frames"
LINES_A_SECOND: Final = 4
DEADLINE_S: Final = 60.0

out = Console(highlight=False)
Process = subprocess.Popen[str]


class Kvbus:
    """Runs `kvbus` commands in ``folder``; stops, at the end, those that still run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._environ = os.environ | ({"FORCE_COLOR": "1"} if out.is_terminal else {})

    def start(self, line: str, *, stdout: int | None = None) -> Process:
        shown(line)
        process = subprocess.Popen(
            command(line), cwd=self.folder, env=self._environ, stdout=stdout, text=True, encoding="utf-8"
        )
        self._stack.callback(stop, process)
        return process

    def answer(self, line: str, *, show: bool = True) -> tuple[int, str]:
        """Run a command to its end: its exit code and what it said on stdout."""
        if show:
            shown(line)
        done = subprocess.run(
            command(line),
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout


def command(line: str) -> list[str]:
    return [sys.executable, "-m", "cli.entry", *line.split()]


def main() -> int:
    meta = json.loads(CAPTURE.with_suffix(".meta.json").read_text())
    engine = f"{meta['engine']} {meta['version'].split()[0]}"
    out.print(f"\n[bold]kvbus demo[/bold]  a stream of {engine}, as it was received")
    with tempfile.TemporaryDirectory(prefix="kvbus-demo-") as name, ExitStack() as stack:
        folder = Path(name)
        shutil.copy(CAPTURE, folder)
        claims = play(Kvbus(folder, stack), meta)
    return judge(claims)


def play(kvbus: Kvbus, meta: dict[str, Any]) -> dict[str, bool]:
    """Every claim, and whether it holds."""
    claims = {}
    events = sum(meta["events_by_type_medium"].values())

    step("what the engine said, as a log")
    code, _ = kvbus.answer(f"import {CAPTURE.name} -o engine.duckdb")
    claims["the capture is read"] = code == 0

    step("three processes: a recorder, a tail, and the publisher they wait for")
    recorder = kvbus.start("record ipc://live --replay ipc://replay -o recorded.duckdb --quiet")
    tail = kvbus.start(
        f"tail ipc://live --replay ipc://replay --quiet --count {events}", stdout=subprocess.PIPE
    )
    publisher = kvbus.start(
        "replay engine.duckdb --to ipc://live --replay-endpoint ipc://replay --speed 1 --quiet"
    )
    lines = watch(tail)
    claims["the publisher leaves when all is out"] = publisher.wait(DEADLINE_S) == 0
    claims[f"tail has shown a line for each of {events:,} events"] = lines == events

    step("while the recorder has the log open, others read it")
    seen = settled(kvbus, meta["messages"])
    claims["stat answers while record writes"] = seen and recorder.poll() is None
    recorder.send_signal(signal.SIGINT)
    claims["the recorder stops cleanly"] = recorder.wait(DEADLINE_S) == 0

    step("was the order right?")
    code, verdict = kvbus.answer("check recorded.duckdb")
    printed(verdict)
    claims["check: the order holds"] = code == 0 and Text.from_ansi(verdict).plain.startswith("HOLDS")

    step("what is in it?")
    _, table = kvbus.answer("stat recorded.duckdb")
    printed(table)
    code, text = kvbus.answer("stat recorded.duckdb --json", show=False)
    claims["stat counts what was counted at the engine"] = code == 0 and agrees(json.loads(text), meta)

    step("is it what the engine sent?")
    code, _ = kvbus.answer("export recorded.duckdb -o recorded.frames")
    same = code == 0 and frames(kvbus.folder / "recorded.frames") == frames(CAPTURE)
    claims["the recording equals the capture, byte for byte"] = same
    return claims


def watch(tail: Process) -> int:
    """Show some of what tail prints, as it prints it; how many lines there were."""
    assert tail.stdout is not None
    count, shown_until = 0, 0.0
    overdue = threading.Timer(DEADLINE_S, tail.kill)
    overdue.start()
    for line in tail.stdout:
        count += 1
        if time.monotonic() >= shown_until:
            printed(line)
            shown_until = time.monotonic() + 1 / LINES_A_SECOND
    overdue.cancel()
    out.print(f"  … {count:,} lines in all", style="dim")
    return count


def settled(kvbus: Kvbus, batches: int) -> bool:
    """Whether a reader beside the recorder comes to see all batches."""
    deadline = time.monotonic() + 10
    shown("stat recorded.duckdb --json")
    while time.monotonic() < deadline:
        code, text = kvbus.answer("stat recorded.duckdb --json", show=False)
        if code == 0 and json.loads(text)["batches"] == batches:
            out.print(f"  {batches:,} batches, and the recorder goes on")
            return True
        time.sleep(0.2)
    return False


def agrees(stat: dict[str, Any], meta: dict[str, Any]) -> bool:
    """Whether stat's object says what the capture's independent count says."""
    counted = {}
    for section, wanted in (("events", "events_by_type_medium"), ("blocks", "block_hashes_by_type_medium")):
        for kind, media in stat[section].items():
            pairs = media.items() if isinstance(media, dict) else [(None, media)]
            for medium, many in pairs:
                counted[section, kind if medium is None else f"{kind}/{medium}"] = many
        for key, many in meta[wanted].items():
            if counted.get((section, key)) != many:
                return False
    resident = meta["resident_at_end_distinct_hashes"]
    return bool(stat["batches"] == meta["messages"] and stat["resident"] == resident)


def frames(capture: Path) -> list[list[bytes]]:
    return [record.frames for record in read_capture(capture)]


def judge(claims: dict[str, bool]) -> int:
    step("so")
    for claim, holds in claims.items():
        out.print(f"  [green]✓[/green] {claim}" if holds else f"  [bold red]✗ {claim}[/bold red]")
    return 0 if all(claims.values()) else 1


def step(text: str) -> None:
    out.print(f"\n[bold]{text}[/bold]")


def shown(line: str) -> None:
    out.print(f"  $ kvbus {line}", style="dim", markup=False, soft_wrap=True)


def printed(text: str) -> None:
    for line in text.rstrip().splitlines():
        out.print(Text.from_ansi("  " + line), soft_wrap=True)


def stop(process: Process) -> None:
    """End what still runs: asked first, then made to."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    close(process.stdout)


def close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        pipe.close()


if __name__ == "__main__":
    sys.exit(main())
