"""Three tiers under made-up chats: they move blocks and say so, others record, tail and check. `make demo`

`kvbus run` is a GPU, a CPU tier and files on the disk that serve requests and publish on sockets of their
own; one process records them as one engine, another tails them, and a reader checks the log while it is
written. Every claim at the end is checked: each block that came back, the log against what the tiers counted,
the order of every drain. Exit code 1 if anything is not as claimed. Everything started is stopped, and what
was written is removed.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console
from rich.text import Text

from kvbus.events import EventBatch
from kvbus.log import Received
from sinks.duckdb import open_log

TIERS: Final = ("gpu", "cpu", "fs")
ENGINE: Final = ",".join(f"{tier}@ipc://kv-{tier}+ipc://kv-{tier}-replay" for tier in TIERS)
RUN: Final = (
    "run --seed 7 --limit 250 --gpu-blocks 192 --tier cpu:blocks=512,policy=arc"
    " --tier fs:path=blocks,max_blocks=1500 --publish ipc://kv"
)
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
    out.print("\n[bold]kvbus demo[/bold]  GPU, CPU and disk under chat traffic: real blocks, real sockets")
    with tempfile.TemporaryDirectory(prefix="kvbus-demo-") as name, ExitStack() as stack:
        claims = play(Kvbus(Path(name), stack))
    return judge(claims)


def play(kvbus: Kvbus) -> dict[str, bool]:
    """Every claim, and whether it holds."""
    claims = {}
    log = kvbus.folder / "demo.duckdb"

    step("one process records three tiers as one engine, another tails them")
    recorder = kvbus.start(f"record --engine demo={ENGINE} -o demo.duckdb --quiet")
    tail = kvbus.start(f"tail --engine demo={ENGINE} --quiet", stdout=subprocess.PIPE)
    lines = Lines(tail)
    claims["the recorder has its log open"] = appears(log)

    step("the tiers serve 250 requests; every block that comes back is compared")
    runner = kvbus.start(f"{RUN} --json", stdout=subprocess.PIPE)
    answers = watched_while_it_runs(kvbus, runner)
    assert runner.stdout is not None
    tally = json.loads(runner.stdout.read())
    claims["the run ends well"] = runner.wait(DEADLINE_S) == 0
    returned = sum(tier["hits"] for tier in tally["tiers"][1:])
    claims[f"of {returned:,} blocks that came back from CPU and disk, none was wrong"] = (
        returned > 0 and tally["mismatches"] == 0
    )
    claims["every tier was hit, and had to evict"] = all(t["hits"] and t["evictions"] for t in tally["tiers"])

    step("what the tiers did, by their own count")
    for tier in tally["tiers"]:
        out.print("  {tier:4} {hits:6,} hits {stores:6,} stores {evictions:6,} evictions".format(**tier))
    events = sum(tier["events"] for tier in tally["tiers"])
    claims[f"tail has shown a line for each of {events:,} events"] = lines.come_to(events)
    tail.send_signal(signal.SIGINT)
    claims["check answered while record wrote"] = set(answers) == {0}

    recorder.send_signal(signal.SIGINT)
    claims["the recorder stops cleanly"] = recorder.wait(DEADLINE_S) == 0

    step("was the order right?")
    code, verdict = kvbus.answer("check demo.duckdb")
    printed(verdict)
    claims["check: the order holds"] = code == 0 and Text.from_ansi(verdict).plain.startswith("HOLDS")
    claims["positions in the log: every drain, primary tier first"] = in_contract_order(log)

    step("what is in it?")
    _, table = kvbus.answer("stat demo.duckdb")
    printed(table)
    code, text = kvbus.answer("stat demo.duckdb --json", show=False)
    claims["the log holds what the tiers say they stored and evicted"] = code == 0 and agrees(
        json.loads(text), tally
    )
    return claims


class Lines:
    """Shows some of what a process prints, as it prints it, and counts all of it."""

    def __init__(self, process: Process) -> None:
        self.count = 0
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        shown_until = 0.0
        for line in self._process.stdout:
            self.count += 1
            if time.monotonic() >= shown_until:
                printed(line)
                shown_until = time.monotonic() + 1 / LINES_A_SECOND

    def come_to(self, number: int) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        while self.count < number and time.monotonic() < deadline:
            time.sleep(0.05)
        out.print(f"  … tail has shown {self.count:,} lines in all", style="dim")
        return self.count == number


def appears(path: Path) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.exists()


def watched_while_it_runs(kvbus: Kvbus, runner: Process) -> list[int]:
    """Ask `check` now and then, beside the recorder, until the run is over; how it answered."""
    answers: list[int] = []
    shown("check demo.duckdb          # again and again, while it is written")
    while runner.poll() is None or not answers:
        code, verdict = kvbus.answer("check demo.duckdb", show=False)
        answers.append(code)
        out.print(f"  {Text.from_ansi(verdict).plain.partition(chr(10))[0]}", style="dim")
    return answers


def in_contract_order(log: Path) -> bool:
    """Whether the log's positions are the drains: one timestamp each, every tier's share, GPU, CPU, disk."""
    with open_log(log) as reader:
        batches = [one.entry for one in reader.entries() if isinstance(one.entry, Received)]
    told = [(b.batch.ts, b.source.source) for b in batches if isinstance(b.batch, EventBatch)]
    drains = [[name for _, name in drain] for _, drain in itertools.groupby(told, key=lambda pair: pair[0])]
    times = [ts for ts, _ in told]
    return times == sorted(times) and all(drain == [f"demo/{tier}" for tier in TIERS] for drain in drains)


def agrees(stat: dict[str, Any], tally: dict[str, Any]) -> bool:
    """Whether the log has, by medium, the blocks that the tiers themselves counted."""
    wanted = Counter[tuple[str, str]]()
    for tier in tally["tiers"]:
        wanted["BlockStored", tier["medium"]] += tier["stores"]
        wanted["BlockRemoved", tier["medium"]] += tier["evictions"]
    return all(stat["blocks"][kind].get(medium) == many for (kind, medium), many in wanted.items())


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
