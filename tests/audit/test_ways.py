"""One implementation, whichever way a log comes: as columns of a file, or as entries, cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.audit import Audit, audit
from kvbus.chunks import Chunks
from kvbus.holdings import Holdings
from kvbus.log import PositionedEntry, SourceId
from kvbus.moves import Asks
from kvbus.residency import Residency
from kvbus.testing import history
from kvbus.verdict import Report
from sinks.duckdb import DuckDBLog, open_log
from tests.audit.histories import HISTORIES
from tests.test_residency import CAPTURES

Entries = Callable[[str], list[PositionedEntry]]
CAPACITIES = {"GPU": 60, "CPU": 30}


def in_pieces(entries: list[PositionedEntry], sizes: list[int]) -> Report:
    """The verdict where entries are judged as soon as so many are there, over and over."""
    auditor, at = Audit(capacities=CAPACITIES), 0
    while at < len(entries):
        for size in sizes:
            for entry in entries[at : at + size]:
                auditor.observe(entry)
            auditor.profiles()  # asks for what is judged so far
            auditor.check_integrity()
            at += size
    return auditor.verdict()


def from_file(entries: list[PositionedEntry], path: Path) -> Report:
    with DuckDBLog(path) as log:
        log.write([at.entry for at in entries])
    with open_log(path) as reader:
        auditor = Audit(capacities=CAPACITIES)
        auditor.observe_log(reader)
        return auditor.verdict()


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_is_judged_alike_streamed_and_from_its_file(
    name: str, capture_entries: Entries, tmp_path: Path
) -> None:
    """Every finding, count and witness is the same, from a file and in pieces of two sizes."""
    entries = capture_entries(name)
    whole = audit(entries, capacities=CAPACITIES)
    assert in_pieces(entries, [61, 1, 17]) == whole
    assert from_file(entries, tmp_path / "log.duckdb") == whole


@settings(max_examples=120, deadline=None)
@given(HISTORIES, st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_where_a_history_is_cut_does_not_matter(text: str, sizes: list[int]) -> None:
    """Any history in any pieces has one verdict."""
    entries = history(text)
    assert in_pieces(entries, sizes) == audit(entries, capacities=CAPACITIES)


def test_a_file_and_a_stream_of_everything_are_judged_alike(tmp_path: Path) -> None:
    """Marks, bad payloads, unknown tags, salts and second lives go one way too."""
    text = "@p lost(3,late_join) g:+a g:-b | ? g:+c | garbage | clear g:-a | ?Moved | conflict(3) ."
    entries = history(f"{text} | lost(2) . | restart g:+a | g:-c | @q#1 g:+p>a c:+a~ | clear | clear | clear")
    assert from_file(entries, tmp_path / "log.duckdb") == audit(entries, capacities=CAPACITIES)


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.integers(1, 6))
def test_the_counts_are_those_of_the_fold(text: str, size: int) -> None:
    """Blocks and copies of every source, medium and group are what ``Residency`` counts event by event."""
    entries, names = history(text), Chunks()
    residency, holdings = Residency(), Holdings(names)
    for first in range(0, len(entries), size):
        piece = entries[first : first + size]
        chunk = names.of_entries(piece)
        holdings.step(chunk, chunk.hash, Asks.none())
        holdings.check_integrity()
        for at in piece:
            residency.fold(at)
        counted: dict[tuple[SourceId, str], tuple[int, int]] = {}
        for (source, place), (blocks, copies) in holdings.resident().items():
            key = names.sources[source], names.places.names[place].medium
            known = counted.get(key, (0, 0))
            counted[key] = known[0] + blocks, known[1] + copies
        for who in residency.sources:
            for medium in residency.residents(source=who):
                blocks, copies = counted.pop((who, medium), (0, 0))
                assert blocks == residency.resident(medium, source=who)
                assert copies == sum(residency.copies(medium, source=who).values())
        assert {held for held in counted.values() if held != (0, 0)} == set()
