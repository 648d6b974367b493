"""The tiers' voice: what each took, whole, in one round; and nothing lost where a tier raises."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest

from kvbus import BlockRemoved, BlockStored, EndpointError, Event, canonical_hash, token_list
from tests.tiers.hearing import Ear, Heard, events_of
from tests.tiers.words import REQUEST, k, keys
from tiers import (
    CPUOffloadingManager,
    Medium,
    MemoryTier,
    OffloadingEvent,
    ScheduleEndContext,
    TierContractError,
    TieringOffloadingManager,
    TierValueError,
)
from tiers.voice.announcer import Announcer
from tiers.voice.description import BlockDescription
from tiers.voice.voices import Address

STEP = ScheduleEndContext([], [])


class Pool:
    """A GPU pool as far as the announcer knows one: ready-made events, numbered from a counter."""

    def __init__(self) -> None:
        self.waiting: list[Event] = []
        self.numbers: Iterator[int] = itertools.count()

    def free(self, name: str) -> None:
        block_hash = canonical_hash(name.encode())
        self.waiting.append(BlockRemoved([block_hash], medium="GPU", emit_seq=next(self.numbers)))

    def number_events(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def take_events(self) -> Iterable[Event]:
        waiting, self.waiting = self.waiting, []
        return waiting


class Sulking(MemoryTier):
    """Raises once instead of saying what it has."""

    sulks = False

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self.sulks:
            self.sulks = False
            raise OSError("not now")
        return super().take_events()


def tiering(*behind: MemoryTier, blocks: int = 2) -> TieringOffloadingManager:
    manager = TieringOffloadingManager(CPUOffloadingManager(blocks, enable_events=True), behind)
    manager.on_new_request(REQUEST)
    return manager


def store(manager: TieringOffloadingManager, names: str) -> None:
    output = manager.prepare_store(keys(names), REQUEST)
    assert output is not None
    manager.complete_store(output.keys_to_store, REQUEST)
    for _ in range(2):  # copies behind are done, so that the primary may evict
        manager.on_schedule_end(STEP)


def short(share: Iterable[Event]) -> str:
    """``"+a -b"``: a word a hash."""
    signs = {BlockStored: "+", BlockRemoved: "-"}
    return " ".join(
        signs[type(event)] + one.to_bytes(8, "big").strip(b"\0").decode()
        for event in share
        if isinstance(event, BlockStored | BlockRemoved)
        for one in event.block_hashes
    )


def test_each_tier_speaks_for_itself_in_tier_order() -> None:
    """The GPU's share, the primary's, then each secondary's: as ``take_events`` gives them."""
    gpu, voices = Pool(), {name: Heard() for name in ("gpu", "cpu", "near", "far")}
    near = MemoryTier(tier_type="near", max_blocks=9, enable_events=True)
    manager = tiering(near, MemoryTier(tier_type="far", max_blocks=1, enable_events=True))
    with Announcer(manager, voices, gpu=gpu, clock=lambda: 1.0) as announcer:
        gpu.free("g")
        for name in "abc":
            store(manager, name)
        drain = announcer.drain()
        announcer.check_integrity()
    assert [short(share) for share in drain.shares] == ["-g", "+a +b -a +c", "+a +b +c", "+a -a +b -b +c"]
    assert [voice.said for voice in voices.values()] == [[(1.0, share)] for share in drain.shares]
    assert [event.ownership for event in drain.shares[2] if isinstance(event, BlockStored)] == ["near"] * 3


def test_one_counter_numbers_all_tiers() -> None:
    """The GPU's events and the manager's are numbered together: the order of making can be had back."""
    gpu, voices = Pool(), {name: Heard() for name in ("gpu", "cpu", "memory")}
    manager = tiering(MemoryTier(enable_events=True))
    announcer = Announcer(manager, voices, gpu=gpu)
    gpu.free("g")
    store(manager, "a b")
    shares = announcer.drain().shares
    # One store of two keys is two events under one number.
    assert [[getattr(e, "emit_seq", None) for e in share] for share in shares] == [[0], [1, 1], [2, 2]]


