"""A pocket language for tests of tiers: blocks are letters, events are short."""

from __future__ import annotations

from collections.abc import Iterable

from tests.tiers.model import Said
from tiers import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LoadStoreSpec,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    make_offload_key,
)


def k(name: str, group: int = 0) -> OffloadKey:
    """The key of a block called ``name``."""
    return make_offload_key(name.encode(), group)


def keys(names: str) -> list[OffloadKey]:
    """``keys("a b c")``: one key a word."""
    return [k(name) for name in names.split()]


def short(events: Iterable[OffloadingEvent]) -> list[Said]:
    return [("removed" if e.removed else "stored", tuple(e.keys), e.reason) for e in events]


def say(events: Iterable[OffloadingEvent]) -> str:
    """``"+a +b -a:evicted"``: a word a block, in order; ``|`` between events."""
    return " | ".join(
        " ".join(
            f"-{key[:-4].decode()}:{e.reason}" if e.removed else f"+{key[:-4].decode()}" for key in e.keys
        )
        for e in events
    )


def slots_of(spec: LoadStoreSpec) -> list[int]:
    assert isinstance(spec, CPULoadStoreSpec)
    return [int(slot) for slot in spec.block_ids]


def parts(output: PrepareStoreOutput | None) -> tuple[list[OffloadKey], list[int], list[OffloadKey]] | None:
    if output is None:
        return None
    return output.keys_to_store, slots_of(output.store_spec), output.evicted_keys


REQUEST = ReqContext("r")


def store(manager: CPUOffloadingManager, names: str) -> list[int]:
    """Store blocks from beginning to end, and the slots they got."""
    output = manager.prepare_store(keys(names), REQUEST)
    assert output is not None
    manager.complete_store(output.keys_to_store, REQUEST)
    manager.check_integrity()
    return slots_of(output.store_spec)
