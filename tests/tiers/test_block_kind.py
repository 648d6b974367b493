"""Kinds of blocks: what may stand in for what."""

from __future__ import annotations

from typing import Any

import pytest

from tiers import TierContractError, TierValueError
from tiers.storage.block_kind import BlockKind


def test_the_same_facts_are_one_kind() -> None:
    """The order in which a layout was written makes no difference; any fact and the size do."""
    kinds = [
        BlockKind(4096, {"model": "m", "rank": 0}),
        BlockKind(4096, {"model": "m", "rank": 1}),
        BlockKind(8192, {"model": "m", "rank": 0}),
        BlockKind(4096),
    ]
    assert len({kind.name for kind in kinds}) == len(kinds)
    assert BlockKind(4096, {"rank": 0, "model": "m"}).description == kinds[0].description


@pytest.mark.parametrize(
    "layout",
    [{"model": object()}, {"scale": float("nan")}, "model", ["model"], 1, ""],
    ids=lambda layout: type(layout).__name__,
)
def test_a_layout_is_plain_facts(layout: Any) -> None:
    """What JSON cannot say cannot be compared with what another process wrote, and is refused."""
    with pytest.raises(TierValueError, match="layout"):
        BlockKind(4096, layout)


def test_a_block_has_bytes() -> None:
    """A tier that only keeps books has no memory to store, and is refused."""
    with pytest.raises(TierValueError, match="0 bytes"):
        BlockKind(0)


def test_memory_of_another_size_is_refused() -> None:
    """A block that is too long or too short for its store is the caller's mistake, never a corrupt block."""
    with pytest.raises(TierContractError, match="5 bytes for a store of 4"):
        BlockKind(4).check(memoryview(bytes(5)))
