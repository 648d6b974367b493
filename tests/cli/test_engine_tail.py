"""``kvbus tail --engine``: drains as they come, by tier or as they were made."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import cast

import pytest
from typer.testing import CliRunner

from cli.filters import filters
from cli.format import compile_format
from cli.main import app
from cli.printer import Printer
from cli.tail import Live, follow
from kvbus.engines import Engine, Engines
from kvbus.events import AllBlocksCleared, EventBatch
from kvbus.log import Entry, Received, SourceId
from kvbus.subscriber import Subscriber
from tests.cli.processes import Kvbus, Running
from tests.cli.tiered import HASHES, PATIENT, Tiered, as_drained, drains_of


def test_tail_shows_drains(tiered: Tiered, kvbus: Kvbus) -> None:
    """Events come drain by drain, by tier or, with --order emitted, as they were made; as lines and JSON."""
    drains = drains_of(["cpu", "fs"], 40)
    tiered.play(drains)
    feed = ("tail", "--engine", tiered.flag, "-e", *PATIENT[:2])
    contract = [HASHES + one for _, _, made in as_drained(drains) for one in made]
    assert sorted(contract) != contract
    for order, expected in (("contract", contract), ("emitted", sorted(contract))):
        lines = kvbus(*feed, "--order", order, "--format", "%H")
        assert [int(line) for line in lines.stdout.split()] == expected, lines.stderr
        objects = [json.loads(line) for line in kvbus(*feed, "--order", order, "--json").stdout.splitlines()]
        assert [line["hashes"][0] for line in objects if "hashes" in line] == expected
    few = kvbus(*feed, "--order", "emitted", "-n", "3", "--medium", "FS", "--format", "%m")
    assert few.stdout.split() == ["FS"] * 3
    people = kvbus(*feed, "--order", "emitted").stdout.splitlines()
    assert len(people) == len(contract)


def test_tail_shows_a_round_as_soon_as_it_is_complete(tiered: Tiered, start: Callable[..., Running]) -> None:
    """A tail waits for the tiers, not for the lateness."""
    running = start("tail", "--engine", tiered.flag, *PATIENT[:2], "--format", "%S %s", "-n", "2")
    tiered.wait_for_reader()
    tiered.play([{"cpu": [0], "fs": [1]}])
    code, out, err = running.finish()
    assert (code, out) == (0, "e1/cpu 0\ne1/fs 0\n"), err


class Stopping:
    """A subscriber that has heard one share when the tail is told to stop."""

    holding: frozenset[str] = frozenset()

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def poll(self, _timeout_s: float) -> list[Entry]:
        self._stop.set()
        batch = EventBatch(ts=1.0, events=[AllBlocksCleared()])
        return [Received(SourceId("e1/cpu"), 0, 7, b"", time.time_ns(), False, batch, "map")]


def test_a_tail_that_is_stopped_shows_what_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """What has come of a round that is not complete has its place: it is shown on the way out."""
    stop = threading.Event()
    live = Live(cast(Subscriber, Stopping(stop)), Engines([Engine(("e1/cpu", "e1/fs"))]), None)
    printer = Printer(cell=compile_format("%S %s %k"), filters=filters(None, None, None, None))
    follow(live, printer, end=None, stop=stop, as_made=False)
    assert capsys.readouterr().out == "e1/cpu 7 AllBlocksCleared\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "cpu@tcp://a:1"), "expected NAME=TIER@ENDPOINT"),
        (("--engine", "e1=cpu@nonsense"), "expected TIER@ENDPOINT or TIER@ENDPOINT+REPLAY"),
        (("--engine", "e1=cpu@tcp://a:1,cpu@tcp://a:2"), "e1/cpu is there twice"),
        (("--engine", "e1=cpu@tcp://a:1,fs@tcp://a:1"), "e1: two tiers at tcp://a:1"),
        (("--engine", "e1=cpu@tcp://a:1", "--engine", "e1=fs@tcp://a:2"), "engine: e1 is there twice"),
        (("--engine", "e1=cpu@tcp://a:1+tcp://a:9,fs@tcp://a:2+tcp://a:9"), "tcp://a:9 is of one publisher"),
        (("--engine", "e1=cpu@tcp://a:1+tcp://a:1"), "replay: tcp://a:1 is where batches are published"),
        (("--engine", "e1=cpu@tcp://a:1+tcp://a:2,fs@tcp://a:2"), "tcp://a:2 is where batches are published"),
        (("--engine", "e1=cpu@ipc:///tmp/\x1b[2J"), r"'ipc:///tmp/\x1b[2J' has control characters"),
        (("--engine", "e1=cpu@ipc:///tmp/\udcff"), r"'ipc:///tmp/\udcff' has control characters, or bytes"),
        (("tcp://a:1\x1b[2J",), r"'tcp://a:1\x1b[2J' has control characters"),
        (("--engine", "e1=cpu@tcp://a:1", "--ranks", "2"), "ranks: expected without --engine"),
        (("--engine", "e1=cpu@tcp://a:1", "--bind"), "bind: expected without --engine"),
        (("--engine", "e1=cpu@tcp://a:1,fs@tcp://a:2", "--replay", "tcp://a:3"), "the 2 tiers without one"),
        (("tcp://a:1", "--order", "emitted"), "--order emitted: expected together with an engine"),
        (("--engine", "e1=cpu@tcp://a:1", "--lateness", "0"), "--lateness"),
    ],
)
def test_what_cannot_be_an_engine_is_refused(words: tuple[str, ...], told: str) -> None:
    """A fault in --engine ends with 2 and says what is expected."""
    done = CliRunner().invoke(app, ["tail", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
