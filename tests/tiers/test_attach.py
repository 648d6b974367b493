"""Tiers that know nothing of kvbus, on the bus by one call: nobody who drains them notices."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import zmq

from kvbus import BlockRemoved, BlockStored, EndpointError, Event, token_list
from tests.tiers.hearing import Ear, Heard, events_of
from tests.tiers.words import k, keys
from tiers import CPUOffloadingManager, MemoryTier, TieringOffloadingManager, TierValueError
from tiers.voice.attach import attach
from tiers.voice.description import BlockDescription
from tiers.voice.voices import Address, Voices


class Where(Enum):
    """Somebody else's media: no strings."""

    CPU = "CPU"
    STORAGE = "STORAGE"


@dataclass
class Happened:
    """Somebody else's event, with the least there is."""

    keys: Sequence[bytes]
    medium: Any
    removed: bool


@dataclass
class Noted(Happened):
    """The same in a later release."""

    ownership: str | None = None
    removal_expected: bool = False
    metadata_only: bool = False


class Lazy:
    """A tier that gives its events out lazily, and all again if it was left half way."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.raises = False

    def take_events(self) -> Iterator[object]:
        yield from self.events
        if self.raises:
            self.raises = False
            self.events.clear()
            raise OSError("not now")
        self.events.clear()


class Composed:
    """A composing manager: primary first, then the others."""

    def __init__(self, primary: Lazy, *secondaries: Lazy) -> None:
        self.primary_tier = primary
        self.secondary_tiers = list(secondaries)
        self.own: list[object] = []

    def take_events(self) -> Iterator[object]:
        yield from self.primary_tier.take_events()
        for tier in self.secondary_tiers:
            yield from tier.take_events()
        yield from self.own


def stored(names: str, medium: object = Where.CPU) -> Happened:
    return Happened(keys(names), medium, False)


def hashes(share: Iterable[Event]) -> list[tuple[str, str | None, list[int]]]:
    return [
        (type(e).__name__, e.medium, e.block_hashes)
        for e in share
        if isinstance(e, BlockStored | BlockRemoved)
    ]


def test_whoever_drains_gets_the_same_events_in_the_same_order() -> None:
    """The very objects, also of tiers behind; each tier's share is published besides, under one timestamp."""
    primary, fs = Lazy(), Lazy()
    manager, cpu_voice, fs_voice = Composed(primary, fs), Heard(), Heard()
    first, second = stored("a"), Happened(keys("b"), Where.STORAGE, True)
    with attach(manager, {"cpu": cpu_voice, "fs": fs_voice}):
        fs.events.append(second)
        primary.events.append(first)
        drained = list(manager.take_events())
        assert [id(event) for event in drained] == [id(first), id(second)]
        assert list(manager.take_events()) == []
    ((ts, cpu_said),), ((other_ts, fs_said),) = cpu_voice.said, fs_voice.said
    assert ts == other_ts
    assert hashes(cpu_said) == [("BlockStored", "CPU", [ord("a")])]
    assert hashes(fs_said) == [("BlockRemoved", "STORAGE", [ord("b")])]


def test_no_event_is_kept_once_it_was_handed_on() -> None:
    """Watching an engine for days takes no more memory than watching it for a minute."""
    primary, fs = Lazy(), Lazy()
    manager = Composed(primary, fs)
    with attach(manager, {"cpu": Heard(), "fs": Heard()}):
        primary.events.append(stored("a"))
        fs.events.append(stored("b"))
        taken = [weakref.ref(event) for event in manager.take_events()]
        gc.collect()
        assert [ref() for ref in taken] == [None, None]


def test_a_drain_left_half_way_says_nothing_twice() -> None:
    """A lazy ``take_events`` is taken wholly, whatever its caller does with what it gives."""
    tier, voice = Lazy(), Heard()
    with attach(tier, {"cpu": voice}):
        tier.events += [stored("a"), stored("b")]
        next(iter(tier.take_events()))
        assert list(tier.take_events()) == []
    assert [len(said) for _, said in voice.said] == [2]


def test_nothing_is_lost_when_a_tier_raises() -> None:
    """What came before it is handed on, and published, with the next drain."""
    primary, fs = Lazy(), Lazy()
    manager, voice = Composed(primary, fs), Heard()
    with attach(manager, {"cpu": voice, "fs": Heard()}):
        primary.events.append(before := stored("a"))
        fs.events.append(at_fault := stored("b"))
        fs.raises = True
        with pytest.raises(OSError, match="not now"):
            list(manager.take_events())
        assert voice.said == []
        primary.events.append(after := stored("c"))
        assert list(manager.take_events()) == [before, after, at_fault]
    assert [len(said) for _, said in voice.said] == [2]


