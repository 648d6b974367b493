"""What the CPU tier's books cost a block, with 30 % of them pinned, next to vLLM's own manager.

Both are driven alike, by the calls a scheduler makes: a request looks its blocks up, touches them, loads a
prefix that is there, stores what is new (for which as many must leave), and is over. Nothing is copied.
Sizes go from 10³ to 10⁶ blocks, to show that the cost of a block does not depend on how many there are.
"""

from __future__ import annotations

import gc
import importlib
import logging
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType
from typing import Any, Final

from bench.figures import Figure, Section, rate
from scripts.peers import VLLM_VERSION, vllm_dir
from tiers import BlockStatus, CPUOffloadingManager, ReqContext, make_offload_key

SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
AGAINST_PEER: Final = 100_000
POLICIES: Final = ("lru", "arc")
PINNED: Final = 0.3
REQUEST_BLOCKS: Final = 32
BLOCKS: Final = 50_000

Make = Callable[[int, str], tuple[Any, Callable[[str], Any]]]
"""(blocks, policy) → a manager, and what makes a request's context for it."""


def tiers(*, rounds: int, blocks: int = BLOCKS) -> Section:
    """Blocks a second through ``CPUOffloadingManager``; at 10⁵ also through vLLM's, if it was brought."""
    figures: list[Figure] = []
    for policy in POLICIES:
        for size in SIZES:
            figures.append(flat(policy, size, rounds=rounds, blocks=blocks))
    if (vllm_dir() / "vllm/v1/kv_offload").is_dir():
        peer = vllm_offload()
        for policy in POLICIES:
            figures += compared(peer, policy, rounds=rounds, blocks=blocks)
    note = f"{blocks} blocks a round, {rounds} rounds; {PINNED:.0%} pinned; looked up, stored, evicted"
    return Section("tiers", note, tuple(figures))


def flat(policy: str, size: int, *, rounds: int, blocks: int) -> Figure:
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(blocks / memory_alone(size, blocks))
        ours.append(blocks / drive(own, policy, size, blocks))
    return rate(f"{policy}, {size} blocks", "blocks/s", ours, against="a bare OrderedDict", base=bare)


def memory_alone(size: int, blocks: int) -> float:
    """Seconds for as many keys in and out of an OrderedDict: what a block must cost at this size, since the
    processor's caches hold a thousand blocks and not a million.
    """
    names = (make_offload_key(number.to_bytes(32, "big"), 0) for number in range(1 << 62))
    held = OrderedDict((next(names), BlockStatus(slot)) for slot in range(size))
    new = [next(names) for _ in range(blocks)]
    gc.collect()
    began = time.perf_counter()
    for key in new:
        if key not in held:
            _, block = held.popitem(last=False)
            held[key] = BlockStatus(block.block_id)
    return time.perf_counter() - began


