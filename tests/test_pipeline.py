"""Parts joined: a subscriber into a sink, a capture into a sink."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

from kvbus.arrival import Arrival
from kvbus.capture import read_capture
from kvbus.dialects import DialectReader
from kvbus.engines import Engine as EngineOfTiers
from kvbus.feed import Feed, Notice
from kvbus.log import EpochBegan, Loss, Received
from kvbus.pipeline import Progress, ingest, patient_gc, record
from kvbus.subscriber import Subscriber
from sinks.memory import MemoryLog
from tests.engine import Batch, Engine, Faults


@pytest.fixture(scope="module")
def arrivals(captures: Path) -> list[Arrival]:
    reader = DialectReader()
    found = []
    for one in read_capture(captures / "vllm032_gpu_int.frames"):
        topic, seq, payload = one.frames
        batch = reader.read(payload)
        number = int.from_bytes(seq, "big")
        found.append(Arrival(topic, number, payload, one.received_ns, batch, reader.dialect))
    return found


@pytest.fixture(scope="module")
def batches(arrivals: list[Arrival]) -> list[Batch]:
    return [(one.topic or b"", one.seq, one.payload) for one in arrivals]


class CountingSink(MemoryLog):
    """A sink that remembers how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        super().flush()


def seqs(sink: MemoryLog) -> list[int]:
    return [at.entry.seq for at in sink.entries() if isinstance(at.entry, Received)]


def run(
    engine: Engine, sink: MemoryLog, *, max_batches: int | None = None, stop_after: int | None = None
) -> tuple[Progress, list[Notice]]:
    stop = threading.Event()
    notices: list[Notice] = []

    def look(progress: Progress) -> None:
        if stop_after is not None and progress.batches >= stop_after:
            stop.set()

    with Subscriber([Feed(engine.endpoint, engine.replay)], standings=sink.standings()) as subscriber:
        done = record(
            subscriber,
            sink,
            stop=stop,
            flush_s=0.02,
            max_batches=max_batches,
            on_progress=look,
            on_notice=notices.append,
        )
    return done, notices


def test_a_recording_is_the_stream(batches: list[Batch]) -> None:
    """All that was published is in the sink, and the progress counts it."""
    sink = CountingSink()
    with Engine(batches) as engine:
        done, notices = run(engine, sink, stop_after=len(batches))
    assert seqs(sink) == [seq for _, seq, _ in batches]
    assert (done.batches, done.losses, done.strays) == (len(batches), 0, 0)
    assert done.payload_bytes == sum(len(payload) for _, _, payload in batches)
    assert "connected" in {notice.kind for notice in notices}
    assert sink.flushes >= 1


def test_so_many_batches_and_not_one_more(batches: list[Batch]) -> None:
    """``max_batches`` is exact, however many come at once."""
    sink = MemoryLog()
    with Engine(batches) as engine:
        done, _ = run(engine, sink, max_batches=123)
    assert seqs(sink) == list(range(123))
    assert done.batches == 123


def test_a_recording_goes_on_where_it_stood(batches: list[Batch]) -> None:
    """A second run into the same sink adds exactly what the first one had not."""
    sink = MemoryLog()
    with Engine(batches) as engine:
        run(engine, sink, max_batches=300)
        again = MemoryLog(at.entry for at in sink.entries())
        run(engine, again, stop_after=len(batches) - 300)
    assert seqs(again) == [seq for _, seq, _ in batches]


def test_on_stopping_what_waits_behind_a_hole_is_kept(batches: list[Batch]) -> None:
    """A hole that nobody can fill when the recorder stops is declared; what came after it is in the log."""
    sink = MemoryLog()
    faults = Faults(skip=frozenset({len(batches) - 3}), end_marker=False)
    with Engine(batches, faults) as engine:
        run(engine, sink, stop_after=len(batches) - 3)
    losses = [at.entry for at in sink.entries() if isinstance(at.entry, Loss)]
    assert [(loss.first_seq, loss.reason) for loss in losses] == [(len(batches) - 3, "replay_incomplete")]
    assert seqs(sink)[-2:] == [len(batches) - 2, len(batches) - 1]


def test_a_quiet_stream_is_made_durable(batches: list[Batch]) -> None:
    """When nothing more comes, the sink is told to flush; it does not wait for the next batch."""
    sink = CountingSink()
    stop = threading.Event()
    with Engine(batches[:5]) as engine, Subscriber([Feed(engine.endpoint, engine.replay)]) as subscriber:
        how = {"stop": stop, "flush_s": 0.02}
        thread = threading.Thread(target=record, args=(subscriber, sink), kwargs=how)
        thread.start()
        deadline = time.monotonic() + 20
        while not (sink.flushes and len(seqs(sink)) == 5) and time.monotonic() < deadline:
            time.sleep(0.01)
        flushed = sink.flushes
        stop.set()
        thread.join()
    assert flushed >= 1


def test_tiers_of_an_engine_are_written_round_by_round(batches: list[Batch]) -> None:
    """However the sockets interleave, the sink gets primary and secondary in turn; what waits is counted."""
    sink, stop, waited = MemoryLog(), threading.Event(), []

    def look(progress: Progress) -> None:
        waited.append(progress.waiting)
        if progress.batches >= 40:
            stop.set()

    with Engine(batches[:30]) as cpu, Engine(batches[:20]) as fs:
        feeds = [Feed(cpu.endpoint, cpu.replay, source="cpu"), Feed(fs.endpoint, fs.replay, source="fs")]
        with Subscriber(feeds) as subscriber:
            engines = [EngineOfTiers(("cpu", "fs"), lateness_s=60)]
            done = record(subscriber, sink, stop=stop, engines=engines, flush_s=0.02, on_progress=look)
    received = [at.entry for at in sink.entries() if isinstance(at.entry, Received)]
    turns = [(one.source.source, one.seq) for one in received]
    complete = [(tier, seq) for seq in range(20) for tier in ("cpu", "fs")]
    assert turns == complete + [("cpu", seq) for seq in range(20, 30)]
    assert max(waited) >= 10
    assert (done.batches, done.waiting, done.other["not_waited_for"]) == (50, 0, 10)


def test_a_capture_goes_in_once(arrivals: list[Arrival]) -> None:
    """Ingesting the same capture again adds nothing and sets nothing aside."""
    sink = MemoryLog()
    first = ingest(arrivals, sink, source="day")
    again = MemoryLog(at.entry for at in sink.entries())
    second = ingest(arrivals, again, source="day")
    assert (first.batches, second.batches, second.strays) == (len(arrivals), 0, 0)
    assert seqs(again) == [one.seq for one in arrivals]


def test_a_capture_in_parts_is_the_capture(arrivals: list[Arrival]) -> None:
    """Overlapping parts of one stream, one after the other, give the stream."""
    sink = MemoryLog()
    ingest(arrivals[:500], sink, source="day")
    whole = MemoryLog(at.entry for at in sink.entries())
    ingest(arrivals[400:], whole, source="day")
    assert seqs(whole) == [one.seq for one in arrivals]
    assert [type(at.entry) for at in whole.entries()].count(EpochBegan) == 1


def test_the_collector_is_patient_only_meanwhile() -> None:
    """Recording changes how often garbage is looked for, and puts it back."""
    before = gc.get_threshold()
    with patient_gc():
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