def test_an_event_that_cannot_be_read_is_handed_on_and_counted() -> None:
    """No keys, keys without a hash, no medium: the engine gets its event, readers get the others."""
    tier, voice = Lazy(), Heard()
    broken = [object(), Happened([b"abcd"], Where.CPU, False), Happened(keys("a"), None, False)]
    with attach(tier, {"cpu": voice}) as attached:
        tier.events += [*broken, stored("b")]
        assert list(tier.take_events())[:3] == broken
        assert attached.get_stats()["unreadable"] == 3
    assert [hashes(said) for _, said in voice.said] == [[("BlockStored", "CPU", [ord("b")])]]


class Hostile(Happened):
    """Has all an event needs; what is called ``at_fault`` raises, whatever one does with it."""

    def __init__(self, at_fault: str, error: Exception) -> None:
        super().__init__(keys("a"), "CPU", False)
        self.at_fault, self.error = at_fault, error

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("at_fault"):
            raise object.__getattribute__(self, "error")
        return super().__getattribute__(name)


class Wordless:
    """Neither a word nor a truth."""

    def __str__(self) -> str:
        raise RuntimeError("no word")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), OSError("x"), RecursionError("x")])
@pytest.mark.parametrize("at_fault", ["keys", "medium", "removed", "locality", "metadata_only", "emit_seq"])
def test_an_event_that_raises_costs_that_event_alone(at_fault: str, error: Exception) -> None:
    """Whatever, and wherever in it: the engine gets all, readers get its neighbours, one is counted."""
    tier, voice = Lazy(), Heard()
    with attach(tier, {"cpu": voice}) as attached:
        tier.events += (events := [stored("b"), Hostile(at_fault, error), stored("c")])
        assert list(tier.take_events()) == events
        assert attached.get_stats()["unreadable"] == 1
    assert [hashes(said) for _, said in voice.said] == [
        [("BlockStored", "CPU", [ord("b")]), ("BlockStored", "CPU", [ord("c")])]
    ]


@pytest.mark.parametrize(
    "event",
    [
        Happened(keys("a"), Wordless(), False),
        Happened(keys("a"), "\udc80", False),
        Noted(keys("a"), "CPU", False, ownership="\udc80"),
        Noted(keys("a"), "CPU", False, removal_expected=Wordless()),  # type: ignore[arg-type]
        Noted(keys("a"), "CPU", False, metadata_only=Wordless()),  # type: ignore[arg-type]
        Happened(keys("a"), "CPU", Wordless()),  # type: ignore[arg-type]
        Happened([*keys("a"), "b"], "CPU", False),  # type: ignore[list-item]
    ],
)
def test_a_field_that_cannot_go_out_costs_that_event_alone(event: Happened) -> None:
    """No word, no truth, half a character: not the batch in which it would have gone out."""
    tier = Lazy()
    with attach(tier) as attached, Ear(attached.feeds) as ear:
        tier.events += [event, stored("b")]
        assert len(list(tier.take_events())) == 2
        ear.listen_until(lambda: bool(ear.rounds))
        assert attached.get_stats()["unreadable"] == 1
    assert hashes(events_of(ear.rounds)) == [("BlockStored", "CPU", [ord("b")])]


def test_keys_that_can_be_read_once_are_the_callers() -> None:
    """An iterator of keys is left unread, and counted."""
    tier, voice = Lazy(), Heard()
    with attach(tier, {"cpu": voice}) as attached:
        tier.events.append(Happened(iter(keys("a b")), Where.CPU, False))  # type: ignore[arg-type]
        (event,) = tier.take_events()
        assert isinstance(event, Happened)
        assert list(event.keys) == keys("a b")
        assert attached.get_stats()["unreadable"] == 1


@pytest.mark.parametrize("number", [1 << 70, -1, "7", True])
def test_a_number_that_is_none_of_ours_is_left_out(number: object) -> None:
    """``emit_seq`` means something else elsewhere; the event goes out without it."""
    tier, voice = Lazy(), Heard()
    event = stored("a")
    event.emit_seq = number  # type: ignore[attr-defined]
    with attach(tier, {"cpu": voice}):
        tier.events.append(event)
        assert list(tier.take_events()) == [event]
    ((_, (said,)),) = voice.said
    assert isinstance(said, BlockStored)
    assert said.emit_seq is None


