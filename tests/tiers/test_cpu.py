"""The CPU tier's books: slots, events, counters, and what it refuses."""

from __future__ import annotations

import itertools

import pytest

from tests.tiers.words import REQUEST, k, keys, parts, say, slots_of, store
from tiers import (
    CPUOffloadingManager,
    CPUPrimaryTierOffloadingManager,
    LookupResult,
    OffloadingEvent,
    TierContractError,
    TierValueError,
)

POLICIES = ["lru", "arc"]


def tier(blocks: int, policy: str = "lru") -> CPUOffloadingManager:
    return CPUOffloadingManager(blocks, policy, enable_events=True)


def test_victims_give_their_slots_last_first() -> None:
    """Evicting 4, 5, 2 on slots 3, 0, 1 gives the new blocks 6, 7, 8 the slots 1, 0, 3."""
    cpu = tier(4)
    assert store(cpu, "5 2 3 4") == [0, 1, 2, 3]
    cpu.touch(keys("3 2 5 4"), REQUEST)  # backwards: 4, 5, 2, 3
    output = cpu.prepare_store(keys("6 7 8"), REQUEST)
    assert parts(output) == (keys("6 7 8"), [1, 0, 3], keys("4 5 2"))
    cpu.check_integrity()


def test_a_slot_is_given_up_before_it_is_taken() -> None:
    """The victim's removal comes when its slot is given away, the new block's store when it is there."""
    cpu = tier(2)
    store(cpu, "a b")
    output = cpu.prepare_store(keys("c"), REQUEST)
    assert say(cpu.take_events()) == "+a +b | -a:evicted"
    cpu.complete_store(keys("c"), REQUEST)
    assert say(cpu.take_events()) == "+c"
    assert parts(output) == (keys("c"), [0], keys("a"))


def test_events_come_in_the_order_of_the_keys() -> None:
    """A store's event lists the keys as completed, and that is the order in which they will leave."""
    cpu = tier(3)
    cpu.prepare_store(keys("1 2 3"), REQUEST)
    cpu.complete_store(keys("3 1 2"), REQUEST)
    assert say(cpu.take_events()) == "+3 +1 +2"
    store(cpu, "4 5 6")
    assert say(cpu.take_events()).startswith("-3:evicted -1:evicted -2:evicted")


def test_what_is_here_already_says_nothing() -> None:
    """A store of blocks that are here, or on their way, takes no slot and makes no event."""
    cpu = tier(4)
    store(cpu, "a")
    cpu.prepare_store(keys("b"), REQUEST)
    cpu.take_events()
    assert parts(cpu.prepare_store(keys("a b"), REQUEST)) == ([], [], [])
    cpu.complete_store(keys("a unknown"), REQUEST)
    assert say(cpu.take_events()) == ""


def test_a_key_twice_takes_one_slot() -> None:
    """Duplicate keys in one store are stored once, and no slot leaks."""
    cpu = tier(3)
    output = cpu.prepare_store(keys("a b a a"), REQUEST)
    assert parts(output) == (keys("a b"), [0, 1], [])
    cpu.complete_store(keys("a a b"), REQUEST)
    assert say(cpu.take_events()) == "+a +b"
    cpu.check_integrity()
    assert cpu.get_stats()["being_written"] == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_no_room_changes_nothing(policy: str) -> None:
    """A store that cannot have room gives None, says nothing, and leaves every block where it was."""
    cpu = tier(3, policy)
    store(cpu, "a b c")
    cpu.prepare_load(keys("a b"), REQUEST)
    cpu.take_events()
    assert cpu.prepare_store(keys("d e"), REQUEST) is None  # in use
    assert cpu.prepare_store(keys("c d"), REQUEST) is None  # c is wanted itself
    assert say(cpu.take_events()) == ""
    stats = cpu.get_stats()
    assert (stats["allocation_failures.in_use"], stats["allocation_failures.protected"]) == (1, 1)
    assert parts(cpu.prepare_store(keys("d"), REQUEST)) == (keys("d"), [2], keys("c"))
    cpu.check_integrity()


def test_a_failed_store_leaves_no_trace() -> None:
    """A copy that failed gives its slot back and is not announced; the eviction before it stands alone."""
    cpu = tier(1)
    store(cpu, "a")
    cpu.prepare_store(keys("b"), REQUEST)
    cpu.complete_store(keys("b"), REQUEST, success=False)
    assert say(cpu.take_events()) == "+a | -a:evicted"
    assert cpu.lookup(k("b"), REQUEST) is LookupResult.MISS
    assert store(cpu, "c") == [0]


