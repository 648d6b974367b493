"""An engine whose tiers publish apart: one drain, one ``ts``, a share from every tier, empty or not."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli import logs
from kvbus.events import BlockStored, EventBatch, tokens
from kvbus.log import Entry, Loss, Received, Stray
from kvbus.publisher import Publisher
from tests.cli.processes import TIMEOUT_S, Running

LOG = "day.duckdb"
PATIENT = ("--lateness", "60", "--flush", "0.05")
FIRST_TS = 1_700_000_000.0
HASHES = 1000

Drain = dict[str, list[int]]
"""What each tier has to say, as the ``emit_seq`` of its events, in the order in which they were made."""
Heard = tuple[str, int, list[int]]
"""A batch of the log: tier, number of its drain, ``emit_seq`` of its events."""


def drains_of(tiers: Sequence[str], count: int, *, seed: int = 0) -> list[Drain]:
    """Random drains: the tiers' events interleaved, some shares empty."""
    rng, made = random.Random(seed), itertools.count()
    drains = []
    for _ in range(count):
        drain: Drain = {tier: [] for tier in tiers}
        for _ in range(rng.randrange(6)):
            drain[rng.choice(tiers)].append(next(made))
        drains.append(drain)
    return drains


def events_of(tier: str, made: Sequence[int]) -> list[BlockStored]:
    """A block stored for each number; its hash is ``HASHES`` + the number."""
    ids = tokens(list(range(16)))
    return [
        BlockStored([HASHES + number], None, ids, 16, None, tier.upper(), emit_seq=number) for number in made
    ]


def ts_of(drain: int) -> float:
    return FIRST_TS + drain / 64


class Tiered:
    """The publishers of one engine's tiers. ``flag`` is its ``--engine``."""

    def __init__(self, sockets: Path, tiers: Sequence[str]) -> None:
        self._sockets = sockets
        self.tiers = {tier: self.open(tier) for tier in tiers}
        self.flag = "e1=" + ",".join(
            f"{tier}@ipc://{sockets}/{tier}+ipc://{sockets}/{tier}-r" for tier in tiers
        )

    def open(self, tier: str) -> Publisher:
        base = f"ipc://{self._sockets}/{tier}"
        return Publisher(base, replay_endpoint=base + "-r", when_full="wait")

    def restart(self, tier: str) -> None:
        """Another process in the tier's place: its numbers begin again."""
        self.tiers[tier].close(0)
        self.tiers[tier] = self.open(tier)

    def play(self, drains: Sequence[Drain], first: int = 0, *, without: str = "") -> None:
        """Publish ``drains``, the first of which is number ``first``; nothing of the tier ``without``."""
        for tier in self.tiers.keys() - {without}:
            self.say(tier, drains, first)

    def say(self, tier: str, drains: Sequence[Drain], first: int = 0) -> None:
        """Publish one tier's shares."""
        for number, drain in enumerate(drains, first):
            self.tiers[tier].publish(events_of(tier, drain[tier]), ts=ts_of(number))

    def wait_for_reader(self) -> None:
        for publisher in self.tiers.values():
            assert publisher.wait_for_subscriber(TIMEOUT_S)

    def close(self) -> None:
        for publisher in self.tiers.values():
            publisher.close(0)


def as_drained(drains: Sequence[Drain], first: int = 0, *, without: str = "") -> list[Heard]:
    """The batches of drains in contract order."""
    return [
        (tier, number, made)
        for number, drain in enumerate(drains, first)
        for tier, made in drain.items()
        if tier != without
    ]


def entries_of(log: Path) -> list[Entry]:
    """What a log holds, in its order; positions count up."""
    reader = logs.reader(log)
    try:
        found = list(reader.entries())
    finally:
        reader.close()
    positions = [at.position for at in found if isinstance(at.entry, Received)]
    assert positions == list(range(len(positions)))
    return [at.entry for at in found]


def heard(entries: Sequence[Entry]) -> list[Heard]:
    """The batches among entries."""
    return list(_heard(entries))


def _heard(entries: Sequence[Entry]) -> Iterator[Heard]:
    for entry in entries:
        if not isinstance(entry, Received):
            continue
        assert isinstance(entry.batch, EventBatch)
        engine, _, tier = entry.source.source.partition("/")
        assert engine == "e1"
        made = [event.emit_seq for event in entry.batch.events if isinstance(event, BlockStored)]
        number = round((entry.batch.ts - FIRST_TS) * 64)
        yield tier, number, [one for one in made if one is not None]


def missing(entries: Sequence[Entry]) -> list[Loss | Stray]:
    return [entry for entry in entries if isinstance(entry, Loss | Stray)]


def shown_by(log: Path, count: int, seconds: float = TIMEOUT_S) -> list[Entry]:
    """The entries of a log that is being recorded, once it has so many batches."""
    deadline = time.monotonic() + seconds
    while True:
        entries = entries_of(log) if log.exists() else []
        if len(heard(entries)) >= count:
            return entries
        assert time.monotonic() < deadline, f"{len(heard(entries))} of {count} batches: {missing(entries)}"
        time.sleep(0.05)


def stopped(running: Running, expected: str) -> str:
    """Stop a recorder; what it said on stderr."""
    code, _, err = running.stop()
    assert code == 0, err
    assert expected in err
    return err
