"""``--engine``: one engine's tiers, each on a socket of its own, as their composing manager drained them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbus.dialects import encode
from kvbus.log import EpochBegan, Loss, Received
from kvbus.publisher import Publisher
from tests.cli.processes import TIMEOUT_S, Kvbus, Running, until
from tests.cli.tiered import (
    LOG,
    PATIENT,
    Tiered,
    as_drained,
    drains_of,
    entries_of,
    events_of,
    heard,
    missing,
    shown_by,
    stopped,
    ts_of,
)
from tests.engine import Engine, Faults, numbered


@pytest.mark.parametrize("tiered", [("cpu", "fs"), ("cpu", "fs", "s3")], indirect=True)
def test_the_log_is_what_was_drained(
    tiered: Tiered, start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """Positions are the drains in order, primary first, whatever the sockets brought first; every tier is a
    source of its own and the log is clean."""
    drains = drains_of(list(tiered.tiers), 200)
    tiered.play(drains[:50])
    running = start("record", "--engine", tiered.flag, "-o", LOG, *PATIENT)
    tiered.wait_for_reader()
    for number, drain in enumerate(drains[50:], 50):
        tiered.play([drain], number)
    count = len(drains) * len(tiered.tiers)
    entries = shown_by(tmp_path / LOG, count)
    stopped(running, f"recorded {count} batches")
    assert heard(entries) == as_drained(drains)
    assert missing(entries) == []
    assert kvbus("check", LOG, "--strict").returncode == 0
    told = json.loads(kvbus("stat", LOG, "--json").stdout)
    assert {source["source"] for source in told["sources"]} == {f"e1/{tier}" for tier in tiered.tiers}


def test_a_slow_tier_is_waited_for(tiered: Tiered, start: Callable[..., Running], tmp_path: Path) -> None:
    """Nothing of a round is written before the slow tier's share has come, and then all of it in order."""
    drains = drains_of(["cpu", "fs"], 60)
    running = start("record", "--engine", tiered.flag, "-o", LOG, *PATIENT)
    tiered.wait_for_reader()
    tiered.say("cpu", drains)
    tiered.say("fs", drains[:20])
    assert heard(shown_by(tmp_path / LOG, 40)) == as_drained(drains[:20])
    tiered.say("fs", drains[20:], 20)
    assert heard(shown_by(tmp_path / LOG, 120)) == as_drained(drains)
    stopped(running, "recorded 120 batches")


