"""A run's own log: written beside it, whole when it is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cli import logs, self_record
from cli.self_record import SelfRecord
from kvbus.errors import LogError
from kvbus.events import BlockStored, tokens
from kvbus.feed import Feed
from kvbus.publisher import Publisher
from sinks.duckdb import open_log
from tests.cli.full_disk import FullDisk

FREE = "tcp://127.0.0.1:*"


@pytest.fixture
def tiers() -> Iterator[list[Publisher]]:
    """Two tiers of an engine that has said nothing yet."""
    made = [Publisher(FREE, replay_endpoint=FREE, when_full="wait") for _ in range(2)]
    yield made
    for publisher in made:
        publisher.close(0)


def feeds(tiers: Sequence[Publisher]) -> list[Feed]:
    return [Feed(p.endpoint, p.replay_endpoint, source=f"run/{n}") for n, p in enumerate(tiers)]


def never() -> None:
    raise AssertionError("nothing failed")


def speak(tiers: Sequence[Publisher], rounds: int) -> None:
    for number in range(rounds):
        for publisher in tiers:
            publisher.publish([BlockStored([number], token_ids=tokens(()), block_size=0)], ts=float(number))


def test_everything_published_is_in_the_log(tiers: list[Publisher], tmp_path: Path) -> None:
    """What was said before and after it began is there when it is left, round by round."""
    path = tmp_path / "run.duckdb"
    speak(tiers, 3)
    with SelfRecord(path, feeds(tiers), on_failure=never) as recorder:
        speak_more = [3.0, 4.0]
        for ts in speak_more:
            for publisher in tiers:
                publisher.publish([], ts=ts)
        recorder.wait_for(10)
    reader = open_log(path)
    try:
        assert reader.batch_count() == 10
    finally:
        reader.close()


def test_batches_that_do_not_come_are_an_error(
    tiers: list[Publisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting has an end: the error says how many are missing, and of which log."""
    monkeypatch.setattr(self_record, "PATIENCE_S", 0.2)
    speak(tiers, 2)
    with SelfRecord(tmp_path / "run.duckdb", feeds(tiers), on_failure=never) as recorder:
        recorder.wait_for(4)
        with pytest.raises(LogError, match=r"1 of 5 batches did not get into .*run\.duckdb"):
            recorder.wait_for(5)


def test_what_stopped_the_recording_is_raised(
    tiers: list[Publisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that cannot be written is told at once to whoever wants to stop for it, and to whoever waits for
    it, or leaves it, in the log's own words.
    """
    monkeypatch.setattr(logs, "writer", lambda *_, **__: FullDisk())
    speak(tiers, 2)
    failed = threading.Event()
    with (
        pytest.raises(LogError, match="the disk is full"),
        SelfRecord(tmp_path / "run.duckdb", feeds(tiers), on_failure=failed.set) as recorder,
    ):
        recorder.wait_for(4)
    assert failed.is_set()
