"""The ``take_events()`` contract across sockets, differentially: the aggregated streams of an engine's tiers,
each on its own socket, against what a twin of the engine gives in the process, event for event.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus import (
    BlockRemoved,
    BlockStored,
    EpochBegan,
    Event,
    Feed,
    Loss,
    canonical_hash,
    emitted,
    token_list,
)
from tests.tiers.hearing import Ear, events_of
from tests.tiers.lossy_wire import LossyWire
from tests.tiers.voice_process import VoiceProcess
from tiers import (
    CPUOffloadingManager,
    LookupResult,
    MemoryTier,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    TieringOffloadingManager,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from tiers.voice.announcer import Announcer
from tiers.voice.description import BlockDescription
from tiers.voice.voices import Address, Drain, Voice

MOONCAKE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"
STEP = ScheduleEndContext([], [])
BLOCK_SIZE = 2


class Shape(NamedTuple):
    """An engine's capacities in blocks and delays in steps."""

    cpu: int
    behind: tuple[tuple[int, int], ...]

    @property
    def names(self) -> list[str]:
        return ["cpu", *(f"m{n}" for n in range(len(self.behind)))]

    def build(self) -> TieringOffloadingManager:
        behind = [
            MemoryTier(tier_type=f"m{n}", max_blocks=blocks, delay_steps=delay, enable_events=True)
            for n, (blocks, delay) in enumerate(self.behind)
        ]
        return TieringOffloadingManager(CPUOffloadingManager(self.cpu, enable_events=True), behind)


class Request(NamedTuple):
    """``fails``: its copy to the CPU does; ``resets``: afterwards the CPU's blocks are forgotten."""

    blocks: Sequence[int]
    fails: bool = False
    resets: bool = False


@functools.cache
def key_of(block: int) -> OffloadKey:
    """Blocks alternate between two KV-cache groups."""
    return make_offload_key(hashlib.sha256(b"block %d" % block).digest(), block % 2)


@functools.cache
def described(key: OffloadKey) -> BlockDescription:
    """A chunk of two blocks, the last of them named by the key; all of it follows from the key."""
    last = get_offload_block_hash(key)
    first, before = hashlib.sha256(last).digest(), hashlib.sha256(b"before" + last).digest()
    return BlockDescription([first, last], before, list(last[:4]), BLOCK_SIZE)


def serve(manager: TieringOffloadingManager, number: int, request: Request) -> list[OffloadKey]:
    """One request, from first sight to its end; the keys it stored."""
    ctx, keys = ReqContext(str(number)), [key_of(block) for block in request.blocks]
    manager.on_new_request(ctx)
    hits = []
    for key in keys:
        if manager.lookup(key, ctx) is LookupResult.HIT:
            manager.prepare_load([key], ctx)
            hits.append(key)
    manager.touch(keys, ctx)
    output = manager.prepare_store(keys, ctx)
    stored = output.keys_to_store if output is not None else []
    if stored:
        manager.complete_store(stored, ctx, success=not request.fails)
    manager.complete_load(hits, ctx)
    manager.on_request_finished(ctx)
    manager.on_schedule_end(STEP)
    if request.resets:
        manager.reset_cache()
    return stored


class Said(NamedTuple):
    """An event as far as the contract goes: what is compared."""

    removed: bool
    hashes: list[int]
    group: int | None
    medium: str | None
    ownership: str | None
    emit_seq: int | None
    reason: str | None = None
    parent: int | None = None
    tokens: Sequence[object] = ()
    block_size: int | None = None


@functools.cache
def canonical(key: OffloadKey) -> tuple[list[int], int]:
    """A chunk's hashes, and its parent's."""
    chunk = described(key)
    assert chunk.parent_block_hash is not None
    return [*map(canonical_hash, chunk.block_hashes)], canonical_hash(chunk.parent_block_hash)


def in_process(event: OffloadingEvent) -> Iterator[Said]:
    """An event of ``take_events`` as it should be read on the bus, by the rules, slowly."""
    medium, ownership, number = str(event.medium), event.ownership, event.emit_seq
    if event.removed:
        groups: dict[int, list[int]] = {}
        for key in event.keys:
            groups.setdefault(get_offload_group_idx(key), []).extend(canonical(key)[0])
        for group, hashes in groups.items():
            yield Said(True, hashes, group, medium, ownership, number, event.reason)
        return
    for key in event.keys:
        hashes, parent = canonical(key)
        group, tokens = get_offload_group_idx(key), described(key).token_ids
        yield Said(False, hashes, group, medium, ownership, number, None, parent, tokens, BLOCK_SIZE)


def on_the_bus(event: Event) -> Said:
    """The same of an event that came over a socket."""
    assert isinstance(event, BlockStored | BlockRemoved)
    where = (event.group_idx, event.medium, event.ownership, event.emit_seq)
    if isinstance(event, BlockRemoved):
        return Said(True, event.block_hashes, *where, event.reason)
    parent, tokens = event.parent_block_hash, token_list(event.token_ids)
    return Said(False, event.block_hashes, *where, None, parent, tokens, event.block_size)


