"""Columns: the rows of a batch hold against a slow and simple reading of the same events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from kvbus.columns import Columns
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_medium,
    token_list,
)
from kvbus.log import Entry, Received
from tests.logs import A, B, everything, histories, of_capture, of_payload, received, removed, stored


def built(entries: list[Entry], *, at_once: int = 7) -> dict[str, list[dict[str, Any]]]:
    """All rows by table, written a few entries at a time."""
    maker = Columns()
    rows: dict[str, list[dict[str, Any]]] = {}
    for first in range(0, len(entries), at_once):
        for name, table in maker.build(entries[first : first + at_once]).items():
            rows.setdefault(name, []).extend(table.to_pylist())
    return rows


def joined(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Event rows with their shapes and extras, as the ``events`` view has them."""
    shapes = {row["shape"]: row for row in rows.get("event_shapes", [])}
    assert len(shapes) == len(rows.get("event_shapes", []))
    extras = {(row["position"], row["event"]): row for row in rows.get("event_extras", [])}
    return [
        shapes[row["shape"]] | extras.get((row["position"], row["event"]), {}) | row
        for row in rows.get("event_rows", [])
    ]


def fits(value: int | None) -> int | None:
    return value if value is not None and -(2**63) <= value < 2**63 else None


def plainly(event: Event) -> dict[str, Any]:
    """What the row of an event must say, worked out one field at a time."""
    if isinstance(event, Undecodable):
        return {"kind": "Undecodable", "medium": None, "hashes": [], "error": event.why}
    if isinstance(event, Unrecognized):
        return {"kind": event.tag, "hashes": []}
    row: dict[str, Any] = {
        "kind": type(event).__name__,
        "emit_seq": event.emit_seq,
        "hashes": [],
        "medium": None,
    }
    if event.emit_seq is not None and event.emit_seq < 0:
        row["emit_seq"] = None
    if isinstance(event, AllBlocksCleared):
        return row
    row |= {
        "hashes": event.block_hashes,
        "medium": canonical_medium(event.medium),
        "medium_raw": event.medium,
        "group_idx": fits(event.group_idx),
        "locality": event.locality,
        "ownership": event.ownership,
    }
    if isinstance(event, BlockRemoved):
        return row | {"reason": event.reason, "token_count": None, "parent_hash": None}
    return row | {
        "parent_hash": event.parent_block_hash,
        "token_count": len(token_list(event.token_ids)),
        "block_size": fits(event.block_size),
        "kv_cache_spec_kind": event.kv_cache_spec_kind,
        "lora_name": event.lora_name,
        "lora_id": fits(event.lora_id),
    }


def check(entries: list[Entry]) -> None:
    rows = built(entries)
    batches = [entry for entry in entries if isinstance(entry, Received)]
    assert [row["position"] for row in rows.get("batches", [])] == list(range(len(batches)))
    assert [row["payload"] for row in rows.get("batches", [])] == [entry.payload for entry in batches]
    found = joined(rows)
    at = 0
    for position, entry in enumerate(batches):
        for index, event in enumerate(entry.batch.events if isinstance(entry.batch, EventBatch) else ()):
            row = found[at]
            assert (row["position"], row["event"]) == (position, index)
            wanted = plainly(event)
            assert {name: row.get(name) for name in wanted} == wanted
            if isinstance(event, BlockStored):
                assert (row.get("session_id"), row.get("cache_salt")) == (event.session_id, event.cache_salt)
            at += 1
    assert at == len(found)


@pytest.mark.parametrize(
    "name", ["vllm011_gpu_int", "vllm032_gpu_int", "vllm032_restart", "sglang0523_radix"]
)
def test_rows_of_real_streams(captures: Path, name: str) -> None:
    """Every event of a real stream is a row that says what the event says."""
    check(list(of_capture(captures / f"{name}.frames")))


def test_rows_of_one_of_everything() -> None:
    """Batches of every kind, losses, strays and epochs each have their rows."""
    check(everything())
    rows = built(everything())
    assert {name: len(found) for name, found in rows.items()} == {
        "sources": 3,
        "epochs": 3,
        "capacities": 2,
        "losses": 3,
        "strays": 2,
        "batches": 8,
        "event_rows": 10,
        "event_shapes": len(rows["event_shapes"]),
        "event_extras": 2,
    }
    markers = [row["marker"] for name in ("epochs", "losses", "strays") for row in rows[name]]
    assert sorted(markers) == list(range(8))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_rows_of_any_history(history: list[Entry]) -> None:
    """Rows of any history say what its events say."""
    check(history)


def test_what_events_say_alike_is_kept_once() -> None:
    """A thousand removals on one medium share a shape; the second build brings no new one."""
    maker = Columns()
    first = maker.build([received(A, seq, removed(seq), removed(seq + 1)) for seq in range(500)])
    assert first["event_shapes"].num_rows == 1
    again = maker.build([received(B, seq, removed(seq)) for seq in range(500)])
    assert "event_shapes" not in again
    assert again["batches"]["position"][0].as_py() == 500


def test_shapes_without_end_are_forgotten_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of ever new media keeps a bounded memory, and every row still finds its own shape."""
    monkeypatch.setattr("kvbus.event_columns.SHAPES_MAX", 10)
    check([received(A, seq, removed(1, medium=f"m{seq % 37}")) for seq in range(200)])


def test_numbers_too_large_for_a_column_are_null() -> None:
    """A block size or group beyond 64 signed bits is null in its row, and the rest of the batch is there."""
    event = BlockStored([1], block_size=2**64 - 1, group_idx=2**63, lora_id=7)
    entry = msgspec.structs.replace(received(A, 0), batch=EventBatch(1.0, [event, removed(2)]))
    (row,) = joined(built([entry]))[:1]
    assert (row["block_size"], row["group_idx"], row["lora_id"], row["hashes"]) == (None, None, 7, [1])


def test_unknown_events_keep_their_content() -> None:
    """An event under an unknown tag has the tag as kind, its medium, and its keys as JSON in ``extra``."""
    payload = bytes.fromhex("93cb3ff80000000000009183a474797065a54f74686572a66d656469756da3637075a16101c0")
    (row,) = joined(built([of_payload(A, 0, payload)]))
    assert (row["kind"], row["medium"], row["medium_raw"]) == ("Other", "CPU", "cpu")
    assert json.loads(row["extra"]) == {"type": "Other", "medium": "cpu", "a": 1}


def test_an_unreadable_payload_says_why() -> None:
    """A batch nobody can read is a row with its bytes, no timestamp, no events, and the reason."""
    rows = built([of_payload(A, 0, b"\xc1"), received(A, 1, stored(1))])
    bad, good = rows["batches"]
    assert (bad["ts"], bad["event_count"], bad["payload"]) == (None, 0, b"\xc1")
    assert bad["error"]
    assert good["error"] is None


def test_columns_of_two_builds_fit_together() -> None:
    """Tables of separate builds have one schema, whatever is null in them, so that they can be one insert."""
    maker = Columns()
    parts = [maker.build([entry]) for entry in everything()]
    for name in {name for part in parts for name in part}:
        assert pa.concat_tables([part[name] for part in parts if name in part]).num_rows > 0
