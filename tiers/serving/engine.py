"""A serving engine in small: a GPU's paged blocks and the tiers behind them, for one request after another.

It makes the calls of a scheduler (``tiers.manager``) in a scheduler's order, and nothing else does: with a
device that moves bytes it is ``kvbus run``, with one that moves none a what-if. What a request set in motion
is at rest before the next one begins, so both find the same blocks in the same tiers. No clock of its own, no
trace; how its tiers speak is a ``Speaker``'s matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tiers.errors import TierContractError
from tiers.gpu.pool import GPUBlockPool
from tiers.keys import OffloadKey
from tiers.request import ReqContext, ScheduleEndContext
from tiers.serving.device import Device
from tiers.serving.patience import Patience
from tiers.serving.prompt import Prompt
from tiers.serving.search import FIRST_BEHIND, Found, PrefixSearch
from tiers.serving.served import Served
from tiers.specs import PrepareStoreOutput
from tiers.tiering.manager import TieringOffloadingManager
from tiers.voice.description import BlockDescription

BLOCKS_PER_STEP: Final = 128
"""How many blocks are computed, and then offloaded, at once, as with chunked prefill."""

PATIENCE_S: Final = 300.0
STEP_END: Final = ScheduleEndContext((), ())


class Speaker(Protocol):
    """Who takes the tiers' events and says them: an ``Announcer``."""

    def describe(self, key: OffloadKey, description: BlockDescription) -> None:
        """Hear what a key stands for, before any tier speaks of it."""
        ...

    def drain(self) -> object:
        """Take what every tier has to say by now."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """``count`` blocks came up from the CPU tier; ``mismatches``: those that were wrong, now put right."""

    count: int
    mismatches: tuple[OffloadKey, ...] = ()


@dataclass(slots=True)
class _Request:
    """One request under way. The first ``cached`` of its blocks the GPU had; ``tokens`` are those of the
    others, where anybody wants to hear of them.
    """

    context: ReqContext
    hashes: list[bytes]
    keys: list[OffloadKey]
    slots: list[int]
    cached: int
    tokens: list[list[int]] = field(default_factory=list)


class ServingEngine:
    """Serves prompts with a GPU of ``gpu``'s size and the tiers of ``manager``; ``device`` is their memory.
    A ``gpu`` that makes events needs a ``speaker``, which takes them, and the tiers', once a step.

    Of a prompt longer than the GPU the first blocks are served, the others are misses, and counted
    (``blocks_beyond_gpu``). ``patience_s``: how long one search, or one store, may wait for a tier.
    """

    def __init__(
        self,
        gpu: GPUBlockPool,
        manager: TieringOffloadingManager,
        *,
        device: Device,
        speaker: Speaker | None = None,
        blocks_per_step: int = BLOCKS_PER_STEP,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.gpu = gpu
        self.manager = manager
        self.device = device
        self._speaker = speaker
        # More than the CPU tier has room for could never be offloaded.
        self._blocks_per_step = min(blocks_per_step, manager.primary_tier.num_blocks) or blocks_per_step
        self._patience_s = patience_s
        self._counts: Counter[str] = Counter()

    @property
    def num_tiers(self) -> int:
        """The GPU, the CPU, and those behind."""
        return FIRST_BEHIND + len(self.manager.secondary_tiers)

    def serve(self, prompt: Prompt) -> Served:
        """Serve one request from its first call to its last.

        Raises ``TierStalledError`` if a tier keeps it waiting for longer than ``patience_s``.
        """
        request = self._begin(prompt)
        cached, blocks = len(request.slots), len(request.keys)
        found = self._find(request)
        self.manager.touch(request.keys, request.context)
        request.slots += self._allocate(blocks - cached)
        loaded = self._load(request, found)
        known = cached + loaded.count
        self._make_readable(request, range(cached, known))
        for first in range(known, blocks, self._blocks_per_step):
            run = range(first, min(first + self._blocks_per_step, blocks))
            self.device.compute(request.slots[run.start : run.stop], request.keys[run.start : run.stop])
            self._make_readable(request, run)
            self._store(request, run)
        self.gpu.free(request.slots[::-1])  # the tail of the prefix leaves first
        self.manager.on_request_finished(request.context)
        self._step()
        suppliers = Counter(found.suppliers[: loaded.count])
        hits = (cached, *(suppliers[tier] for tier in range(1, self.num_tiers)))
        return Served(len(prompt), hits, loaded.mismatches)

    def _begin(self, prompt: Prompt) -> _Request:
        """What of it the GPU has is pinned; what the tiers will be asked for is described."""
        blocks = min(len(prompt), self.gpu.num_blocks)
        self._counts["blocks_beyond_gpu"] += len(prompt) - blocks
        hashes, keys = prompt.hashes[:blocks], prompt.keys[:blocks]
        slots = self.gpu.find_prefix(hashes)
        request = _Request(ReqContext(prompt.req_id), hashes, keys, slots, len(slots))
        self.gpu.touch(slots)
        self.manager.on_new_request(request.context)
        if self._speaker is not None:
            request.tokens = prompt.tokens(range(len(slots), blocks))
            self._describe(request, self._speaker, prompt.block_size)
        return request

    def _describe(self, request: _Request, speaker: Speaker, block_size: int) -> None:
        """What keys stand for, before any tier speaks of them: a promotion may, while it is looked for."""
        for position, token_ids in enumerate(request.tokens, start=request.cached):
            parent = request.hashes[position - 1] if position else None
            description = BlockDescription([request.hashes[position]], parent, token_ids, block_size)
            speaker.describe(request.keys[position], description)

    # Reading

    def _find(self, request: _Request) -> Found:
        keys = request.keys[request.cached :]
        search = PrefixSearch(self.manager, keys, req_context=request.context)
        patience = Patience(f"looking up {len(keys)} blocks", self._patience_s)
        while not search.look():
            self._step()
            patience.wait(search.pinned)
        return search.take()

    def _allocate(self, count: int) -> list[int]:
        slots = self.gpu.allocate(count)
        if slots is None:
            raise TierContractError(
                f"the GPU has no room for {count} blocks between two requests",
                next_step="Leave the pool to the engine: nobody else may pin its slots.",
            )
        return slots

    def _load(self, request: _Request, found: Found) -> Loaded:
        """Bring up what was found, compare it, and put right what is wrong: all of it, or nothing where it
        could not be copied.
        """
        if not found.keys:
            return Loaded(0)
        slots = request.slots[request.cached : request.cached + len(found.keys)]
        arrived = self.device.load(found.cpu, slots)
        self.manager.complete_load(found.keys, request.context)
        if not arrived:
            self._counts["load_failures"] += 1
            return Loaded(0)
        wrong = self.device.mismatches(slots, found.keys)
        keys = [found.keys[position] for position in wrong]
        self.device.compute([slots[position] for position in wrong], keys)
        self._counts["loads"] += len(slots)
        self._counts["mismatches"] += len(keys)
        return Loaded(len(slots), tuple(keys))

    # Writing

    def _make_readable(self, request: _Request, run: range) -> None:
        self.gpu.cache(
            request.slots[run.start : run.stop],
            request.hashes[run.start : run.stop],
            token_ids=request.tokens[run.start - request.cached : run.stop - request.cached],
            parent=request.hashes[run.start - 1] if run.start else None,
        )

    def _store(self, request: _Request, run: range) -> None:
        """Offload blocks just computed, and wait until every tier has them or has failed to take them."""
        keys = request.keys[run.start : run.stop]
        output = self._prepare_store(keys, request.context)
        if output is None:
            self._counts["stores_given_up"] += len(run)
            return
        self.manager.touch(request.keys[: run.stop], request.context)
        if new := output.keys_to_store:
            slot_of = dict(zip(keys, request.slots[run.start : run.stop], strict=True))
            arrived = self.device.store([slot_of[key] for key in new], output.store_spec)
            self._counts["store_failures"] += not arrived
            self.manager.complete_store(new, request.context, arrived)
        self._settle()

    def _prepare_store(self, keys: Collection[OffloadKey], context: ReqContext) -> PrepareStoreOutput | None:
        """Try again while copies are under way that may give room back."""
        patience = Patience(f"room for {len(keys)} blocks in the CPU tier", self._patience_s)
        while (output := self.manager.prepare_store(keys, context)) is None:
            if not self.manager.has_pending_work():
                return None
            self._step()
            patience.wait()
        return output

    # Steps

    def _step(self) -> None:
        self._counts["steps"] += 1
        self.manager.on_schedule_end(STEP_END)
        if self._speaker is not None:
            self._speaker.drain()

    def _settle(self) -> None:
        patience = Patience("the tiers at work", self._patience_s)
        self._step()
        while self.manager.has_pending_work():
            patience.wait()
            self._step()

    def get_stats(self) -> Mapping[str, float]:
        """Counters since the start; the tiers have their own."""
        return dict(self._counts)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if anything is held between two requests, or a promise is broken."""
        self.gpu.check_integrity()
        self.manager.check_integrity()
        assert self.gpu.free_count == self.gpu.num_blocks, "a request left slots of the GPU pinned"
        assert not self.manager.primary_tier.get_stats()["being_read"], "a request left blocks pinned"
