"""Events as Arrow columns: one row an event, and one more of those that say something rare.

No Python object is made for an event: each column is one comprehension or one numpy call. What many events
say alike (kind, medium, block size, LoRA …) is looked up as a *shape* (``kvbus/shapes``), one small number an
event. What does not fit a column (a block size of 2**63, say) is null there; the payload keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvbus.events import BlockStored, Event, Undecodable, Unrecognized, token_count
from kvbus.shapes import KEYS, SHAPES, SHAPES_MAX, Shapes

Ints = npt.NDArray[Any]

EXTRAS: Final = pa.schema(
    {
        "position": pa.uint64(),
        "event": pa.uint32(),
        "session_id": pa.string(),
        "cache_salt": pa.string(),
        "extra": pa.string(),
        "error": pa.string(),
    }
)

_EXTRA = attrgetter("extra")


class EventColumns:
    """Lays events out as ``event_rows``, ``event_extras`` and ``event_shapes``. Owns the shapes' numbers, the
    first of which is ``shape``.
    """

    def __init__(self, shape: int) -> None:
        self._shapes = Shapes(shape)

    def build(self, events: list[Event], positions: Ints, indices: Ints) -> dict[str, pa.Table]:
        """The rows of ``events``, at least one: each with its batch's position and its index there."""
        shapes = self._shapes
        keys = KEYS
        numbers = np.array([shapes[keys[type(event)](event)] for event in events], np.uint32)
        stored_at = np.flatnonzero(np.frombuffer(bytes(shapes.stored), np.bool_)[numbers])
        odd = bool(np.frombuffer(bytes(shapes.odd), np.bool_)[numbers].any())
        stored: list[Any] = [events[at] for at in stored_at.tolist()]
        columns = {"position": positions, "event": indices, "shape": numbers + np.uint32(shapes.base)}
        tables = {"event_rows": pa.table(columns | _own_columns(events, stored, stored_at, odd=odd))}
        extras = _extra_rows(events, stored, stored_at, odd=odd)
        if extras is not None:
            at = extras.pop("at")
            columns = {"position": positions[at], "event": indices[at], **extras}
            tables["event_extras"] = pa.table(columns, EXTRAS)
        if shapes.rows:
            tables["event_shapes"] = pa.Table.from_pylist(shapes.rows, SHAPES)
            shapes.rows = []
        if len(shapes) > SHAPES_MAX:
            self._shapes = Shapes(shapes.base + len(shapes))
        return tables


def _own_columns(
    events: list[Event], stored: list[Any], stored_at: Ints, *, odd: bool
) -> dict[str, pa.Array]:
    """What differs from event to event; ``stored``: the stores among them; ``odd``: some are of no kind."""
    parents = [event.parent_block_hash for event in stored]
    counts = [token_count(event.token_ids) for event in stored]
    return {
        "hashes": _hashes(events),
        "parent_hash": _scattered(parents, stored_at, len(events), np.uint64),
        "token_count": _scattered(counts, stored_at, len(events), np.uint32),
        "emit_seq": _emit_seqs(events, odd=odd),
    }


def _hashes(events: list[Event]) -> pa.ListArray:
    try:
        lists = [event.block_hashes for event in events]  # type: ignore[union-attr]
    except AttributeError:  # a clear, or an event nobody knows
        lists = [getattr(event, "block_hashes", []) for event in events]
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, lists), np.int32, len(lists)), out=offsets[1:])
    flat = np.fromiter(chain.from_iterable(lists), np.uint64, int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _scattered(values: Sequence[int | None], at: Ints, length: int, dtype: type[np.generic]) -> pa.Array:
    """An array of ``length`` that is null but where ``at`` puts a value."""
    column = np.zeros(length, dtype)
    missing = np.ones(length, np.bool_)
    if None in values:
        have = np.array([value is not None for value in values], np.bool_)
        at, values = at[have], [value for value in values if value is not None]
    column[at] = np.array(values, dtype)
    missing[at] = False
    return pa.array(column, mask=missing)


def _emit_seqs(events: list[Event], *, odd: bool) -> pa.Array:
    found: list[int | None] = (
        [getattr(event, "emit_seq", None) for event in events]
        if odd
        else [event.emit_seq for event in events]  # type: ignore[union-attr]
    )
    if found.count(None) == len(found):
        return pa.nulls(len(found), pa.uint64())
    return pa.array([None if seq is None or seq < 0 else seq for seq in found], pa.uint64())


def _extra_rows(
    events: list[Event], stored: list[BlockStored], stored_at: Ints, *, odd: bool
) -> dict[str, Any] | None:
    """Columns of the few events that say something rare, and where (``at``) they are among ``events``."""
    rows: dict[int, dict[str, str | None]] = {}
    for name in ("session_id", "cache_salt"):
        values = [getattr(event, name) for event in stored]
        if values.count(None) < len(values):
            for at, value in zip(stored_at.tolist(), values, strict=True):
                if value is not None:
                    rows.setdefault(at, {})[name] = value
    if odd or any(map(_EXTRA, events)):
        for at, event in enumerate(events):
            said = _said(event)
            if said:
                rows.setdefault(at, {}).update(said)
    if not rows:
        return None
    order = sorted(rows)
    columns: dict[str, Any] = {"at": np.array(order, np.int64)}
    for name in ("session_id", "cache_salt", "extra", "error"):
        columns[name] = pa.array([rows[at].get(name) for at in order], pa.string())
    return columns


def _said(event: Event) -> dict[str, str | None]:
    match event:
        case Undecodable(why=why):
            return {"error": why}
        case Unrecognized():
            return {"extra": _json(event.content)}
        case _:
            return {"extra": _json(event.extra)} if event.extra else {}


def _json(value: dict[Any, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode({str(key): repr(item) for key, item in value.items()}).decode()