def test_a_failure_spares_what_is_ready() -> None:
    """A failed completion drops only blocks that were waiting for it."""
    cpu = tier(2)
    store(cpu, "a")
    cpu.prepare_store(keys("b"), REQUEST)
    cpu.complete_store(keys("a b"), REQUEST, False)
    assert cpu.lookup(k("a"), REQUEST) is LookupResult.HIT
    cpu.check_integrity()


def test_lookup_tells_apart_what_is_readable() -> None:
    """MISS, HIT_PENDING while the bytes are under way, then HIT; looking is no use of a block."""
    cpu = tier(2)
    assert cpu.lookup(k("a"), REQUEST) is LookupResult.MISS
    cpu.prepare_store(keys("a"), REQUEST)
    assert cpu.lookup(k("a"), REQUEST) is LookupResult.HIT_PENDING
    cpu.complete_store(keys("a"), REQUEST)
    store(cpu, "b")
    assert cpu.lookup(k("a"), REQUEST) is LookupResult.HIT
    assert parts(cpu.prepare_store(keys("c"), REQUEST)) == (keys("c"), [0], keys("a"))


def test_readers_pin_and_return_as_most_recent() -> None:
    """A block is safe while anybody reads it, once per reader, and then the last to leave."""
    cpu = tier(3)
    store(cpu, "a b c")
    assert slots_of(cpu.prepare_load(keys("b a"), REQUEST)) == [1, 0]
    cpu.prepare_load(keys("a"), REQUEST)
    cpu.complete_load(keys("a b"), REQUEST)
    assert parts(cpu.prepare_store(keys("d e"), REQUEST)) == (keys("d e"), [1, 2], keys("c b"))
    assert cpu.prepare_store(keys("f"), REQUEST) is None
    cpu.complete_load(keys("a"), REQUEST)
    assert parts(cpu.prepare_store(keys("f"), REQUEST)) == (keys("f"), [0], keys("a"))


def test_loading_what_is_not_readable_is_refused_whole() -> None:
    """A load with a block that is not readable pins none of them."""
    cpu = tier(3)
    store(cpu, "a")
    cpu.prepare_store(keys("b"), REQUEST)
    for names in ("a x", "a b"):
        with pytest.raises(TierContractError, match="cannot be loaded"):
            cpu.prepare_load(keys(names), REQUEST)
    assert cpu.get_stats()["being_read"] == 0
    cpu.check_integrity()


def test_completing_a_load_nobody_began_is_refused_whole() -> None:
    """More completions than readers are refused, and the readers there are stay."""
    cpu = tier(3)
    store(cpu, "a b")
    cpu.prepare_load(keys("a"), REQUEST)
    for names in ("a a", "a b", "a x"):
        with pytest.raises(TierContractError, match="nobody reads"):
            cpu.complete_load(keys(names), REQUEST)
        cpu.check_integrity()
    assert cpu.get_stats()["being_read"] == 1
    cpu.complete_load(keys("a"), REQUEST)
    cpu.check_integrity()


def test_reset_says_what_is_gone() -> None:
    """A reset removes what was readable, after the events that wait; what was being written goes unsaid."""
    cpu = tier(4)
    store(cpu, "b a")
    cpu.prepare_load(keys("a"), REQUEST)
    cpu.prepare_store(keys("c"), REQUEST)
    cpu.reset_cache()
    cpu.check_integrity()
    cpu.complete_store(keys("c"), REQUEST)
    assert say(cpu.take_events()) == "+b +a | -b:reset -a:reset"
    assert store(cpu, "d e") == [0, 1]
    cpu.reset_cache()
    cpu.reset_cache()
    assert say(cpu.take_events()) == "+d +e | -d:reset -e:reset"


def test_events_are_handed_out_once() -> None:
    """Whoever stops half way through the events gets the rest of them never again, and none twice."""
    cpu = tier(4)
    store(cpu, "a")
    store(cpu, "b")
    assert next(iter(cpu.take_events())).keys == keys("a")
    store(cpu, "c")
    assert say(cpu.take_events()) == "+c"
    taken = cpu.take_events()
    store(cpu, "d")
    assert say(taken) == ""


def test_a_tier_nobody_listens_to_says_what_it_dropped() -> None:
    """The oldest events of a tier whose events nobody takes go, and its counters say how many."""
    cpu = tier(3)
    cpu._events.events_max = 2
    for name in "abc":
        store(cpu, name)
    assert cpu.get_stats()["events_dropped.undrained"] == 1
    assert say(cpu.take_events()) == "+b | +c"


