"""No log, however odd, makes the audit fail or forget its bounds: numbers, epochs and groups at random."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings

from kvbus.audit import Audit
from kvbus.chunks import Chunks
from kvbus.holdings import TAKEN_MAX, Holdings
from kvbus.log import Entry, PositionedEntry
from kvbus.moves import Asks
from kvbus.testing import history
from sinks.duckdb import DuckDBLog, open_log
from tests.logs import everything, histories, numbered


@settings(max_examples=100, deadline=None)
@given(histories())
def test_any_entries_are_judged(entries: list[Entry]) -> None:
    """Epochs that come back, numbers beyond reason, any bytes and media: one verdict, however cut."""
    whole, pieces = Audit(capacities={"GPU": 1}), Audit(capacities={"GPU": 1})
    for position, entry in numbered(entries):
        whole.observe(PositionedEntry(position, entry))
        pieces.observe(PositionedEntry(position, entry))
        pieces.profiles()
        pieces.check_integrity()
    assert whole.verdict() == pieces.verdict()


def test_a_log_of_everything_is_judged_alike_from_its_file(tmp_path: Path) -> None:
    """One of each thing a log can hold, bytes for topics and the largest hashes included."""
    with DuckDBLog(tmp_path / "log.duckdb") as log:
        log.write(everything())
    from_file, from_list = Audit(), Audit()
    with open_log(tmp_path / "log.duckdb") as reader:
        from_file.observe_log(reader)
    for position, entry in numbered(everything()):
        from_list.observe(PositionedEntry(position, entry))
    assert from_file.verdict() == from_list.verdict()


def test_what_is_remembered_is_bounded_by_what_is_resident() -> None:
    """After many times more blocks than are remembered came and went, the table holds the latest only."""
    names = Chunks()
    holdings = Holdings(names)
    for n in range(12):
        blocks = ",".join(f"n{n}x{m}" for m in range(8192))
        chunk = names.of_entries(history(f"g:+{blocks} | g:-{blocks} | g:+stays"))
        holdings.step(chunk, chunk.hash, Asks.none())
        holdings.check_integrity()
    assert holdings.rows <= TAKEN_MAX + 2 * 8192 + 1


def test_made_up_groups_are_judged() -> None:
    """Thousands of groups of one source cost time, not an error."""
    auditor = Audit()
    for at in history(" | ".join(f"g/{n}:+a g/{n}:-a g/{n}:-a" for n in range(3000))):
        auditor.observe(at)
    (refcount,) = [rule for rule in auditor.verdict().rules if rule.rule == "refcount"]
    assert refcount.violation_count == 3000
