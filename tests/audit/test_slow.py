"""On any history the rules find what a slow, obviously right reading of them finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.audit import Audit
from kvbus.log import PositionedEntry
from kvbus.testing import history
from tests.audit.histories import HISTORIES
from tests.audit.slow import JUDGED, slow_counts

Entries = Callable[[str], list[PositionedEntry]]
CAPACITIES = st.sampled_from([{"GPU": 2, "CPU": 1}, {"GPU": 1}, {"CPU": 2, "STORAGE": 1}])


def counts(entries: list[PositionedEntry], capacities: dict[str, int]) -> dict[str, int]:
    auditor = Audit(capacities=capacities)
    for at in entries:
        auditor.observe(at)
    return {kind: n for kind, n in auditor.counts().items() if kind in JUDGED}


@settings(max_examples=400, deadline=None)
@given(HISTORIES, CAPACITIES)
def test_findings_are_those_of_the_slow_reading(text: str, capacities: dict[str, int]) -> None:
    """Every kind of finding is counted as often, whatever engines, holes and second lives there are."""
    entries = history(text)
    assert counts(entries, capacities) == slow_counts(entries, capacities)


@pytest.mark.parametrize(
    "name", ["vllm032_gpu_int", "vllm011_gpu_int", "sglang0523_radix", "vllm032_restart"]
)
def test_findings_in_real_streams_are_those_of_the_slow_reading(name: str, capture_entries: Entries) -> None:
    """The same on what engines said."""
    entries = capture_entries(name)
    for capacities in ({}, {"GPU": 40, "CPU_PINNED": 9}):
        assert counts(entries, capacities) == slow_counts(entries, capacities)