def test_events_are_vllms_with_our_numbers() -> None:
    """An event says what vLLM's says, and carries its number in the order of making."""
    cpu = tier(1)
    store(cpu, "a")
    store(cpu, "b")
    events = list(cpu.take_events())
    assert events == [
        OffloadingEvent(keys("a"), cpu_medium := events[0].medium, removed=False),
        OffloadingEvent(keys("a"), cpu_medium, removed=True),
        OffloadingEvent(keys("b"), cpu_medium, removed=False),
    ]
    assert cpu_medium == "CPU"
    assert [(e.emit_seq, e.reason) for e in events] == [(0, None), (1, "evicted"), (2, None)]


def test_a_new_counter_numbers_what_still_waits() -> None:
    """Events that nobody took yet move over to the counter of whoever composes the tiers."""
    cpu = tier(4)
    store(cpu, "a")
    cpu.number_events(itertools.count(10))
    store(cpu, "b")
    assert [event.emit_seq for event in cpu.take_events()] == [10, 11]


def test_events_are_opt_in() -> None:
    """A tier that was not asked for events makes none."""
    cpu = CPUOffloadingManager(1)
    store(cpu, "a")
    store(cpu, "b")
    cpu.reset_cache()
    assert list(cpu.take_events()) == []


def test_seldom_asked_is_not_stored() -> None:
    """With a threshold of two, a block is stored once it was looked up twice, and the rest is counted."""
    cpu = CPUOffloadingManager(4, store_threshold=2)
    for name in ["a", "a", "b"]:
        cpu.lookup(k(name), REQUEST)
    assert parts(cpu.prepare_store(keys("b a"), REQUEST)) == (keys("a"), [0], [])
    assert cpu.get_stats()["stores_skipped"] == 1


def test_the_tracker_forgets_who_was_asked_for_longest_ago() -> None:
    """Only the last max_tracker_size keys are counted."""
    cpu = CPUOffloadingManager(4, store_threshold=2, max_tracker_size=2)
    for name in ["a", "b", "a", "c", "a", "b"]:
        cpu.lookup(k(name), REQUEST)
    assert parts(cpu.prepare_store(keys("a b c"), REQUEST)) == (keys("a"), [0], [])


def test_usage_is_what_is_pinned() -> None:
    """A full but idle tier has usage 0; readers and writers are counted apart."""
    cpu = tier(4)
    store(cpu, "a b c")
    assert cpu.get_stats()["usage"] == 0
    cpu.prepare_load(keys("a"), REQUEST)
    cpu.prepare_store(keys("d e"), REQUEST)
    stats = cpu.get_stats()
    assert (stats["usage"], stats["write_usage"], stats["read_usage"]) == (0.75, 0.5, 0.25)
    assert (stats["stores"], stats["evictions"]) == (3, 1)
    assert (stats["allocation_size.4"], stats["allocation_size.2"]) == (1, 1)


@pytest.mark.parametrize(("blocks", "policy", "tracked"), [(-1, "lru", 1), (1, "fifo", 1), (1, "lru", 0)])
def test_what_cannot_be_built(blocks: int, policy: str, tracked: int) -> None:
    """Sizes and names that cannot be are refused at once."""
    with pytest.raises(TierValueError):
        CPUOffloadingManager(blocks, policy, store_threshold=2, max_tracker_size=tracked)


def test_the_primary_hands_on_its_memory() -> None:
    """Tiers behind the primary get its memory itself; reading and writing are loading and storing."""
    memory = bytearray(6)
    primary = CPUPrimaryTierOffloadingManager(3, memoryview(memory).cast("B", (3, 2)))
    view = primary.get_kv_memoryview()
    view.cast("B")[2:4] = b"xy"
    assert memory == b"\0\0xy\0\0"
    assert view.strides == (2, 1)
    output = primary.prepare_write(keys("a b"), REQUEST)
    assert parts(output) == (keys("a b"), [0, 1], [])
    primary.complete_write(keys("a b"), REQUEST)
    assert slots_of(primary.prepare_read(keys("b"), REQUEST)) == [1]
    assert primary.get_stats()["being_read"] == 1
    primary.complete_read(keys("b"), REQUEST)
    assert primary.get_stats()["being_read"] == 0


def test_memory_and_books_agree() -> None:
    """Memory of another shape than the books is refused."""
    with pytest.raises(TierValueError, match="for 4 blocks"):
        CPUPrimaryTierOffloadingManager(4, memoryview(bytearray(6)).cast("B", (3, 2)))
