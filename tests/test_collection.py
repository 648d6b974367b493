"""``kvbus/collection.py``: gathered in a test, asserted there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kvbus.audit import audit
from kvbus.collection import KvEvents, NoManagerError
from kvbus.dialects import encode
from kvbus.publisher import Publisher
from kvbus.testing import events
from tiers import CPUOffloadingManager, ReqContext, make_offload_key


def gathered(*drains: str) -> KvEvents:
    found = KvEvents()
    for drain in drains:
        found.add(events(drain))
    return found


def test_a_manager_is_drained() -> None:
    """A tier of ours keeps the rule that is asserted of it; its events are handed back, a drain each call."""
    cpu, request = CPUOffloadingManager(num_blocks=2, enable_events=True), ReqContext("r")
    a, b, c = (make_offload_key(name, 0) for name in (b"a", b"b", b"c"))
    cpu.on_new_request(request)
    found = KvEvents()
    for keys in ([a, b], [c]):
        assert cpu.prepare_store(keys, request) is not None
        cpu.complete_store(keys, request)
        assert found.drain(cpu)
    found.assert_evicted_before_stored(capacity=2)
    found.assert_order(("stored", a), ("removed", a, "CPU"), ("stored", c))
    assert [event.batch for event in found.telling().events] == [0, 1, 1]
    assert audit(found.entries, ["refcount", "sequence"]).verdict == "HOLDS"


def test_a_store_before_its_victim_left_is_caught() -> None:
    """By capacity, with the event that went too far, in the keys' own names."""
    found = KvEvents()
    for key, removed in (("one", False), ("two", False), ("one", True)):
        found.add([SimpleNamespace(keys=[key], medium="CPU", removed=removed)])
    with pytest.raises(AssertionError, match="with block two CPU holds 2 blocks") as raised:
        found.assert_evicted_before_stored(capacity={"cpu": 1})
    assert "  >    1 | stored CPU two" in str(raised.value)
    found.assert_evicted_before_stored(capacity=2)


def test_stored_and_removed_at_once_is_caught_without_a_capacity() -> None:
    """In one drain, and nothing says why."""
    gathered("c:+a", "c:-a").assert_evicted_before_stored()
    with pytest.raises(AssertionError, match="VIOLATED"):
        gathered("c:+a c:-a").assert_evicted_before_stored()


def test_one_drain_may_hold_several_turns_of_a_slot() -> None:
    """Three blocks one after the other in a tier of one: what fits decides, not the drain."""
    cpu, request = CPUOffloadingManager(num_blocks=1, enable_events=True), ReqContext("r")
    cpu.on_new_request(request)
    for name in (b"a", b"b", b"c"):
        keys = [make_offload_key(name, 0)]
        assert cpu.prepare_store(keys, request) is not None
        cpu.complete_store(keys, request)
    found = KvEvents()
    assert len(found.drain(cpu)) == 5
    found.assert_evicted_before_stored(capacity=1)
    found.assert_evicted_before_stored()
    gathered("c:+a c:-a c:+b").assert_evicted_before_stored(capacity=1)


class Exhausted:
    """Answers that there is nothing with nothing."""

    def take_events(self) -> None:
        return None


@pytest.mark.parametrize("manager", [object(), None, CPUOffloadingManager, events("c:+a"), Exhausted()])
def test_what_has_no_events_to_take_is_refused(manager: object) -> None:
    """With what it was and what to hand over; nothing is gathered from it."""
    found = KvEvents()
    with pytest.raises(NoManagerError, match="take_events"):
        found.drain(manager)  # type: ignore[arg-type]
    assert found.entries == []


def test_nothing_to_judge_is_a_failure() -> None:
    """An assertion that saw nothing proves nothing."""
    with pytest.raises(AssertionError, match="nothing"):
        KvEvents().assert_evicted_before_stored(capacity=3)
    with pytest.raises(AssertionError, match="nothing"):
        gathered("g:+a").assert_evicted_before_stored(capacity={"CPU": 3})
    with pytest.raises(AssertionError, match="nothing"):
        gathered("g:+a").assert_tier_order("GPU", "CPU")


def test_tier_order_is_asserted() -> None:
    """The two events that are the wrong way round are marked."""
    gathered("g:+a c:+a").assert_tier_order("GPU", "CPU")
    with pytest.raises(AssertionError, match="GPU speaks after CPU") as raised:
        gathered("g:+b", "c:+a g:+a").assert_tier_order("GPU", "CPU")
    assert str(raised.value).count("\n  >") == 2


def test_a_baseline_is_written_compared_and_updated(tmp_path: Path) -> None:
    """Without one the test fails and says how to make it; with one it is compared, tolerances included."""
    old, new = KvEvents(folder=tmp_path), KvEvents(folder=tmp_path, update=True)
    for found in (old, new):
        found.add(events("c:+a c:+b"))
    with pytest.raises(AssertionError, match="--kvbus-update"):
        old.assert_matches_baseline("x.baseline")
    new.assert_matches_baseline("x.baseline")
    old.assert_matches_baseline("x.baseline")
    old.add(events("c:-a"))
    with pytest.raises(AssertionError, match="1 extra"):
        old.assert_matches_baseline("x.baseline")
    other = KvEvents(folder=tmp_path)
    other.add(events("c:+x~"))
    other.add(events("c:+y~"))
    for ignore in (["tokens", "batching"], "tokens,batching"):
        other.assert_matches_baseline("x.baseline", ignore=ignore)


def test_an_endpoint_is_heard(tmp_path: Path) -> None:
    """What is published while the block runs is there after it, from the first batch on."""
    endpoint, replay = f"ipc://{tmp_path}/p", f"ipc://{tmp_path}/r"
    found = KvEvents()
    with Publisher(endpoint, replay_endpoint=replay) as publisher:
        with found.listen(endpoint, replay=replay, batches=2):
            for text in ("c:+a", "c:-a"):
                publisher.publish(events(text))
        found.assert_order(("stored", "a"), ("removed", "a"))
        with (
            pytest.raises(AssertionError, match="0 of 9 batches"),
            found.listen(f"ipc://{tmp_path}/nobody", batches=9, timeout_s=0.1),
        ):
            pass


def test_what_was_missed_is_no_success(tmp_path: Path) -> None:
    """A stream with a hole, or joined late: nobody knows what was stored meanwhile."""
    endpoint = f"ipc://{tmp_path}/p"
    for numbers, why in (((0, 2), "batch 1 is missing"), ((5, 6), "UNKNOWN")):
        found = KvEvents()
        with Publisher(endpoint) as publisher, found.listen(endpoint, batches=2):
            assert publisher.wait_for_subscriber(10)
            for number in numbers:
                publisher.forward(b"", number, encode(events(f"c:+x{number}"), ts=1.0 + number))
        with pytest.raises(AssertionError, match=why):
            found.assert_evicted_before_stored(capacity=9)