class Play:
    """An engine whose tiers speak, and its twin in silence."""

    def __init__(self, shape: Shape, voices: dict[str, Voice | Address] | None = None) -> None:
        self.drains: list[Drain] = []
        """Those that had anything; so in ``taken``, what the twin gave then."""
        self.taken: list[list[OffloadingEvent]] = []
        self._manager, self._twin = shape.build(), shape.build()
        self.announcer = Announcer(self._manager, voices or {name: Address() for name in shape.names})
        self._numbers = itertools.count()

    def serve(self, request: Request) -> None:
        number = next(self._numbers)
        for key in serve(self._twin, number, request):
            self.announcer.describe(key, described(key))
        serve(self._manager, number, request)
        taken, drain = list(self._twin.take_events()), self.announcer.drain()
        assert (drain.ts is not None) == bool(taken)
        if taken:
            self.taken.append(taken)
            self.drains.append(drain)

    def flush(self) -> None:
        """A drain in which every reader hears of all before it: some block that was never there."""
        self.serve(Request([-1 - next(self._numbers)]))

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        self.announcer.close()


def play(engine: Play, requests: Iterable[Request], ear: Ear) -> None:
    for number, request in enumerate(requests):
        engine.serve(request)
        if number % 8 == 0:
            ear.listen()


def finish(engine: Play, ear: Ear) -> None:
    """Listen until every drain has come, and compare each with what the twin gave."""
    ear.listen_until(lambda: len(ear.rounds) == len(engine.drains))
    for one, taken in zip(ear.rounds, engine.taken, strict=True):
        expected = [said for event in taken for said in in_process(event)]
        assert [on_the_bus(event) for event in events_of([one])] == expected


def made_up(seed: int, count: int, blocks: int = 60) -> Iterator[Request]:
    """Requests that share prefixes, now and then one whose copy fails or after which the CPU forgets."""
    chance = random.Random(seed)
    for _ in range(count):
        start = chance.randrange(blocks)
        names = [start + n * chance.choice((1, 1, 7)) for n in range(chance.randint(1, 6))]
        yield Request(list(dict.fromkeys(names)), chance.random() < 0.05, chance.random() < 0.02)


REQUESTS = st.builds(
    Request,
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
)
SHAPES = st.builds(
    Shape,
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3)), min_size=1, max_size=3).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, requests=st.lists(REQUESTS, max_size=25))
def test_any_workload_comes_out_as_it_was_taken(shape: Shape, requests: list[Request]) -> None:
    """Drain by drain, event for event, in order: whatever the tiers' sizes and delays."""
    with Play(shape) as engine, Ear(engine.announcer.feeds) as ear:
        play(engine, requests, ear)
        finish(engine, ear)


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_the_order_of_making_can_be_had_too(behind: int) -> None:
    """Within a round, and so over all, ``emitted()`` gives the events as the tiers made them."""
    shape = Shape(12, ((20, 2), (30, 0), (25, 5))[:behind])
    with Play(shape) as engine, Ear(engine.announcer.feeds) as ear:
        play(engine, made_up(behind, 200), ear)
        finish(engine, ear)
    made = [on_the_bus(event).emit_seq or 0 for one in ear.rounds for _, _, event in emitted(one.entries)]
    contract = [on_the_bus(event).emit_seq or 0 for event in events_of(ear.rounds)]
    assert made == sorted(contract)
    assert made != contract  # the order of the contract is another one


def a_fifth(feed: Feed) -> Callable[[int], bool]:
    """Numbers by chance, others for each feed."""
    return lambda seq: random.Random(f"{feed.name} {seq}").random() < 0.2


@pytest.mark.parametrize("behind", [1, 3])
def test_what_the_wire_loses_the_replay_brings(behind: int) -> None:
    """Every tier's live stream loses other messages; the rounds are the same."""
    shape = Shape(12, ((20, 2), (30, 0), (25, 5))[:behind])
    with ExitStack() as stack:
        engine = stack.enter_context(Play(shape))
        wires = [stack.enter_context(LossyWire(feed, a_fifth(feed))) for feed in engine.announcer.feeds]
        ear = stack.enter_context(Ear([wire.feed for wire in wires]))
        play(engine, made_up(behind, 250), ear)
        for wire in wires:
            wire.calm()
        engine.flush()
        finish(engine, ear)
        assert all(wire.lost for wire in wires)
        assert ear.replayed() >= sum(len(wire.lost) for wire in wires)
    assert not [entry for entry in ear.entries if isinstance(entry, Loss)]


