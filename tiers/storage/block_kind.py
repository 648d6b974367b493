"""Which blocks can stand in for each other: those of one size and one layout. Each kind is kept apart.

A hash says what tokens a block belongs to, not how they were laid out: two models, two data types or two
tensor-parallel ranks give the same hash to bytes that must never be mixed up. Nothing here reads an engine's
configuration; whoever makes a tier says what has to agree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from tiers.errors import TierContractError, TierValueError
from tiers.storage.block_store import HEADER_BYTES, VERSION

NAME_DIGITS: Final = 12


class BlockKind:
    """``block_bytes``: of each block; ``layout``: whatever else must agree, to be written as JSON: model,
    data type, rank, tokens a block, hash seed.

    ``description``: both and the version of the stored form, as JSON, the same text for the same facts.
    ``name``: its first 12 hexadecimal digits of SHA-256, as vLLM's fs tier takes them. ``stored_bytes``: of a
    block with its header. Raises ``TierValueError`` unless there are bytes, and a layout JSON can say.
    """

    def __init__(self, block_bytes: int, layout: Mapping[str, object] | None = None) -> None:
        if block_bytes <= 0:
            raise TierValueError(
                f"blocks of {block_bytes} bytes",
                next_step="Give the primary tier's memory: a row is a block.",
            )
        if not isinstance(layout, Mapping | None):
            raise TierValueError(f"layout {layout!r}", next_step="Give a mapping of names to facts.")
        self.block_bytes = block_bytes
        self.stored_bytes = HEADER_BYTES + block_bytes
        facts = {"format": VERSION, "block_bytes": block_bytes, "layout": dict(layout or {})}
        try:
            self.description = json.dumps(facts, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise TierValueError(
                f"the layout is no JSON: {error}", next_step="Give text, numbers, lists and mappings."
            ) from error
        self.name = hashlib.sha256(self.description).hexdigest()[:NAME_DIGITS]

    def check(self, memory: memoryview) -> None:
        """``TierContractError`` unless this is memory for a block of this kind."""
        if memory.nbytes != self.block_bytes:
            raise TierContractError(
                f"a block of {memory.nbytes} bytes for a store of {self.block_bytes}",
                next_step="Make a store for each size of blocks.",
            )


def row_bytes(primary_kv_view: memoryview) -> int:
    """Bytes of a block in the primary's memory, shape (slots, bytes a slot); 0 if it has no memory."""
    return primary_kv_view.strides[0] if primary_kv_view.nbytes and primary_kv_view.strides else 0
