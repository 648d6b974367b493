"""What rules found: counted whole, kept in part, and told as the stream's profile has it."""

from __future__ import annotations

import pytest

from kvbus.findings import Findings, Group
from kvbus.verdict import Level


def violation(_: Group) -> Level:
    return "violation"


def information(_: Group) -> Level:
    return "information"


def counts(findings: Findings) -> int:
    return sum(count for _, count in findings.totals())


def test_violations_are_listed_for_themselves_and_the_rest_by_kind() -> None:
    """Of a group at most ``limit`` findings keep their words; all are counted; a copy is apart."""
    findings, group = Findings(2), Group("refcount.below", 0)
    for n, words in enumerate(["first", "second", "third"]):
        findings.add(group, (n, 0), words, [], count=n + 1)
    twin = findings.copy()
    findings.add(group, (9, 0), "one too many", [])
    told = findings.listed(violation, "refcount")["violation"]
    assert [(f.because, f.count) for _, f in told] == [("first", 1), ("second", 2)]
    told = findings.listed(information, "refcount")["information"]
    assert [(f.because, f.count) for _, f in told] == [("first", 7)]
    assert (counts(findings), counts(twin)) == (7, 6)


def test_equal_findings_in_a_row_are_one() -> None:
    """What says the same of the same events is told once, with a count."""
    findings, group = Findings(), Group("chain.twice", 0)
    findings.add(group, (0, 0), "twice", [])
    findings.add(group, (0, 0), "twice", [])
    ((_, only),) = findings.listed(violation, "chain")["violation"]
    assert (only.because, only.count) == ("twice", 2)


def test_a_flood_costs_a_number() -> None:
    """A million findings describe no more of themselves than are kept."""
    findings, described = Findings(3), list[int]()

    def describe(n: int) -> tuple[tuple[int, int], tuple[str, list[object]]]:
        described.append(n)
        return (n, 0), (f"finding {n}", [])

    findings.flood(Group("refcount.below", 0), 1_000_000, describe)  # type: ignore[arg-type]
    assert counts(findings) == 1_000_000
    assert described == [0, 1, 2]


def test_the_groups_found_first_in_the_log_keep_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever rule looked first, and whoever has which number: the bound keeps what the log has first."""
    monkeypatch.setattr("kvbus.findings.GROUPS_MAX", 2)
    findings = Findings()
    for position, source in [(5, 0), (3, 1), (9, 2), (4, 3), (6, 0), (7, 1)]:
        findings.add(Group("refcount.below", source), (position, 0), f"at {position}", [])
    told = findings.listed(violation, "refcount")["violation"]
    assert [order for order, _ in told] == [(3, 0), (4, 0), (7, 0)]
    assert counts(findings) == 6


def test_what_a_profile_switches_off_is_not_told() -> None:
    """A finding of level off is in no list."""
    findings = Findings()
    findings.add(Group("parent.absent", 0), (0, 0), "nothing to see", [])
    listed = findings.listed(lambda _: "off", "parent")
    assert [found for level in listed.values() for found in level] == []
