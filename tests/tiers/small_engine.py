"""An engine small enough to follow by eye: prompts are words, a block's content is its key."""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.events import Event
from tests.tiers.words import slots_of
from tiers import (
    CPUPrimaryTierOffloadingManager,
    LoadStoreSpec,
    MemoryTier,
    OffloadKey,
    TieringOffloadingManager,
)
from tiers.gpu.pool import GPUBlockPool
from tiers.serving.engine import ServingEngine
from tiers.serving.prompt import Prompt, prompts
from tiers.serving.trace import Request
from tiers.voice.announcer import Announcer

ROW_BYTES = 48


def asked(*block_ids: Sequence[int], every_s: float = 0.0) -> list[Prompt]:
    """A prompt for each list of block numbers."""
    requests = (Request(n * every_s, tuple(ids), len(ids), 1) for n, ids in enumerate(block_ids))
    return list(prompts(requests, block_size=4))


class ByteDevice:
    """A GPU of byte strings over a CPU tier of real bytes. Copies fail, or go wrong, where a test says."""

    def __init__(self, cpu_rows: memoryview) -> None:
        self.gpu: dict[int, bytes] = {}
        self.cpu = cpu_rows.cast("B")
        self.failing: set[str] = set()
        self.compared = 0

    def compute(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        self.gpu.update(zip(slots, map(content, keys), strict=True))

    def load(self, cpu: LoadStoreSpec, slots: Sequence[int]) -> bool:
        for slot, row in zip(slots, slots_of(cpu), strict=True):
            whole = bytes(self.cpu[row * ROW_BYTES : (row + 1) * ROW_BYTES])
            self.gpu[slot] = whole if "load" not in self.failing else b"torn"
        return "load" not in self.failing

    def store(self, slots: Sequence[int], cpu: LoadStoreSpec) -> bool:
        for slot, row in zip(slots, slots_of(cpu), strict=True):
            self.cpu[row * ROW_BYTES : (row + 1) * ROW_BYTES] = self.gpu[slot]
        return "store" not in self.failing

    def mismatches(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> list[int]:
        self.compared += len(keys)
        pairs = enumerate(zip(slots, keys, strict=True))
        return [position for position, (slot, key) in pairs if self.gpu[slot] != content(key)]


def content(key: OffloadKey) -> bytes:
    return key.ljust(ROW_BYTES, b".")


class SmallEngine:
    """``gpu`` and ``cpu`` blocks, and behind them a memory tier for each number (None: no bound)."""

    def __init__(
        self,
        gpu: int,
        cpu: int,
        *behind: int | None,
        policy: str = "lru",
        delay_steps: int = 0,
        patience_s: float = 30.0,
    ) -> None:
        rows = memoryview(bytearray(max(cpu, 1) * ROW_BYTES)).cast("B", (max(cpu, 1), ROW_BYTES))
        self.device = ByteDevice(rows)
        self.primary = CPUPrimaryTierOffloadingManager(cpu, rows if cpu else None, policy, enable_events=True)
        self.behind = [
            MemoryTier(None, rows, f"memory{n}", max_blocks=most, delay_steps=delay_steps, enable_events=True)
            for n, most in enumerate(behind)
        ]
        self.manager = TieringOffloadingManager(self.primary, self.behind)
        self.pool = GPUBlockPool(gpu, 4, enable_events=True)
        names = ("gpu", "cpu", *(tier.tier_type for tier in self.behind))
        self.heard = {name: Heard() for name in names}
        self.announcer = Announcer(self.manager, self.heard, gpu=self.pool)
        self.engine = ServingEngine(
            self.pool,
            self.manager,
            device=self.device,
            speaker=self.announcer,
            patience_s=patience_s,
        )

    def hits(self, prompt: Prompt) -> tuple[int, ...]:
        """Serve it; what each tier supplied. Nothing may be wrong, and nothing held, afterwards."""
        served = self.engine.serve(prompt)
        self.engine.check_integrity()
        self.announcer.check_integrity()
        assert served.mismatches == ()
        return served.hits


class Heard:
    """A voice that keeps what it was told."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, list[Event]]] = []

    def publish(self, events: Sequence[Event], *, ts: float) -> None:
        self.batches.append((ts, list(events)))

    @property
    def events(self) -> list[Event]:
        return [event for _, events in self.batches for event in events]
