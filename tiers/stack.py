"""A whole engine put together: GPU, CPU tier, those behind it, their memory, their voice; and taken apart.

What is here is order alone: what is made after what, who is let go of last. What the parts do is theirs.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tiers.announcer import Announcer
from tiers.engine import Engine
from tiers.factory import SecondaryTierFactory
from tiers.gpu import GPUBlockPool
from tiers.medium import Medium
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.secondary import SecondaryTierManager
from tiers.stack_spec import CPU, StackSpec, TierSpec
from tiers.storage import StorageTier
from tiers.tally import Tally, TierTally
from tiers.tiering import TieringOffloadingManager
from tiers.torch_device import TorchDevice
from tiers.transfer_times import RECENT, TransferTimes
from tiers.voices import Address
from tiers.workload import Count


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
                manager, dict(zip(spec.names, addresses, strict=True)), gpu=self.gpu, when_full="wait"
            )
            opened.callback(self.announcer.close)
            self.engine = Engine(self.gpu, manager, device=self.device, announcer=self.announcer)
            self._opened = opened.pop_all()

    def tally(self, count: Count) -> Tally:
        """What a run came to: what was counted of its requests, and what each tier counted itself."""
        tiers: list[GPUBlockPool | CPUPrimaryTierOffloadingManager | SecondaryTierManager]
        tiers = [self.gpu, self.primary, *self.behind]
        media = [Medium.GPU, Medium.CPU, *(tier.medium for tier in self.behind)]
        said = self.announcer.get_stats()
        found = []
        for name, tier, medium, hits in zip(self.spec.names, tiers, media, count.hits, strict=True):
            stats = tier.get_stats()
            stores, loads = int(stats.get("stores", 0)), int(stats.get("loads", 0))
            if name == CPU:
                loads = self.device.times["load"].bytes // self.spec.block_bytes
            found.append(
                TierTally(
                    name,
                    "" if medium is None else str(medium),
                    hits,
                    stores,
                    int(stats.get("evictions", 0)),
                    int(stats.get("bytes_stored", stores * self.spec.block_bytes)),
                    int(stats.get("bytes_loaded", loads * self.spec.block_bytes)),
                    int(said.get(f"events.{name}", 0)),
                )
            )
        return Tally(count.requests, count.block_refs, count.misses, count.mismatches, found)

    def transfer_times(self) -> Mapping[str, Mapping[str, TransferTimes]]:
        """How long each tier's transfers took: by its name, then ``load`` and ``store``. The GPU is left out:
        its copies are the CPU tier's.
        """
        found: dict[str, Mapping[str, TransferTimes]] = {CPU: self.device.times}
        for tier in self.behind:
            if isinstance(tier, StorageTier):
                found[tier.tier_type] = times_of(tier)
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


def times_of(tier: StorageTier) -> Mapping[str, TransferTimes]:
    """What a storage tier counted, in the form of all tiers."""
    stats, recent = tier.get_stats(), tier.transfer_times()
    named = {"load": ("bytes_loaded", "read_seconds"), "store": ("bytes_stored", "write_seconds")}
    return {
        kind: TransferTimes(
            int(stats.get(num_bytes, 0)), stats.get(seconds, 0.0), deque(recent[kind], maxlen=RECENT)
        )
        for kind, (num_bytes, seconds) in named.items()
    }
