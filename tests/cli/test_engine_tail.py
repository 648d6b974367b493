"""``kvbus tail --engine``: drains as they come, by tier or as they were made."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from cli.main import app
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "cpu@tcp://a:1"), "expected NAME=TIER@ENDPOINT"),
        (("--engine", "e1=cpu@nonsense"), "expected TIER@ENDPOINT or TIER@ENDPOINT+REPLAY"),
        (("--engine", "e1=cpu@tcp://a:1,cpu@tcp://a:2"), "e1/cpu is there twice"),
        (("--engine", "e1=cpu@tcp://a:1,fs@tcp://a:1"), "e1: two tiers at tcp://a:1"),
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
