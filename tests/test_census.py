"""Which blocks are where, at any place of a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbus import census
from kvbus.census import Summed
from kvbus.log import LogReader
from kvbus.residency import Residency
from kvbus.testing import block, history
from tests.audit.histories import HISTORIES
from tests.list_log import ListLog, in_a_file, in_order

LONG = st.lists(HISTORIES.filter(bool), min_size=2, max_size=4).map(in_order)
Counts = dict[tuple[object, str, int | None], dict[int, int]]


def counted(log: LogReader, last: int | None) -> tuple[Counts, dict[object, bool]]:
    """Copies by source, medium, group and hash; and which of these are certain."""
    found = census.census(log, last=last)
    keys = [(one.source, one.place.medium, one.place.group) for one in found]
    copies = [dict(zip(one.hashes.tolist(), one.copies.tolist(), strict=True)) for one in found]
    certain: dict[object, bool] = dict(zip(keys, (one.certain for one in found), strict=True))
    return {key: held for key, held in zip(keys, copies, strict=True) if held}, certain


def slow(log: LogReader, last: int | None) -> Counts:
    residency = Residency()
    for at in log.entries(0, last) if last is None or last >= 0 else ():
        residency.fold(at)
    found: Counts = {}
    for source in residency.sources:
        for medium in residency.tallies:
            for group in (None, 0, 1):
                hashes = [block(name) for name in "abcd"]
                copies = {h: n for h in hashes if (n := residency.count(source, medium, group, h))}
                if copies:
                    found[source, medium, group] = copies
    return found


@settings(max_examples=4, deadline=None)
@given(text=LONG, places=st.lists(st.integers(-1, 20), min_size=3, max_size=3))
@example("g:+a | clear g:+b | restart g:+a | seq(5) g:-a | lost(2) c:+a | conflict(1) c:+b", [-1, 1, 2, 3])
@example("g:+a | c:+b ? | g:+a clear g:+b | restart .", [0, 1, 2])
@example("@p seq(3) g:+a c:+a | clear | @q g:+b | gap(1) g:-a c:+c | lost(1)", [0, 1, 2, 3])
@example("g:+a c:+a | lost(1) restart | c:+b", [0])
def test_both_ways_and_the_slow_fold_agree_everywhere(
    tmp_path_factory: pytest.TempPathFactory, text: str, places: list[int]
) -> None:
    """At any position, before the first and at the end: the same blocks, copies and certainty."""
    listed = ListLog(history(text))
    with in_a_file(list(listed.entries()), Path(tmp_path_factory.mktemp("census")) / "x.duckdb") as filed:
        for last in (None, *(place for place in places if place < listed.batch_count())):
            found, certain = counted(listed, last)
            assert found == slow(listed, last)
            quick, sure = counted(filed, last)
            assert quick == found
            assert {key: sure[key] for key in quick} == {key: certain[key] for key in quick}


def test_parts_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log too large to be sorted at once is counted in parts, to the same end."""
    names = ",".join(f"b{n}" for n in range(50))
    entries = history(f"g:+{names} | g:-b1,b2,b3 c:+{names} | g:+b2")
    with in_a_file(entries, tmp_path / "x.duckdb") as log:
        whole = counted(log, None)
        monkeypatch.setattr(census, "ROWS_MAX", 7)
        assert counted(log, None) == whole
    assert [len(held) for held in whole[0].values()] == [50, 48]


def test_it_is_summed_up() -> None:
    """Blocks are distinct hashes, copies are all of them; an empty tier is a zero."""
    found = map(Summed.of, census.census(ListLog(history("@e#2 g:+a,b g:+a | g/1:+a g/1:-a | lost(1) ."))))
    assert [(one.rank, one.medium, one.group, one.blocks, one.copies, one.certain) for one in found] == [
        (2, "GPU", None, 2, 3, False),
        (2, "GPU", 1, 0, 0, False),
    ]