def compared(peer: Make, policy: str, *, rounds: int, blocks: int) -> list[Figure]:
    """Both at 10⁵ blocks, in turn."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        theirs.append(blocks / drive(peer, policy, AGAINST_PEER, blocks))
        ours.append(blocks / drive(own, policy, AGAINST_PEER, blocks))
    name = f"{policy}, {AGAINST_PEER} blocks, in turn"
    return [
        rate(f"{name}: vLLM {VLLM_VERSION}", "blocks/s", theirs),
        rate(name, "blocks/s", ours, against="vLLM's manager", base=theirs, reach="≥ 2×"),
    ]


def own(size: int, policy: str) -> tuple[Any, Callable[[str], Any]]:
    return CPUOffloadingManager(size, cache_policy=policy, enable_events=True), ReqContext


def drive(make: Make, policy: str, size: int, blocks: int) -> float:
    """Seconds for ``blocks`` blocks, through a full cache of which 30 % are pinned for good."""
    manager, context = make(size, policy)
    names = (make_offload_key(number.to_bytes(32, "big"), 0) for number in range(1 << 62))
    resident = [next(names) for _ in range(size)]
    for start in range(0, size, REQUEST_BLOCKS):
        store(manager, context(f"fill-{start}"), resident[start : start + REQUEST_BLOCKS])
    chance = random.Random(7)
    pinned = chance.sample(resident, int(PINNED * size))
    manager.prepare_load(pinned, context("readers"))
    hot = [key for key in pinned if chance.random() < 0.5]  # these are never evicted, so they always hit
    requests = []
    for number in range(blocks // REQUEST_BLOCKS):
        prefix = chance.sample(hot, REQUEST_BLOCKS // 4)
        requests.append((context(f"r{number}"), prefix, [next(names) for _ in range(REQUEST_BLOCKS)]))
    gc.collect()
    gc.freeze()  # the requests made ready above are the bench's own: no collection shall walk them
    began = time.perf_counter()
    for ctx, prefix, new in requests:
        serve(manager, ctx, prefix, new)
    seconds = time.perf_counter() - began
    gc.unfreeze()
    return seconds


def serve(manager: Any, ctx: Any, prefix: list[Any], new: list[Any]) -> None:
    """One request, from first sight to its end."""
    manager.on_new_request(ctx)
    for key in prefix:
        manager.lookup(key, ctx)
    for key in new:
        manager.lookup(key, ctx)
    manager.touch(prefix, ctx)
    manager.prepare_load(prefix, ctx)
    manager.complete_load(prefix, ctx)
    store(manager, ctx, new)
    manager.on_request_finished(ctx)
    for _ in manager.take_events():
        pass


def store(manager: Any, ctx: Any, keys: list[Any]) -> None:
    output = manager.prepare_store(keys, ctx)
    assert output is not None
    manager.touch(keys, ctx)
    manager.complete_store(output.keys_to_store, ctx)


def vllm_offload() -> Make:
    """vLLM's ``CPUOffloadingManager``, its own code; only what it imports from elsewhere is stood in for."""
    with stand_ins():
        manager = importlib.import_module("vllm.v1.kv_offload.cpu.manager")
        base = importlib.import_module("vllm.v1.kv_offload.base")
        for policy in POLICIES:
            importlib.import_module(f"vllm.v1.kv_offload.cpu.policies.{policy}")
        kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}

    def make(size: int, policy: str) -> tuple[Any, Callable[[str], Any]]:
        # Its factory imports a policy when it is asked for.
        with borrowed(kept):
            return manager.CPUOffloadingManager(size, policy, enable_events=True), base.ReqContext

    return make


@contextmanager
def stand_ins() -> Iterator[None]:
    root = ModuleType("vllm")
    root.__path__ = [str(vllm_dir() / "vllm")]
    sources = Enum("CacheHitSource", ["CPU", "EXTERNAL_UNSPECIFIED", "STORAGE"])  # type: ignore[misc]
    contents: dict[str, dict[str, object]] = {
        "torch": {"Tensor": object},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.utils": {},
        "vllm.utils.math_utils": {"cdiv": lambda a, b: -(-a // b)},
        "vllm.distributed": {},
        "vllm.distributed.kv_transfer": {},
        "vllm.distributed.kv_transfer.kv_connector": {},
        "vllm.distributed.kv_transfer.kv_connector.v1": {},
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading": {},
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": {"OffloadingConnectorStats": dict},
        "vllm.v1.kv_hints": {"KvHintsEnvelope": object},
        "vllm.v1.metrics": {},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": sources},
    }
    modules = {"vllm": root}
    for name, names in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(names)
    with borrowed(modules):
        yield


@contextmanager
def borrowed(modules: dict[str, ModuleType]) -> Iterator[None]:
    """These modules are importable inside, and gone afterwards with all that came in through them."""
    before = dict(sys.modules)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "torch")]:
            if name in before:
                sys.modules[name] = before[name]
            else:
                del sys.modules[name]
