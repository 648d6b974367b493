"""``kvbus stat``: the counts of real captures are those counted without kvbus, in the form others rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbus.events import canonical_medium
from kvbus.log import PositionedEntry
from kvbus.summary import OTHER_TAGS, TAGS_MAX, Summarizer, Summary, summarize
from kvbus.testing import history
from tests.test_residency import CAPTURES

Entries = Callable[[str], list[PositionedEntry]]


def told(text: str) -> dict[str, Any]:
    return summarize(history(text)).as_object()


def by_medium(counted: dict[str, int], kind: str) -> dict[str, int]:
    """``{"BlockStored/CPU": 3, …}`` of an oracle, for one kind, by canonical medium."""
    pairs = ((*key.partition("/")[::2], n) for key, n in counted.items())
    return {canonical_medium(None if m == "None" else m): n for name, m, n in pairs if name == kind}


@pytest.mark.parametrize("name", CAPTURES)
def test_capture_is_counted_as_its_oracle_counted_it(
    name: str, captures: Path, capture_entries: Entries
) -> None:
    """Batches, events and blocks by kind and medium, residents, first and last number of each epoch."""
    entries = capture_entries(name)
    meta = json.loads((captures / f"{name}.meta.json").read_text())
    found = summarize(entries)
    assert found.batches == meta["data_messages"]
    assert found.undecoded == 0
    for kind in ("BlockStored", "BlockRemoved"):
        assert found.events[kind] == by_medium(meta["events_by_type_medium"], kind)
        assert found.blocks[kind] == by_medium(meta["block_hashes_by_type_medium"], kind)
    assert found.events["AllBlocksCleared"] == meta["events_by_type_medium"].get("AllBlocksCleared", 0)
    assert set(found.events) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    ends = meta["resident_at_end_distinct_hashes"]
    assert found.resident == {canonical_medium(None if m == "null" else m): n for m, n in ends.items()}
    (source,) = found.sources
    assert (source.topic, source.rank) == ("kv@local@tiny", 0)
    assert sum(epoch.batches for epoch in source.epochs) == meta["data_messages"]
    assert source.epochs[0].first_seq == meta["seq_first"]
    assert source.epochs[-1].last_seq == meta["seq_last"]
    assert len(source.epochs) == (2 if name == "vllm032_restart" else 1)
    assert [(x.first_seq, x.last_seq, x.reason) for x in source.losses] == (
        [(0, 216, "late_join")] if name == "vllm032_latejoin" else []
    )


def test_an_empty_log_has_every_key() -> None:
    """Nothing recorded yet is zeros, not missing keys."""
    found = told("")
    assert {k: found[k] for k in ("batches", "events", "blocks", "resident", "sources", "undecoded")} == {
        "batches": 0,
        "events": {"BlockStored": {}, "BlockRemoved": {}, "AllBlocksCleared": 0},
        "blocks": {"BlockStored": {}, "BlockRemoved": {}},
        "resident": {},
        "sources": [],
        "undecoded": 0,
    }


def test_the_form_others_rely_on() -> None:
    """Media upper case, absent is GPU, ranks null where payloads have none, losses and epochs by source."""
    found = told("@q#1 cpu:+a,b | lost(2,too_old) +a | @p clear CPU:+c | restart s:+x | late(7) g:-x")
    assert found["events"] == {
        "BlockStored": {"CPU": 2, "GPU": 1, "STORAGE": 1},
        "BlockRemoved": {"GPU": 1},
        "AllBlocksCleared": 1,
    }
    assert found["blocks"] == {
        "BlockStored": {"CPU": 3, "GPU": 1, "STORAGE": 1},
        "BlockRemoved": {"GPU": 1},
    }
    assert found["resident"] == {"CPU": 2, "GPU": 1, "STORAGE": 1}
    p, q = found["sources"]
    assert {k: q[k] for k in ("source", "topic", "rank")} == {"source": "q", "topic": "kv", "rank": 1}
    assert q["losses"] == [{"epoch": 0, "first_seq": 1, "last_seq": 2, "reason": "too_old"}]
    assert [(e["first_seq"], e["last_seq"], e["batches"]) for e in q["epochs"]] == [(0, 3, 2)]
    assert (p["rank"], p["strays"], p["resident"]) == (None, {"late": 1}, {"GPU": 0, "STORAGE": 1})
    assert [(e["epoch"], e["because"]) for e in p["epochs"]] == [(0, "first_sight"), (1, "seq")]


def test_what_cannot_be_read_is_counted_once() -> None:
    """Unreadable payloads and unreadable events are ``undecoded``; their siblings count."""
    found = told("garbage | ? g:+a ? | g:+b")
    assert (found["undecoded"], found["batches"], found["events"]["BlockStored"]) == (3, 3, {"GPU": 2})


def test_unknown_tags_are_events_under_their_own_name() -> None:
    """A tag is a number, or by medium as soon as one of its events names a medium."""
    events = told("?Moved ?Pinned | c:?Moved ?Pinned")["events"]
    assert (events["Moved"], events["Pinned"]) == ({"GPU": 1, "CPU": 1}, 2)


def test_invented_tags_do_not_pile_up() -> None:
    """Beyond a bound unknown tags are counted together."""
    events = told(" ".join(f"?T{n}" for n in range(TAGS_MAX + 9)))["events"]
    assert events[OTHER_TAGS] == 9
    assert len(events) == TAGS_MAX + 4


def test_asking_in_between_changes_nothing() -> None:
    """A summary may be asked at any time; those given out earlier do not change with the log."""
    log, summarizer = history("g:+a | c:+a | restart . | lost(1) late(0) g:+b | late(0) ."), Summarizer()
    given = []
    for at in log:
        summarizer.fold(at)
        given.append((summarizer.summary(), msgspec.json.encode(summarizer.summary())))
    assert all(msgspec.json.encode(summary) == text for summary, text in given)
    assert given[-1][0] == summarize(log)
    assert msgspec.json.decode(given[-1][1], type=Summary) == summarize(log)


def test_times_are_the_publishers() -> None:
    """First and last ``ts`` of the batches that could be read."""
    found = told(". | . | garbage")
    assert found["last_ts"] - found["first_ts"] == pytest.approx(0.001, abs=1e-6)