def test_a_lossy_tier_is_repaired_before_its_rounds_are_out(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    """Messages that the network dropped come from the tier's replay, at their place in the order."""
    drains = drains_of(["cpu", "fs"], 120, seed=7)
    lossy = Faults(drop=frozenset(random.Random(3).sample(range(110), 30)))
    batches = {
        tier: numbered(
            encode(events_of(tier, drain[tier]), ts=ts_of(number)) for number, drain in enumerate(drains)
        )
        for tier in ("cpu", "fs")
    }
    with Engine(batches["cpu"]) as cpu, Engine(batches["fs"], lossy) as fs:
        flag = f"e1=cpu@{cpu.endpoint},fs@{fs.endpoint}"
        replays = ("--replay", cpu.replay, "--replay", fs.replay)
        running = start("record", "--engine", flag, *replays, "-o", LOG, *PATIENT)
        entries = shown_by(tmp_path / LOG, 240)
        stopped(running, "recorded 240 batches")
    assert heard(entries) == as_drained(drains)
    assert missing(entries) == []


def test_a_tier_may_be_killed_and_come_back(
    tiered: Tiered, start: Callable[..., Running], tmp_path: Path
) -> None:
    """While it is gone the others are recorded without it; afterwards it has its place again."""
    drains = drains_of(["cpu", "fs"], 90)
    running = start("record", "--engine", tiered.flag, "-o", LOG, "--lateness", "3", "--flush", "0.05")
    tiered.wait_for_reader()
    tiered.play(drains[:30])
    shown_by(tmp_path / LOG, 60)
    tiered.tiers["fs"].close(0)
    tiered.play(drains[30:60], 30, without="fs")
    tiered.restart("fs")
    assert tiered.tiers["fs"].wait_for_subscriber(TIMEOUT_S)
    tiered.play(drains[60:], 60)
    entries = shown_by(tmp_path / LOG, 150)
    stopped(running, "recorded 150 batches")
    gone = as_drained(drains[30:60], 30, without="fs")
    assert heard(entries) == as_drained(drains[:30]) + gone + as_drained(drains[60:], 60)
    epochs = [(one.source.source, one.epoch) for one in entries if isinstance(one, EpochBegan)]
    assert sorted(epochs) == [("e1/cpu", 0), ("e1/fs", 0), ("e1/fs", 1)]
    assert missing(entries) == []


def test_a_tier_that_is_not_there_is_named_once(
    tiered: Tiered, sockets: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    """A wrong address holds the others back for the lateness only, and a word on stderr says what is
    missing."""
    drains = drains_of(["cpu", "fs"], 40)
    flag = tiered.flag + f",s3@ipc://{sockets}/typo"
    running = start("record", "--engine", flag, "-o", LOG, "--lateness", "0.3", "--flush", "0.05")
    tiered.wait_for_reader()
    tiered.play(drains[:20])
    shown_by(tmp_path / LOG, 40)
    tiered.play(drains[20:], 20)
    assert heard(shown_by(tmp_path / LOG, 80)) == as_drained(drains)
    err = stopped(running, "recorded 80 batches")
    assert err.count("e1/s3: nothing heard, its share of the rounds is missing") == 1
    assert "e1/cpu:" not in err


def test_what_waits_when_a_recorder_stops_is_kept(
    tiered: Tiered, start: Callable[..., Running], tmp_path: Path
) -> None:
    """On SIGINT the shares of a round that cannot be complete are written all the same."""
    drains = drains_of(["cpu", "fs"], 5)
    running = start("record", "--engine", tiered.flag, "-o", LOG, *PATIENT)
    tiered.wait_for_reader()
    tiered.play(drains[:4])
    shown_by(tmp_path / LOG, 8)
    tiered.say("cpu", drains[4:], 4)
    until(lambda: tiered.tiers["cpu"].counts().waiting == 0)
    stopped(running, "recorded 9 batches")
    again = start("record", "--engine", tiered.flag, "-o", LOG, *PATIENT)
    tiered.say("fs", drains[4:], 4)
    assert heard(shown_by(tmp_path / LOG, 10)) == as_drained(drains)
    assert stopped(again, "recorded 1 batches")


def test_a_recording_that_ends_inside_a_round_is_continued_inside_it(
    tiered: Tiered, start: Callable[..., Running], tmp_path: Path
) -> None:
    """Whichever batch was the last, the next recorder goes on with the one behind it."""
    drains = drains_of(["cpu", "fs"], 6)
    tiered.play(drains)
    for count in (1, 4, 7):
        running = start("record", "--engine", tiered.flag, "-o", LOG, "-n", str(count), *PATIENT)
        code, _, err = running.finish()
        assert code == 0, err
    entries = entries_of(tmp_path / LOG)
    assert heard(entries) == as_drained(drains)
    assert missing(entries) == []


def test_a_share_that_is_late_is_declared(
    tiered: Tiered, start: Callable[..., Running], tmp_path: Path
) -> None:
    """A restarted recorder, too, does not put a share behind what the log has after its place."""
    drains = drains_of(["cpu", "fs"], 3)
    words = ("record", "--engine", tiered.flag, "-o", LOG, "--lateness", "0.2", "--flush", "0.05")
    first = start(*words)
    tiered.wait_for_reader()
    tiered.say("cpu", drains)
    shown_by(tmp_path / LOG, 3)
    stopped(first, "recorded 3 batches")
    tiered.say("fs", drains)
    again = start(*words)
    entries = shown_by(tmp_path / LOG, 4)
    until(lambda: len(missing(entries_of(tmp_path / LOG))) == 4)
    stopped(again, "recorded 1 batches")
    assert heard(entries) == [*as_drained(drains, without="fs"), ("fs", 2, drains[2]["fs"])]
    losses = [one for one in entries_of(tmp_path / LOG) if isinstance(one, Loss)]
    assert [(one.first_seq, one.reason) for one in losses] == [(0, "late"), (1, "late")]


def test_feeds_beside_an_engine_go_straight_through(
    tiered: Tiered, sockets: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    """A feed that is no tier does not wait for the engine's tiers, nor they for it."""
    drains = drains_of(["cpu", "fs"], 10)
    running = start("record", "--engine", tiered.flag, f"ipc://{sockets}/alone", "-o", LOG, *PATIENT)
    with Publisher(f"ipc://{sockets}/alone") as alone:
        assert alone.wait_for_subscriber(TIMEOUT_S)
        tiered.wait_for_reader()
        tiered.say("cpu", drains)
        alone.publish([])
        until(lambda: (tmp_path / LOG).exists() and _sources(tmp_path / LOG) == [f"ipc://{sockets}/alone"])
        tiered.say("fs", drains)
        until(lambda: len(_sources(tmp_path / LOG)) == 21)
    stopped(running, "recorded 21 batches")


def _sources(log: Path) -> list[str]:
    return [entry.source.source for entry in entries_of(log) if isinstance(entry, Received)]


def test_an_engine_may_come_from_the_file(
    tiered: Tiered, sockets: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    """[[engine]] in kvbus.toml is the same as --engine."""
    drains = drains_of(["cpu", "fs"], 10)
    tables = "".join(
        f'[[engine.tier]]\nname = "{tier}"\nendpoint = "ipc://{sockets}/{tier}"\n'
        f'replay = "ipc://{sockets}/{tier}-r"\n'
        for tier in ("cpu", "fs")
    )
    text = f'log = "{LOG}"\n[[engine]]\nname = "e1"\nlateness = 60.0\n{tables}'
    (tmp_path / "kvbus.toml").write_text(text)
    tiered.play(drains)
    code, _, err = start("record", "-n", "20").finish()
    assert code == 0, err
    assert heard(entries_of(tmp_path / LOG)) == as_drained(drains)
