"""A full check with all rules: of a log, of a stream, and how much memory it takes; beside it the residency
rule alone as a window query in DuckDB.

Rates are block events (one hash of one event) a second, by the wall and by the processor's own time: the
machine may have other work. Memory is the largest resident set of a process that checks a log, and one ten
times as long.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.figures import Figure, Section, rate
from bench.stream import Stream
from kvbus.audit import Audit
from kvbus.dialects import DialectReader
from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.log import Entry, EpochBegan, PositionedEntry, Received, SourceId
from sinks.duckdb import DuckDBLog, open_log

SOURCE: Final = SourceId("bench", b"kv", 0)
CAPACITIES: Final = {"GPU": 100_000}

WINDOW: Final = """
WITH changes AS (
    SELECT hash, position, event, block, CASE kind WHEN 'BlockStored' THEN 1 ELSE -1 END AS change
    FROM blocks WHERE kind IN ('BlockStored', 'BlockRemoved')
), counted AS (
    SELECT sum(change) OVER (PARTITION BY hash ORDER BY position, event, block) AS copies FROM changes
)
SELECT count(*) FROM counted WHERE copies < 0
"""

PEAK: Final = """
import resource, sys
from kvbus.audit import Audit
from sinks.duckdb import open_log
with open_log(sys.argv[1]) as log:
    auditor = Audit()
    auditor.observe_log(log)
    auditor.verdict()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def auditing(stream: Stream, *, rounds: int, batches: int) -> Section:
    """Figures for so many batches of the stream, over and over."""
    live = entries(stream, batches)
    blocks, events = size(live)
    checked: list[float] = []
    by_processor: list[float] = []
    streamed: list[float] = []
    windows: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        short, long = Path(folder) / "short.duckdb", Path(folder) / "long.duckdb"
        for path, entries_of in ((short, live[: len(live) // 10]), (long, live)):
            with DuckDBLog(path) as log:
                log.write(entries_of)
        for _ in range(rounds):
            wall, processor = check(long)
            checked.append(blocks / wall)
            by_processor.append(blocks / processor)
            streamed.append(events / follow(live))
            windows.append(blocks / window(long))
        peaks = peak_mib(short), peak_mib(long)
    return Section(
        "audit",
        f"{batches} batches, {events} events, {blocks} block events, all rules, {rounds} rounds",
        (
            rate("check of a log", "block events/s", checked, reach="≥ 500 000"),
            rate("the same, of processor time", "block events/s", by_processor),
            rate("entries as they come", "events/s", streamed, reach="≥ 200 000"),
            rate("the refcount rule as a window query", "block events/s", windows),
            Figure("peak memory", peaks[0], "MiB"),
            Figure(
                "of a log 10× longer", peaks[1], "MiB", "the shorter one", peaks[1] / peaks[0], "0.8 … 1.2×"
            ),
        ),
    )


def entries(stream: Stream, batches: int) -> list[Entry]:
    """The stream's batches, read, their numbers running on."""
    reader = DialectReader()
    read = {batch.payload: reader.read(batch.payload) for batch in stream.batches}
    received: list[Entry] = [EpochBegan(SOURCE, 0, "first_sight", "", 0)]
    for live in stream.repeated(batches):
        batch = read[live.payload]
        received.append(Received(SOURCE, 0, live.seq, live.payload, 0, False, batch, "map"))
    return received


def size(received: list[Entry]) -> tuple[int, int]:
    """Block events and events."""
    batches = [e.batch for e in received if isinstance(e, Received) and isinstance(e.batch, EventBatch)]
    events = [event for batch in batches for event in batch.events]
    return sum(len(e.block_hashes) for e in events if isinstance(e, BlockStored | BlockRemoved)), len(events)


def check(path: Path) -> tuple[float, float]:
    """Seconds by the wall and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    with open_log(path) as log:
        auditor = Audit(capacities=CAPACITIES)
        auditor.observe_log(log)
        auditor.verdict()
    return time.perf_counter() - wall, time.process_time() - processor


def follow(received: list[Entry]) -> float:
    auditor = Audit(capacities=CAPACITIES)
    began = time.perf_counter()
    for position, entry in enumerate(received):
        auditor.observe(PositionedEntry(position, entry))
    auditor.verdict()
    return time.perf_counter() - began


def window(path: Path) -> float:
    with open_log(path) as log:
        began = time.perf_counter()
        log.rows(WINDOW)
        return time.perf_counter() - began


def peak_mib(path: Path) -> float:
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)
