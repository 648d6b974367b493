"""A recorder of an engine's tiers, killed at any entry: the log it leaves and goes on from.

Pure: histories of drains are made up from a seed, sources interleave at random, and a log is cut wherever the
kill strikes. Tiers are silent, lose batches and restart; in some histories the whole engine does, with its
clock set back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kvbus.aggregator import Aggregator
from kvbus.events import EventBatch
from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId
from kvbus.rounds import Round
from sinks.ledger import Ledger, Standings

TIERS = ("cpu", "fs", "s3")
SECOND = 1_000_000_000
SEEDS = range(400)
TIME = 1e9

Name = tuple[str, int, int]
"""tier, epoch, seq"""


@dataclass
class History:
    """What each tier says, in its order, and to which place of the engine's order each batch belongs."""

    streams: dict[str, list[Entry]] = field(default_factory=lambda: {tier: [] for tier in TIERS})
    places: dict[Name, tuple[int, int, int]] = field(default_factory=dict)


def history_of(rng: random.Random, *, sets_back: bool) -> History:
    """Up to fifteen drains a hundredth of a second apart; the first is heard of every tier.

    ``sets_back``: the whole engine dies in the middle, once, and its clock has gone back by five seconds.
    """
    made, life = History(), 0
    drains = rng.randrange(4, 16)
    death = drains // 2 if sets_back else drains
    epochs, seqs, away = dict.fromkeys(TIERS, 0), dict.fromkeys(TIERS, 0), dict.fromkeys(TIERS, 0)
    for drain in range(drains):
        if drain == death:
            life = 1
            away = {tier: rng.choice([0, 0, 0, 1, 3]) for tier in TIERS}
        for tier in TIERS:
            restarts = drain == death or (drain > 0 and not sets_back and rng.random() < 0.08)
            if restarts:
                epochs[tier], seqs[tier] = epochs[tier] + 1, 0
                made.streams[tier].append(EpochBegan(SourceId(tier), epochs[tier], "incarnation", "", 0))
                away[tier] = away[tier] or (0 if sets_back else rng.randrange(3))
            if away[tier]:
                away[tier] -= 1
                continue
            _say(
                made,
                (tier, epochs[tier], seqs[tier]),
                (life, drain, TIERS.index(tier)),
                lost=drain > 0 and rng.random() < 0.06,
            )
            seqs[tier] += 1
    return made


def _say(made: History, name: Name, place: tuple[int, int, int], *, lost: bool) -> None:
    tier, epoch, seq = name
    if lost:
        made.streams[tier].append(Loss(SourceId(tier), epoch, seq, seq, "too_old", 0))
        return
    life, drain, _ = place
    batch = EventBatch(ts=TIME - 5 * life + drain / 100, events=[])
    made.streams[tier].append(
        Received(SourceId(tier), epoch, seq, b"", int(TIME) * SECOND, False, batch, "map")
    )
    made.places[name] = place


def word(entry: Entry) -> tuple[str, str, int, int]:
    """What an entry is about: the same for a share and for its being late."""
    kind = "began" if isinstance(entry, EpochBegan) else "batch"
    seq = entry.first_seq if isinstance(entry, Loss) else entry.seq if isinstance(entry, Received) else -1
    return kind, entry.source.source, entry.epoch, seq


class Recorder:
    """Records ``history`` into ``log``, which it may have been left by another that was killed."""

    def __init__(self, history: History, log: list[Entry], rng: random.Random, *, impatient: bool) -> None:
        standings = Standings()
        for entry in log:
            standings.add(entry)
        self.log = log
        self._merge = Aggregator(TIERS, lateness_ns=SECOND, standings=standings.result())
        self._ledger = Ledger(standings.next_seqs)
        self._rng = rng
        self._impatient = impatient
        have = {word(entry) for entry in log if isinstance(entry, Received | Loss | EpochBegan)}
        self._left = {
            tier: [entry for entry in stream if word(entry) not in have]
            for tier, stream in history.streams.items()
        }

    def steps(self) -> Iterator[None]:
        """Entry by entry until all is in the log."""
        now_ns = int(TIME) * SECOND
        while waiting := [tier for tier, stream in self._left.items() if stream]:
            self._write(self._merge.add(self._left[self._rng.choice(waiting)].pop(0)))
            if self._impatient:
                now_ns += self._rng.randrange(SECOND // 4)
                self._write(self._merge.tick(now_ns))
            self._merge.check_integrity()
            yield
        self._write(self._merge.finish())

    def _write(self, rounds: list[Round]) -> None:
        for one in rounds:
            self._ledger.admit(one.entries)
            self.log += one.entries


def recorded(history: History, rng: random.Random, *, kills: float, impatient: bool) -> list[Entry]:
    """The log of a recorder that is killed now and then, and loses what was not durable."""
    log: list[Entry] = []
    while True:
        for _ in Recorder(history, log, rng, impatient=impatient).steps():
            if rng.random() < kills:
                del log[max(0, len(log) - rng.randrange(4)) :]
                break
        else:
            return log
        kills /= 2


@pytest.mark.parametrize("sets_back", [False, True], ids=["one clock", "clock set back"])
def test_a_killed_recorder_leaves_the_log_of_one_that_was_not(sets_back: bool) -> None:
    """Nobody is given up: whatever was cut off, the log has every batch, in the order of the drains."""
    for seed in SEEDS:
        rng = random.Random(seed)
        history = history_of(rng, sets_back=sets_back)
        log = recorded(history, rng, kills=0.2, impatient=False)
        batches = [entry for entry in log if isinstance(entry, Received)]
        places = [history.places[one.source.source, one.epoch, one.seq] for one in batches]
        assert places == sorted(history.places.values()), f"seed {seed}"
        assert not [one for one in log if isinstance(one, Loss) and one.reason == "late"], f"seed {seed}"


@pytest.mark.parametrize("kills", [0.0, 0.2])
@pytest.mark.parametrize("sets_back", [False, True], ids=["one clock", "clock set back"])
def test_what_is_not_waited_for_is_declared_and_never_put_in_behind(sets_back: bool, kills: float) -> None:
    """Whoever is too slow is in the log as a loss; what is in it as a batch is in the order of the drains."""
    late = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        history = history_of(rng, sets_back=sets_back)
        log = recorded(history, rng, kills=kills, impatient=True)
        have = [(one.source.source, one.epoch, one.seq) for one in log if isinstance(one, Received)]
        lost = [one for one in log if isinstance(one, Loss) and one.reason == "late"]
        places = [history.places[name] for name in have]
        assert places == sorted(places), f"seed {seed}"
        told = have + [(one.source.source, one.epoch, one.first_seq) for one in lost]
        assert sorted(told) == sorted(history.places), f"seed {seed}"
        late += len(lost)
    assert late
