"""A whole engine put together: GPU, CPU tier, those behind it, their memory, their voice; and taken apart.

What is here is order alone: what is made after what, who is let go of last. What the parts do is theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from tiers.factory import SecondaryTierFactory
from tiers.gpu.pool import GPUBlockPool
from tiers.medium import Medium
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.secondary import SecondaryTierManager
from tiers.serving.engine import ServingEngine
from tiers.serving.stack_spec import CPU_NAME, StackSpec, TierSpec
from tiers.serving.tally import Tally, TierTally
from tiers.serving.torch_device import TorchDevice
from tiers.serving.workload import RunCount
from tiers.storage.tier import StorageTier
from tiers.tiering.manager import TieringOffloadingManager
from tiers.transfer_times import TransferTimes
from tiers.voice.announcer import Announcer
from tiers.voice.voices import Address

WAYS_IN: Final = ("stores", "stores_found", "adoptions", "inventory")
"""How a block becomes readable in a tier, by the tier's counters: it was written, was found there when it was
to be written or looked for, or lay there when the tier was opened. All are announced as stored.
"""


class TierStack:
    """An engine that moves real blocks, and speaks at ``addresses``, one for each of ``spec.names``.

    Publishers wait rather than lose a batch: nobody here is in a hurry. Raises what the parts raise; nothing
    stays open then.
    """

    def __init__(self, spec: StackSpec, addresses: Sequence[Address]) -> None:
        self.spec = spec
        with ExitStack() as opened:
            self.device = TorchDevice(
                spec.gpu_blocks, spec.cpu_blocks, block_bytes=spec.block_bytes, device=spec.device
            )
            opened.callback(self.device.close)
            self.primary = CPUPrimaryTierOffloadingManager(
                spec.cpu_blocks, self.device.cpu_rows, spec.policy, enable_events=True
            )
            self.behind: list[SecondaryTierManager] = []
            for tier in spec.behind:
                self.behind.append(made(tier, self.device.cpu_rows))
                opened.callback(self.behind[-1].shutdown)
            manager = TieringOffloadingManager(self.primary, self.behind)
            self.gpu = GPUBlockPool(spec.gpu_blocks, spec.block_tokens, enable_events=True)
            self.announcer = Announcer(
                manager, self._told_capacities(addresses), gpu=self.gpu, when_full="wait"
            )
            opened.callback(self.announcer.close)
            self.engine = ServingEngine(self.gpu, manager, device=self.device, speaker=self.announcer)
            self._opened = opened.pop_all()

    def _told_capacities(self, addresses: Sequence[Address]) -> dict[str, Address]:
        """Each tier's address, which tells readers what fits: here a key is a block."""
        capacities: list[int | None] = [self.spec.gpu_blocks, self.spec.cpu_blocks]
        capacities += [tier.capacity for tier in self.behind]
        return {
            name: at._replace(capacity={str(medium): most} if medium and most else None)
            for name, at, medium, most in zip(
                self.spec.names, addresses, self._media(), capacities, strict=True
            )
        }

    def _media(self) -> list[Medium | None]:
        return [Medium.GPU, Medium.CPU, *(tier.medium for tier in self.behind)]

    def tally(self, count: RunCount) -> Tally:
        """What a run came to: what was counted of its requests, and what each tier counted itself."""
        parts: list[GPUBlockPool | CPUPrimaryTierOffloadingManager | SecondaryTierManager]
        parts = [self.gpu, self.primary, *self.behind]
        stats = [part.get_stats() for part in parts]
        # The CPU's books cannot tell a load by the GPU from one by a tier behind: the engine can.
        loads = [0, self.engine.get_stats().get("loads", 0), *(s.get("loads", 0) for s in stats[2:])]
        said = self.announcer.get_stats()
        tiers = [
            TierTally(
                tier=name,
                medium="" if medium is None else str(medium),
                hits=hits,
                stores=sum(int(counted.get(way, 0)) for way in WAYS_IN),
                evictions=int(counted.get("evictions", 0)),
                bytes_stored=int(counted.get("stores", 0)) * self.spec.block_bytes,
                bytes_loaded=int(loaded) * self.spec.block_bytes,
                events=int(said.get(f"events.{name}", 0)),
            )
            for name, medium, hits, counted, loaded in zip(
                self.spec.names, self._media(), count.hits, stats, loads, strict=True
            )
        ]
        return Tally(count.requests, count.block_refs, count.misses, count.mismatches, tiers)

    def transfer_times(self) -> Mapping[str, Mapping[str, TransferTimes]]:
        """How long each tier's transfers took: by its name, then ``load`` and ``store``. The GPU is left out:
        its copies are the CPU tier's.
        """
        found: dict[str, Mapping[str, TransferTimes]] = {CPU_NAME: self.device.times}
        for tier in self.behind:
            if isinstance(tier, StorageTier):
                found[tier.tier_type] = tier.transfer_times()
        return found

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of the parts does not hold now."""
        self.engine.check_integrity()
        self.announcer.check_integrity()

    def close(self) -> None:
        """The last word first, then the tiers, then the memory under them. Safe to call twice."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def made(tier: TierSpec, primary_kv_view: memoryview) -> SecondaryTierManager:
    """The tier, with events if it is of those that make any. Raises as ``SecondaryTierFactory``."""
    config: dict[str, object] = {**tier.options, "type": tier.type, "name": tier.name}
    takes = inspect.signature(SecondaryTierFactory.get_tier_class(config)).parameters
    if "enable_events" in takes:
        config["enable_events"] = True
    return SecondaryTierFactory.create_secondary_tier(config, primary_kv_view)
