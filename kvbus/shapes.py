"""What events say alike, numbered: a *shape* is an event without its hashes, tokens and numbers.

A stream says the same few things over and over (kind, medium, block size, group, LoRA …). Looking up one
tuple an event is cheaper than laying out a dozen columns, here and in the database. Memory is bounded: see
``SHAPES_MAX``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Undecodable,
    Unrecognized,
    canonical_medium,
)

SHAPES_MAX: Final = 65_536
"""Shapes remembered at once. Beyond, all are forgotten and numbers run on: rows may repeat, never mix."""

INT64_MAX: Final = (1 << 63) - 1

SHAPES: Final = pa.schema(
    {
        "shape": pa.uint32(),
        "kind": pa.string(),
        "medium": pa.string(),
        "medium_raw": pa.string(),
        "block_size": pa.int64(),
        "group_idx": pa.int64(),
        "kv_cache_spec_kind": pa.string(),
        "kv_cache_spec_sliding_window": pa.int64(),
        "lora_id": pa.int64(),
        "lora_name": pa.string(),
        "locality": pa.string(),
        "ownership": pa.string(),
        "reason": pa.string(),
    }
)

# A key's length tells its event type: the getters of two types never make tuples of one length.
_STORED = attrgetter(
    "medium",
    "block_size",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "lora_id",
    "lora_name",
    "locality",
    "ownership",
)
_REMOVED = attrgetter("medium", "group_idx", "locality", "ownership", "reason")
KEYS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    BlockStored: _STORED,
    BlockRemoved: _REMOVED,
    AllBlocksCleared: lambda _: (),
    Unrecognized: lambda event: (event.tag, event.medium),
    Undecodable: lambda _: ("Undecodable",),
}


class Shapes(dict[tuple[Any, ...], int]):
    """What events say alike → its number. A key met for the first time gets the next number and a row."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.base = first
        self.rows: list[dict[str, Any]] = []
        self.stored = bytearray()
        self.odd = bytearray()

    def __missing__(self, key: tuple[Any, ...]) -> int:
        number = self[key] = len(self.stored)
        row = _shape_row(key)
        self.rows.append({"shape": self.base + number, **row})
        self.stored.append(len(key) == 9)
        self.odd.append(len(key) in (1, 2))
        return number


def _shape_row(key: tuple[Any, ...]) -> dict[str, Any]:
    match key:
        case (medium, size, group, spec, window, lora_id, lora_name, locality, ownership):
            row = {
                "kind": "BlockStored",
                "medium_raw": medium,
                "block_size": _int64(size),
                "group_idx": _int64(group),
                "kv_cache_spec_kind": spec,
                "kv_cache_spec_sliding_window": _int64(window),
                "lora_id": _int64(lora_id),
                "lora_name": lora_name,
                "locality": locality,
                "ownership": ownership,
            }
        case (medium, group, locality, ownership, reason):
            row = {
                "kind": "BlockRemoved",
                "medium_raw": medium,
                "group_idx": _int64(group),
                "locality": locality,
                "ownership": ownership,
                "reason": reason,
            }
        case (tag, medium):
            return {"kind": tag, "medium_raw": medium, "medium": medium and medium.upper()}
        case (kind,):
            return {"kind": kind}
        case _:
            return {"kind": "AllBlocksCleared"}
    return row | {"medium": canonical_medium(row["medium_raw"])}


def _int64(value: int | None) -> int | None:
    return value if value is not None and -INT64_MAX - 1 <= value <= INT64_MAX else None