@pytest.mark.parametrize("error", [RuntimeError("x"), ValueError("x"), zmq.Again(), TimeoutError()])
def test_a_voice_that_raises_costs_the_engine_nothing(error: Exception) -> None:
    """The engine gets its events; which tier nobody heard is counted, the others are heard."""
    primary, fs, at_fault, voice = Lazy(), Lazy(), Heard(), Heard()
    at_fault.error = error
    manager = Composed(primary, fs)
    with attach(manager, {"cpu": at_fault, "fs": voice}) as attached:
        primary.events.append(one := stored("a"))
        fs.events.append(other := stored("b"))
        assert list(manager.take_events()) == [one, other]
        assert attached.get_stats()["dropped.cpu.unheard"] == 1
    assert [len(said) for _, said in voice.said] == [1]


def test_whatever_fails_in_publishing_costs_the_engine_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory to say it with: handed on, and counted."""

    def out_of_memory(*_: object) -> None:
        raise MemoryError

    tier = Lazy()
    with attach(tier, {"cpu": Heard()}) as attached:
        monkeypatch.setattr(Voices, "say", out_of_memory)
        tier.events += (events := [stored("a"), stored("b")])
        assert list(tier.take_events()) == events
        assert attached.get_stats()["failed"] == 2
        monkeypatch.undo()


def test_an_interrupt_in_publishing_is_counted_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes through; what it kept from the engine comes with the next drain."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    primary = Lazy()
    manager, voice = Composed(primary), Heard()
    with attach(manager, {"cpu": voice}) as attached:
        monkeypatch.setattr(Voices, "say", interrupted)
        primary.events.append(first := stored("a"))
        with pytest.raises(KeyboardInterrupt):
            list(manager.take_events())
        monkeypatch.undo()
        primary.events.append(second := stored("b"))
        assert list(manager.take_events()) == [first, second]
        assert attached.get_stats()["failed"] == 1
        assert "unowned" not in attached.get_stats()
    assert [hashes(said) for _, said in voice.said] == [[("BlockStored", "CPU", [ord("b")])]]


def test_what_was_taken_before_a_raise_is_not_lost_by_detaching() -> None:
    """The engine gets it from whoever it drains next, and what a tier had said is published."""
    primary, fs = Lazy(), Lazy()
    manager, voice = Composed(primary, fs), Heard()
    attached = attach(manager, {"cpu": voice, "fs": Heard()})
    primary.events.append(before := stored("a"))
    fs.events.append(at_fault := stored("b"))
    fs.raises = True
    with pytest.raises(OSError, match="not now"):
        list(manager.take_events())
    attached.detach()
    attached.detach()
    primary.events.append(after := stored("c"))
    assert list(manager.take_events()) == [before, after, at_fault]
    assert not any("take_events" in vars(one) for one in (manager, primary, fs))
    assert [hashes(said) for _, said in voice.said] == [[("BlockStored", "CPU", [ord("a")])]]


def test_what_is_for_the_manager_alone_is_not_published() -> None:
    """vLLM's ``metadata_only`` events announce no eviction."""
    tier, voice = Lazy(), Heard()
    with attach(tier, {"cpu": voice}):
        tier.events.append(Noted(keys("a"), Where.CPU, True, metadata_only=True))
        assert len(list(tier.take_events())) == 1
    assert voice.said == []


def test_events_that_no_tier_owns_are_counted() -> None:
    """A tier speaks for itself only; what a manager makes up has no socket to go out on."""
    manager = Composed(Lazy())
    with attach(manager, {"cpu": Heard()}) as attached:
        manager.own.append(stored("a"))
        assert len(list(manager.take_events())) == 1
        assert attached.get_stats()["unowned"] == 1


def test_a_tier_that_gives_none_breaks_nothing() -> None:
    """The manager that knows how to take None gets it."""

    class Silent:
        def take_events(self) -> None:
            return None

    silent = Silent()
    with attach(silent, {"cpu": Heard()}) as attached:  # type: ignore[arg-type]
        assert silent.take_events() is None  # type: ignore[func-returns-value]
        assert "drains" not in attached.get_stats()


