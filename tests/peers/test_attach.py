"""vLLM's own tiering manager, its CPU tier and a tier of its protocol, put on the bus by one call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

from bench.tiers import borrowed, stand_ins
from kvbus import BlockRemoved, BlockStored
from scripts.peers import vllm_dir
from tests.tiers.hearing import Ear, events_of
from tests.tiers.words import keys
from tiers.voice.attach import attach

pytestmark = pytest.mark.peer

BLOCKS, BLOCK_BYTES = 2, 64
# What comes out of another project's modules has no types here.
Manager = Any


class Region:
    """vLLM's shared memory, as far as bookkeeping asks for it."""

    def create_kv_memoryview(self) -> memoryview:
        return memoryview(bytearray(BLOCKS * BLOCK_BYTES)).cast("B", (BLOCKS, BLOCK_BYTES))

    def cleanup(self) -> None:
        """Nothing is mapped."""


class Unheeded:
    """Counters that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def stand_in(name: str, **names: object) -> dict[str, ModuleType]:
    made = ModuleType(name)
    vars(made).update(names)
    return {name: made}


@pytest.fixture(scope="module")
def vllm() -> dict[str, ModuleType]:
    """vLLM's modules as released, by name; what they import from elsewhere is stood in for."""
    if not (vllm_dir() / "vllm/v1/kv_offload").is_dir():
        pytest.skip("vLLM's kv_offload is not there: `make peers` brings it")
    sources = Enum("CacheHitSource", ["HOST", "DISK", "P2P", "EXTERNAL_UNSPECIFIED"])  # type: ignore[misc]
    metrics = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics"
    strangers = {
        **stand_in(metrics, OffloadingConnectorStats=Unheeded),
        **stand_in("vllm.v1.kv_offload.cpu.shared_offload_region", SharedOffloadRegion=object),
        **stand_in("vllm.v1.metrics.cache_hit_source", CacheHitSource=sources),
    }
    with stand_ins(), borrowed(strangers):
        for name in ("tiering.manager", "tiering.example.manager", "cpu.policies.lru"):
            importlib.import_module(f"vllm.v1.kv_offload.{name}")
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}


@pytest.fixture
def manager(vllm: dict[str, ModuleType]) -> Iterator[Manager]:
    """vLLM's composing manager over two CPU blocks and its example tier, which is made to say what it has."""
    base = vllm["vllm.v1.kv_offload.base"]
    tiering, example = (
        vllm["vllm.v1.kv_offload.tiering.manager"],
        "vllm.v1.kv_offload.tiering.example.manager",
    )

    class Telling(vllm[example].ExampleSecondaryTierManager):  # type: ignore[misc]
        """As vLLM's file-system tier speaks: lazily."""

        events: list[object]

        def submit_store(self, job_metadata: Any) -> None:
            super().submit_store(job_metadata)
            stored = list(job_metadata.keys)
            self.events.append(base.OffloadingEvent(stored, base.Medium.STORAGE, False, ownership="fs-0"))

        def take_events(self) -> Iterable[object]:
            yield from self.events
            self.events.clear()

    with borrowed(vllm):  # its factory imports a policy when it is asked for
        primary = tiering.CPUPrimaryTierOffloadingManager(BLOCKS, Region(), enable_events=True)
        behind = Telling(None, primary.get_kv_memoryview(), "example")
        behind.events = []
        made = tiering.TieringOffloadingManager(primary, [behind])
        yield made
        made.shutdown()


def store(manager: Manager, base: ModuleType, names: str) -> None:
    context = base.ReqContext(names)
    manager.on_new_request(context)
    output = manager.prepare_store(keys(names), context)
    manager.complete_store(output.keys_to_store, context)
    manager.on_request_finished(context)
    for _ in range(2):
        manager.on_schedule_end(base.ScheduleEndContext([], []))


def test_vllms_tiering_manager_is_attached_with_one_call(
    vllm: dict[str, ModuleType], manager: Manager
) -> None:
    """Its scheduler drains what it always drained; the bus has the same, a socket a tier, primary first."""
    base = vllm["vllm.v1.kv_offload.base"]
    drained: list[Any] = []
    with attach(manager) as attached, Ear(attached.feeds) as ear:
        for names in ("a b", "c", "d"):
            store(manager, base, names)
            drained += manager.take_events()
        assert list(manager.take_events()) == []
        ear.listen_until(lambda: len(ear.rounds) == 3)
        assert attached.get_stats()["drains"] == 3
        assert "unreadable" not in attached.get_stats()
    assert [feed.name for feed in attached.feeds] == ["primary", "example"]
    assert all(type(event) is base.OffloadingEvent for event in drained)
    assert [one.absent for one in ear.rounds] == [()] * 3
    heard = [
        (e.medium, e.ownership, isinstance(e, BlockRemoved), one)
        for e in events_of(ear.rounds)
        if isinstance(e, BlockStored | BlockRemoved)
        for one in e.block_hashes
    ]
    assert heard == [
        (event.medium.value, event.ownership, event.removed, key[0])
        for event in drained
        for key in event.keys
    ]
    assert {removed for _, _, removed, _ in heard} == {True, False}
    assert not any("take_events" in vars(tier) for tier in (manager, manager.primary_tier))
