"""The CPU tier as a state machine: what hypothesis finds, it makes small."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.tiers.model import Said, SlowCPU
from tests.tiers.words import REQUEST, parts, short, slots_of
from tiers import CPUOffloadingManager, OffloadKey, make_offload_key

KEYS = [make_offload_key(bytes([n]), 0) for n in range(8)]
SOME = st.lists(st.sampled_from(KEYS), max_size=5)


class Books(RuleBasedStateMachine):
    """A tier and its slow model, side by side; and the tier's slots, followed by its events alone."""

    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.stores: list[list[OffloadKey]] = []
        self.loads: list[list[OffloadKey]] = []
        self.readable: set[OffloadKey] = set()

    @initialize(blocks=st.integers(0, 5))
    def begin(self, blocks: int) -> None:
        self.real = CPUOffloadingManager(blocks, self.policy, True)
        self.slow = SlowCPU(blocks, self.policy)

    @rule(keys=SOME)
    def touch(self, keys: list[OffloadKey]) -> None:
        self.real.touch(keys, REQUEST)
        self.slow.touch(keys)

    @rule(keys=SOME)
    def prepare_store(self, keys: list[OffloadKey]) -> None:
        expected = self.slow.prepare_store(keys)
        assert parts(self.real.prepare_store(keys, REQUEST)) == expected
        if expected and expected[0]:
            self.stores.append(expected[0])

    @precondition(lambda self: self.stores)
    @rule(data=st.data(), more=SOME, success=st.booleans())
    def complete_store(self, data: Any, more: list[OffloadKey], success: bool) -> None:
        keys = data.draw(st.permutations(self.stores.pop(data.draw(st.integers(0, len(self.stores) - 1)))))
        keys += [key for key in more if self.slow.refs.get(key) != -1]
        self.real.complete_store(keys, REQUEST, success)
        self.slow.complete_store(keys, success)

    @rule(keys=SOME)
    def prepare_load(self, keys: list[OffloadKey]) -> None:
        hits = [key for key in keys if self.slow.refs.get(key, -1) >= 0]
        assert slots_of(self.real.prepare_load(hits, REQUEST)) == self.slow.prepare_load(hits)
        self.loads.append(hits)

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def complete_load(self, data: Any) -> None:
        keys = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        self.real.complete_load(keys, REQUEST)
        self.slow.complete_load(keys)

    @rule()
    def reset(self) -> None:
        self.real.reset_cache()
        self.slow.reset()
        self.stores, self.loads = [], []

    @rule()
    def take_events(self) -> None:
        said = short(self.real.take_events())
        assert said == self.slow.take_events()
        for event in said:
            self.follow(event)
        assert self.readable == {key for key, readers in self.slow.refs.items() if readers >= 0}

    def follow(self, event: Said) -> None:
        """A key is stored when it is not there, removed when it is, and never are there too many."""
        kind, keys, _ = event
        assert self.readable.isdisjoint(keys) if kind == "stored" else self.readable.issuperset(keys)
        self.readable.symmetric_difference_update(keys)
        assert len(self.readable) <= self.slow.capacity

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "real"):
            self.real.check_integrity()
            for key in KEYS:
                assert self.real.lookup(key, REQUEST).name == self.slow.lookup(key)


class ARCBooks(Books):
    policy = "arc"


@pytest.mark.parametrize("machine", [Books, ARCBooks], ids=["lru", "arc"])
def test_any_order_of_calls(machine: type[Books]) -> None:
    """In whatever order a tier is called, it does what the slow model does, and its events add up."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