def test_a_described_chunk_is_described_in_every_tier() -> None:
    """Tokens, parent and all the chunk's hashes, in the tier behind too, and in its removal."""
    voices = {"cpu": Heard(), "memory": Heard()}
    manager = tiering(MemoryTier(max_blocks=1, enable_events=True), blocks=1)
    announcer = Announcer(manager, voices)
    announcer.describe(k("b"), BlockDescription([b"a", b"b"], b"p", [1, 2, 3, 4], 2))
    store(manager, "b")
    store(manager, "c")
    cpu, memory = announcer.drain().shares
    assert [short(share) for share in (cpu, memory)] == ["+a +b -a -b +c"] * 2
    for stored in (cpu[0], memory[0]):
        assert isinstance(stored, BlockStored)
        assert stored.parent_block_hash == canonical_hash(b"p")
        assert (token_list(stored.token_ids), stored.block_size) == ([1, 2, 3, 4], 2)
    assert announcer.get_stats()["descriptions.placeholders"] == 2


def test_a_store_behind_is_whole_though_the_primary_has_let_go() -> None:
    """One drain, primary first: its removal of a block comes before a slower tier's store of it."""
    manager = tiering(MemoryTier(delay_steps=2, enable_events=True), blocks=1)
    announcer = Announcer(manager, {"cpu": Heard(), "memory": Heard()})
    announcer.describe(k("a"), BlockDescription([b"a"], None, [1, 2], 2))
    store(manager, "a")
    for _ in range(2):
        manager.on_schedule_end(STEP)
    store(manager, "b")
    cpu, memory = announcer.drain().shares
    assert (short(cpu), short(memory)) == ("+a -a +b", "+a +b")
    assert isinstance(memory[0], BlockStored)
    assert token_list(memory[0].token_ids) == [1, 2]


def test_nothing_is_lost_when_a_tier_raises() -> None:
    """What the GPU and the primary gave comes with the next drain, once."""
    gpu, sulking = Pool(), Sulking(enable_events=True)
    manager = tiering(sulking)
    announcer = Announcer(manager, {name: Heard() for name in ("gpu", "cpu", "memory")}, gpu=gpu)
    gpu.free("g")
    store(manager, "a")
    sulking.sulks = True
    with pytest.raises(OSError, match="not now"):
        announcer.drain()
    announcer.check_integrity()
    gpu.free("h")
    assert [short(share) for share in announcer.drain().shares] == ["-g -h", "+a", "+a"]
    assert announcer.drain().ts is None


class Babbling(MemoryTier):
    """Says besides what it is told to say."""

    def __init__(self, *babble: object) -> None:
        super().__init__(enable_events=True)
        self.babble = list(babble)

    def take_events(self) -> Iterable[OffloadingEvent]:
        said, self.babble = [*self.babble, *super().take_events()], []
        return said  # type: ignore[return-value]