def test_detached_it_is_as_it_was() -> None:
    """Its own methods are back, what it was not drained of is still there, and it can be attached again."""
    primary, fs = Lazy(), Lazy()
    manager = Composed(primary, fs)
    attached = attach(manager, {"cpu": Heard(), "fs": Heard()})
    primary.events.append(stored("a"))
    with pytest.raises(TierValueError, match="attached already"):
        attach(manager, {"cpu": Heard(), "fs": Heard()})
    attached.detach()
    attached.detach()
    assert not any("take_events" in vars(one) for one in (manager, primary, fs))
    assert len(list(manager.take_events())) == 1
    attach(manager, {"cpu": Heard(), "fs": Heard()}).detach()


def test_a_method_set_by_hand_is_given_back() -> None:
    """An object whose ``take_events`` was replaced before has that one again afterwards."""
    tier = Lazy()

    def by_hand() -> Iterator[object]:
        yield stored("a")

    tier.take_events = by_hand  # type: ignore[method-assign]
    with attach(tier, {"cpu": Heard()}):
        assert len(list(tier.take_events())) == 1
    assert tier.take_events is by_hand


def test_what_cannot_be_watched_is_refused_and_left_alone() -> None:
    """An object that lets nobody set an attribute; the tiers before it get their own methods back."""

    class Closed:
        __slots__ = ()

        def take_events(self) -> Iterable[object]:
            return ()

    class Boxed(Lazy):
        primary_tier = 1

        @property
        def secondary_tiers(self) -> list[Lazy]:
            raise RuntimeError("not yet")

    manager = Composed(Lazy(), Closed())  # type: ignore[arg-type]
    with pytest.raises(TierValueError, match="nobody can listen to this Closed"):
        attach(manager)
    assert "take_events" not in vars(manager.primary_tier)
    for nothing in (object(), None, 5):
        with pytest.raises(TierValueError, match="nobody can listen to this"):
            attach(nothing)  # type: ignore[arg-type]
    with pytest.raises(TierValueError, match="which tiers this Boxed has"):
        attach(Boxed())
    with pytest.raises(TierValueError, match="2 names"):
        attach(Lazy(), {"cpu": Heard(), "fs": Heard()})
    with pytest.raises(EndpointError):
        attach(Lazy(), {"cpu": Address("nowhere")})


def test_tiers_are_called_what_they_are() -> None:
    """Without names: ``primary``, then each tier's type, told apart by its place where two are alike."""
    cpu = CPUOffloadingManager(1, enable_events=True)
    manager = TieringOffloadingManager(cpu, [MemoryTier(), MemoryTier(), MemoryTier(tier_type="far")])
    with attach(manager) as attached:
        assert [feed.name for feed in attached.feeds] == ["primary", "memory", "memory-2", "far"]


def test_default_names_never_clash() -> None:
    """A number that another tier has for a name is passed over; a type nobody can say is the class's name."""

    def typed(tier_type: object) -> Lazy:
        tier = Lazy()
        tier.tier_type = tier_type  # type: ignore[attr-defined]
        return tier

    types = ("fs", "fs-3", "fs", "fs", Wordless(), Where.CPU, "primary")
    with attach(Composed(Lazy(), *map(typed, types))) as attached:
        named = [feed.name for feed in attached.feeds]
    assert named == ["primary", "fs", "fs-3", "fs-4", "fs-5", "Lazy", "CPU", "primary-7"]


def test_one_call_puts_it_on_the_bus() -> None:
    """Over sockets, aggregated: what was drained, event for event, and described where it was described."""
    primary, fs = Lazy(), Lazy()
    manager = Composed(primary, fs)
    with attach(manager) as attached, Ear(attached.feeds) as ear:
        attached.describe(k("b"), BlockDescription([b"a", b"b"], None, [1, 2, 3, 4], 2))
        for names in ("b", "c", "d"):
            primary.events.append(stored(names))
            fs.events.append(Noted(keys(names), Where.STORAGE, False, "fs-0", removal_expected=True))
            list(manager.take_events())
        fs.events.append(Noted(keys("b"), Where.STORAGE, True, "fs-0"))
        list(manager.take_events())
        ear.listen_until(lambda: len(ear.rounds) == 4)
    heard = events_of(ear.rounds)
    assert hashes(heard) == [
        (kind, medium, hashed)
        for names in ([ord("a"), ord("b")], [ord("c")], [ord("d")])
        for kind, medium, hashed in (("BlockStored", "CPU", names), ("BlockStored", "STORAGE", names))
    ] + [("BlockRemoved", "STORAGE", [ord("a"), ord("b")])]
    assert isinstance(heard[1], BlockStored)
    assert (token_list(heard[1].token_ids), heard[1].ownership) == ([1, 2, 3, 4], "fs-0")
