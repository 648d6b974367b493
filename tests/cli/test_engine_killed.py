"""A recorder of two tiers that is stopped, again and again, leaves the log of one never disturbed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.processes import Running
from tests.cli.tiered import (
    LOG,
    PATIENT,
    Drain,
    Tiered,
    as_drained,
    drains_of,
    entries_of,
    heard,
    missing,
    shown_by,
    stopped,
)


def play_slowly(tiered: Tiered, drains: list[Drain], first: int, rng: random.Random) -> None:
    for number, drain in enumerate(drains, first):
        for tier in rng.sample(["cpu", "fs"], 2):
            tiered.say(tier, [drain], number)
            time.sleep(0.002)


def test_killed_and_stopped_at_random_moments(
    tiered: Tiered, start: Callable[..., Running], tmp_path: Path
) -> None:
    """SIGKILL and SIGINT in full flow, a restart after each: the log is that of an undisturbed recorder."""
    kills, rng = 6, random.Random(46544)
    drains = drains_of(["cpu", "fs"], 100 * kills)
    kept = []
    for number in range(kills):
        running = start("record", "--engine", tiered.flag, "-o", LOG, "--lateness", "60", "--flush", "0.02")
        assert running.process.stderr is not None
        assert "recording from" in running.process.stderr.readline()
        part = drains[number * 100 :][:100]
        player = threading.Thread(target=play_slowly, args=(tiered, part, number * 100, rng))
        player.start()
        time.sleep(random.Random(number).uniform(0.1, 0.5))
        running.stop(signal.SIGINT if number % 2 else signal.SIGKILL)
        player.join()
        entries = entries_of(tmp_path / LOG)
        assert heard(entries) == as_drained(drains)[: len(heard(entries))]
        kept.append(len(heard(entries)))
    last = start("record", "--engine", tiered.flag, "-o", LOG, *PATIENT)
    entries = shown_by(tmp_path / LOG, 2 * len(drains))
    stopped(last, "recorded")
    assert heard(entries) == as_drained(drains)
    assert missing(entries) == []
    assert len(set(kept)) > kills // 3, "most kills came before anything was written: they prove nothing"