class Hostile:
    """An event that nobody can read."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        None,
        pytest.param(Hostile(), id="hostile"),
        OffloadingEvent([k("a"), b"abcd"], Medium.CPU, False),  # type: ignore[list-item]
        OffloadingEvent([k("a"), "b"], Medium.CPU, True),  # type: ignore[list-item]
        OffloadingEvent([k("a"), []], Medium.CPU, True),  # type: ignore[list-item]
        OffloadingEvent(None, Medium.CPU, True),  # type: ignore[arg-type]
        OffloadingEvent(keys("a"), Medium.CPU, False, ownership="\udc80"),
        OffloadingEvent(keys("a"), Medium.CPU, False, emit_seq=1 << 70),
    ],
)
def test_an_event_at_fault_costs_that_event_alone(bad: object) -> None:
    """Its tier's others, and the other tiers', go out in that drain; it is counted, and nothing is noted of
    it.
    """
    gpu, voices = Pool(), {name: Heard() for name in ("gpu", "cpu", "memory")}
    manager = tiering(Babbling(bad))
    announcer = Announcer(manager, voices, gpu=gpu)
    announcer.describe(k("a"), BlockDescription([b"a"], None, [1], 1))
    gpu.free("g")
    store(manager, "b")
    assert [short(share) for share in announcer.drain().shares] == ["-g", "+b", "+b"]
    assert announcer.drain().ts is None
    assert announcer.get_stats()["unreadable"] == 1
    assert announcer.get_stats()["descriptions.held"] == 0
    announcer.check_integrity()


def test_shares_that_fit_no_tiers_are_counted() -> None:
    """A manager that gives a share too few breaks its promise: nobody knows whose they are. The GPU's events
    are not lost with them.
    """
    gpu, voices = Pool(), {name: Heard() for name in ("gpu", "cpu", "memory")}
    manager = tiering(MemoryTier(enable_events=True))
    announcer = Announcer(manager, voices, gpu=gpu)
    by_tier = manager.take_events_by_tier
    manager.take_events_by_tier = lambda: by_tier()[:1]  # type: ignore[method-assign]
    gpu.free("g")
    store(manager, "a")
    with pytest.raises(TierContractError, match="1 shares for 2 tiers"):
        announcer.drain()
    manager.take_events_by_tier = by_tier  # type: ignore[method-assign]
    store(manager, "b")
    assert [short(share) for share in announcer.drain().shares] == ["-g", "+b", "+b"]
    assert announcer.get_stats()["unowned"] == 1


def test_closing_drains_once_more() -> None:
    """What was not drained yet is published at the end; then there is no more draining."""
    cpu, manager = Heard(), tiering()
    announcer = Announcer(manager, {"cpu": cpu})
    store(manager, "a")
    announcer.close()
    announcer.close()
    assert [short(share) for _, share in cpu.said] == ["+a"]
    with pytest.raises(TierContractError, match="closed"):
        announcer.drain()


def test_closing_closes_even_if_a_tier_raises() -> None:
    """The publishers that were made are closed whatever the last drain does."""
    sulking = Sulking(enable_events=True)
    announcer = Announcer(tiering(sulking), {"cpu": Address(), "memory": Address()})
    sulking.sulks = True
    with pytest.raises(OSError, match="not now"):
        announcer.close()
    ports = {
        name: Address(feed.endpoint.replace("127.0.0.1", "*"))
        for name, feed in zip("ab", announcer.feeds, strict=True)
    }
    with Announcer(tiering(MemoryTier()), ports):
        pass


def test_tiers_are_named_one_by_one() -> None:
    """As many names as tiers, or nothing is opened."""
    with pytest.raises(TierValueError, match="1 names \\(cpu\\) for 2 tiers"):
        Announcer(tiering(MemoryTier()), {"cpu": Address()})
    with pytest.raises(EndpointError):
        Announcer(tiering(), {"cpu": Address("nowhere")})


def test_a_manager_of_one_tier_is_one_tier() -> None:
    """A CPU manager alone has one voice."""
    cpu, manager = Heard(), CPUOffloadingManager(1, enable_events=True)
    announcer = Announcer(manager, {"cpu": cpu})
    output = manager.prepare_store(keys("a"), REQUEST)
    assert output is not None
    manager.complete_store(output.keys_to_store, REQUEST)
    assert [short(share) for share in announcer.drain().shares] == ["+a"]


def test_its_sockets_are_read_by_what_it_offers() -> None:
    """``feeds`` and ``names`` are what a subscriber and an aggregator take; the events come out as taken."""
    manager = tiering(MemoryTier(enable_events=True))
    with (
        Announcer(manager, {"cpu": Address(), "memory": Address()}) as announcer,
        Ear(announcer.feeds) as ear,
    ):
        announcer.describe(k("a"), BlockDescription([b"a"], None, [1, 2], 2))
        store(manager, "a")
        drain = announcer.drain()
        ear.listen_until(lambda: bool(ear.rounds))
        assert announcer.names == ("cpu", "memory")
    assert [one.ts for one in ear.rounds] == [drain.ts]
    assert events_of(ear.rounds) == [event for share in drain.shares for event in share]
