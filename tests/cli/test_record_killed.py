"""A recorder that is killed, again and again, leaves the log of one that was never disturbed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import logs
from kvbus.log import EpochBegan, Loss, Received, Stray
from tests.cli.processes import Engine, Kvbus, Message, Running, messages, until

KILLS = 20
PACE_S = 0.01
"""Between batches: what is said in a recorder's life lasts about as long as that."""


@pytest.fixture(scope="module")
def said(captures: Path) -> list[Message]:
    return messages(captures / "vllm032_gpu_int.frames")


def heard(log: Path) -> list[tuple[int, str, int, int, bytes]]:
    """What a log holds of batches: position, source, epoch, seq, payload. Anything but batches fails."""
    reader = logs.reader(log)
    try:
        found = []
        for at in reader.entries():
            assert not isinstance(at.entry, Loss | Stray)
            if isinstance(at.entry, Received):
                one = at.entry
                found.append((at.position, one.source.source, one.epoch, one.seq, one.payload))
            elif isinstance(at.entry, EpochBegan):
                assert at.entry.because == "first_sight"
        return found
    finally:
        reader.close()


def play(engine: Engine, said: list[Message]) -> None:
    for message in said:
        engine.publisher.forward(*message)
        time.sleep(PACE_S)


def test_killed_at_twenty_random_moments(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """SIGKILL at 20 moments of a stream, a restart after each: every batch is there once, in its place."""
    rng = random.Random(46544)
    log = tmp_path / "day.duckdb"
    words = ("record", engine.endpoint, "--replay", engine.replay, "-o", log, "--flush", "0.05")
    share = len(said) // KILLS + 1
    kept = []
    for number in range(KILLS):
        recorder = start(*words)
        assert recorder.process.stderr is not None
        assert "recording from" in recorder.process.stderr.readline()
        player = threading.Thread(target=play, args=(engine, said[number * share :][:share]))
        player.start()
        time.sleep(rng.uniform(0.05, 0.6))
        recorder.process.send_signal(signal.SIGKILL)
        recorder.finish()
        player.join()
        kept.append(len(heard(log)))
    last = start(*words)
    until(lambda: len(heard(log)) == len(said))
    code, _, err = last.stop()
    assert code == 0, err
    assert heard(log) == [
        (position, engine.endpoint, 0, seq, payload) for position, (_, seq, payload) in enumerate(said)
    ]
    assert len(set(kept)) > KILLS // 3, "most kills came before anything was written: they prove nothing"
    assert kvbus("check", log).returncode == 0