def test_what_nobody_can_bring_is_declared() -> None:
    """A tier without a replay socket loses shares: exactly these are missing, each in a ``Loss``."""
    shape, gone = Shape(12, ((20, 2), (30, 0))), {7, 8, 9, 40}
    voices: dict[str, Voice | Address] = {
        "cpu": Address(),
        "m0": Address(replay_endpoint=None),
        "m1": Address(),
    }
    with ExitStack() as stack:
        engine = stack.enter_context(Play(shape, voices))
        cpu, m0, m1 = engine.announcer.feeds
        wire = stack.enter_context(LossyWire(m0, lambda seq: seq in gone))
        ear = stack.enter_context(Ear([cpu, wire.feed, m1]))
        engine.flush()
        while not ear.received("m0"):  # both sides of the wire must hear before anything counts
            engine.flush()
            ear.listen(0.05)
        heard_first = ear.received("m0")[0].seq
        play(engine, made_up(3, 120), ear)
        last = len(engine.drains) - 1
        ear.listen_until(lambda: bool(ear.received("m0")) and ear.received("m0")[-1].seq == last)
        ear.listen_until(lambda: len(ear.rounds) == len(engine.drains))
    lost = declared(ear, "m0")
    assert lost == {(0, seq) for seq in {*range(heard_first), *wire.lost}}
    for seq, (one, taken) in enumerate(zip(ear.rounds, engine.taken, strict=True)):
        missing = "m0" if (0, seq) in lost else "nobody"
        expected = [said for event in taken if event.ownership != missing for said in in_process(event)]
        assert [on_the_bus(event) for event in events_of([one])] == expected


def declared(ear: Ear, name: str) -> set[tuple[int, int]]:
    """What a reader was told it has lost of a tier: epoch and seq."""
    losses = [e for e in ear.entries if isinstance(e, Loss) and e.source.source == name]
    return {(loss.epoch, seq) for loss in losses for seq in range(loss.first_seq, loss.last_seq + 1)}


def test_a_killed_tier_comes_back_and_the_others_never_missed_a_word(tmp_path: Path) -> None:
    """A tier's process is killed and started anew: its shares in between are missing, and only these; the
    primary and the other tier are whole.
    """
    shape, at = Shape(12, ((20, 2), (30, 1))), Feed(f"ipc://{tmp_path}/l", f"ipc://{tmp_path}/r", source="m1")
    voice = VoiceProcess(at)

    class Standing:
        """In the place of whichever process speaks now."""

        def publish(self, events: Sequence[Event], *, ts: float) -> None:
            voice.publish(events, ts=ts)

    with ExitStack() as stack:
        stack.callback(lambda: voice.close())
        engine = stack.enter_context(Play(shape, {"cpu": Address(), "m0": Address(), "m1": Standing()}))
        ear = stack.enter_context(Ear([*engine.announcer.feeds, at]))
        play(engine, made_up(1, 60), ear)
        before = len(engine.drains)
        ear.listen_until(lambda: len(ear.rounds) == before)
        voice.kill()
        play(engine, made_up(2, 40), ear)
        dead = len(engine.drains)
        ear.listen_until(lambda: len(ear.received("cpu")) == len(ear.received("m0")) == dead)
        assert len(ear.rounds) == before
        ear.rounds += ear.merge.tick(1 << 62)  # nobody waits for it any longer
        assert len(ear.rounds) == dead
        voice.close()
        voice = VoiceProcess(at)
        play(engine, made_up(3, 60), ear)
        ear.listen_until(lambda: len(ear.rounds) == len(engine.drains))
    whole_again = len(engine.drains) - dead
    unheard = [()] * before + [("m1",)] * (dead - before) + [()] * whole_again
    assert [drain.unheard for drain in engine.drains] == unheard
    assert [one.absent for one in ear.rounds] == [drain.unheard for drain in engine.drains]
    assert [e.epoch for e in ear.entries if isinstance(e, EpochBegan) and e.source.source == "m1"] == [0, 1]
    assert not [entry for entry in ear.entries if isinstance(entry, Loss)]
    for one, taken, missing in zip(ear.rounds, engine.taken, unheard, strict=True):
        expected = [said for event in taken if event.ownership not in missing for said in in_process(event)]
        assert [on_the_bus(event) for event in events_of([one])] == expected


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the traces are not laid beside this checkout")
@pytest.mark.parametrize("behind", [1, 2, 3])
def test_an_hour_of_real_conversations(behind: int) -> None:
    """The first 2 000 requests of Mooncake's trace, through tiers that are far too small for them."""
    shape = Shape(2_000, ((5_000, 0), (8_000, 1), (3_000, 4))[:behind])
    with MOONCAKE.open() as lines:
        requests = [Request(json.loads(line)["hash_ids"]) for line in itertools.islice(lines, 2_000)]
    with Play(shape) as engine, Ear(engine.announcer.feeds) as ear:
        play(engine, requests, ear)
        finish(engine, ear)
    assert len(ear.rounds) > 1_900
    assert {event.removed for taken in engine.taken for event in taken} == {True, False}
