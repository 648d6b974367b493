"""What is asked of CUDA for a transfer, and in which order: against a stand-in that only takes notes.

Whether the bytes arrive is for `tests/gpu`, on a machine that has a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tiers.transfer.block_copies import BlockCopies
from tiers.transfer.stream_copier import StreamCopier

COPIES = BlockCopies([torch.ones(4, dtype=torch.int8)], [torch.zeros(4, dtype=torch.int8)], np.array([4]))


class Device:
    """Notes what happened; ``finished`` events have passed, ``broken`` makes asking for one fail, and where
    it ``is_full`` none can be recorded.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events = 0
        self.finished = False
        self.broken = False
        self.is_full = False

    def reached(self) -> bool:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.finished


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.name = ("start", "end")[made.events % 2]
            made.events += 1

        def record(self) -> None:
            if made.is_full:
                raise RuntimeError("CUDA error: out of memory")
            made.notes.append(self.name)

        def query(self) -> bool:
            return made.reached()

        def synchronize(self) -> None:
            made.reached()
            made.finished = True

        def elapsed_time(self, end: Event) -> float:
            assert (self.name, end.name) == ("start", "end")
            return 250.0

    class Stream:
        def __init__(self, _: object) -> None: ...

        def wait_stream(self, other: str) -> None:
            made.notes.append(f"wait for {other}")

        def synchronize(self) -> None:
            made.reached()
            made.notes.append("synchronize")

    @contextlib.contextmanager
    def stream(_: Stream) -> Iterator[None]:
        yield

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.Stream", Stream)
    monkeypatch.setattr("torch.cuda.stream", stream)
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: "compute")
    monkeypatch.setattr(BlockCopies, "run", lambda _: made.notes.append("copy"))
    return made


def test_copies_wait_for_the_compute_stream(device: Device) -> None:
    """What the engine has queued comes first; only the copies are between the two times that are taken."""
    running = StreamCopier(torch.device("cuda")).begin(COPIES)
    assert device.notes == ["wait for compute", "start", "copy", "end"]
    assert not running.done()
    device.finished = True
    assert running.done()
    assert (running.outcome().seconds, running.outcome().failure) == (0.25, None)


def test_events_are_used_again(device: Device) -> None:
    """A transfer that is over lends its events to the next one; those under way have their own."""
    copier = StreamCopier(torch.device("cuda"))
    first, _ = copier.begin(COPIES), copier.begin(COPIES)
    assert device.events == 4
    first.outcome()
    first.outcome()
    copier.begin(COPIES)
    assert device.events == 4
    copier.begin(COPIES)
    assert device.events == 6


def test_the_end_is_recorded_behind_a_failure(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that could not be queued is over only when what was queued of it is."""

    def broken(_: BlockCopies) -> None:
        raise RuntimeError("the bus is on fire")

    monkeypatch.setattr(BlockCopies, "run", broken)
    running = StreamCopier(torch.device("cuda")).begin(COPIES)
    assert device.notes[-1] == "end"
    assert not running.done()
    device.finished = True
    assert running.outcome().failure == "RuntimeError"


def test_an_end_that_cannot_be_recorded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies whose end nobody could tell are waited for before they are called a failure."""

    def copying(_: BlockCopies) -> None:
        device.notes.append("copy")
        device.is_full = True

    monkeypatch.setattr(BlockCopies, "run", copying)
    running = StreamCopier(torch.device("cuda")).begin(COPIES)
    assert device.notes[-2:] == ["copy", "synchronize"]
    assert running.outcome().failure == "RuntimeError"


def test_trouble_that_comes_late_is_an_outcome(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    """A device that reports an error only when it is asked fails the transfer, and raises nowhere."""
    copier = StreamCopier(torch.device("cuda"))
    running = copier.begin(COPIES)
    device.broken = True
    assert running.done()
    assert running.outcome().failure == "RuntimeError"
    copier.shutdown()
    assert "illegal memory access" in caplog.text
