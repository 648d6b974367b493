"""The audit as a whole: real histories come out clean, and the answer has the form that others rely on."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvbus.audit import Audit, UnknownRuleError, audit
from kvbus.log import PositionedEntry
from kvbus.testing import history
from kvbus.verdict import Findings, Report, overall
from tests.test_residency import CAPTURES

Entries = Callable[[str], list[PositionedEntry]]


@pytest.mark.parametrize("name", CAPTURES)
def test_real_histories_come_out_clean(name: str, capture_entries: Entries) -> None:
    """Every capture HOLDS under both rules, but the one whose subscriber came late: UNKNOWN."""
    report = audit(capture_entries(name))
    expected = "UNKNOWN" if name == "vllm032_latejoin" else "HOLDS"
    assert {rule.rule: rule.verdict for rule in report.rules} == {"sequence": expected, "refcount": expected}
    assert report.verdict == expected
    assert all(rule.violations == [] for rule in report.rules)


def test_a_late_join_counts_what_it_cannot_know(capture_entries: Entries) -> None:
    """Of the late capture 103 removals have no store in view, as its own oracle counted."""
    refcount = audit(capture_entries("vllm032_latejoin")).rules[1]
    (unplaced,) = [f for f in refcount.information if "may be in what was missed" in f.because]
    assert unplaced.count == 103


def test_the_oddities_of_a_hybrid_model_are_counted(capture_entries: Entries) -> None:
    """Stores without blocks (314) and token lists that do not fit their blocks (493 with those) are told."""
    refcount = audit(capture_entries("vllm032_hybrid_swa")).rules[1]
    counts = {f.because.removeprefix("GPU: "): f.count for f in refcount.information}
    assert counts["stores of no blocks (masked or null blocks)"] == 314
    assert counts["token lists longer than their blocks (some were skipped)"] == 493 - 314


def test_the_report_has_the_form_others_rely_on() -> None:
    """``kvbus check --json``: verdict, rules, violations with sentence and witnesses, information."""
    plain = audit(history("@p#2 g:+a | g:-a | g:-a", topic=b"kv@x\xff")).as_object()
    assert plain["verdict"] == "VIOLATED"
    assert [(r["rule"], r["verdict"]) for r in plain["rules"]] == [  # type: ignore[attr-defined]
        ("sequence", "HOLDS"),
        ("refcount", "VIOLATED"),
    ]
    (violation,) = plain["rules"][1]["violations"]  # type: ignore[index]
    assert violation["because"].startswith("p rank 2 epoch 0: block ")
    where = {"source": "p", "epoch": 0, "topic": r"kv@x\xff", "rank": 2, "instance": 0, "event": 0}
    assert violation["witnesses"] == [where | {"seq": 1, "position": 1}, where | {"seq": 2, "position": 2}]
    assert isinstance(plain["rules"][1]["information"], list)  # type: ignore[index]
    assert msgspec.json.decode(json.dumps(plain), type=Report).as_object() == plain


def test_the_worst_answer_wins() -> None:
    """VIOLATED before UNKNOWN before HOLDS; nothing asked, nothing wrong."""
    assert overall([]) == "HOLDS"
    assert overall(["HOLDS", "UNKNOWN"]) == "UNKNOWN"
    assert overall(["UNKNOWN", "VIOLATED", "HOLDS"]) == "VIOLATED"
    mixed = audit(history("lost(3,late_join) g:+a | clear | g:-a"))
    assert ([rule.verdict for rule in mixed.rules], mixed.verdict) == (["UNKNOWN", "VIOLATED"], "VIOLATED")


def test_rules_are_chosen_by_name() -> None:
    """Only the rules asked for answer; a name that is none is refused, with those that are."""
    assert [rule.rule for rule in audit(history("g:-a"), ["sequence"]).rules] == ["sequence"]
    with pytest.raises(UnknownRuleError, match=r"'nonsense'.*sequence, refcount"):
        Audit(["sequence", "nonsense"])


def test_asking_in_between_changes_nothing() -> None:
    """An audit that is asked after every entry ends as one that is asked once."""
    asked, log = (
        Audit(),
        history("g:+a | lost(2) g:-b | garbage | clear | g:-a | restart g:-a | conflict(0) . | lost(1)"),
    )
    for at in log:
        asked.observe(at)
        assert asked.verdict() == asked.verdict()
    assert asked.verdict() == audit(log)


def test_memory_does_not_grow_with_the_log() -> None:
    """Ten times the history, the same blocks: the audit keeps no more than before."""

    def kept(rounds: int) -> int:
        log = history(" | ".join(["g:+a,b,c c:+a | g:-a,b,c c:-a"] * rounds))
        tracemalloc.start()
        auditor = Audit()
        for at in log:
            auditor.observe(at)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert auditor.verdict().verdict == "HOLDS"
        return size

    kept(100)
    assert kept(5000) < kept(500) + 65_536


def test_findings_are_grouped_bounded_and_counted() -> None:
    """The first of a kind keeps its words; kinds beyond the limit are only counted; a copy is apart."""
    findings = Findings(2)
    findings.add("x", "first x", [])
    findings.add("x", "second x", [], count=4)
    findings.add(None, "alone", [])
    twin = findings.copy()
    findings.add(None, "one too many", [])
    findings.add("x", "third x", [])
    assert [(f.because, f.count) for f in findings.listed()] == [("first x", 6), ("alone", 1)]
    assert findings.total == 8
    assert [(f.because, f.count) for f in twin.listed()] == [("first x", 5), ("alone", 1)]
    assert twin.total == 6


def test_the_examples_in_the_docs_are_real() -> None:
    """The outputs that docs/rules.md shows are what the rules answer to such histories, and its code runs."""
    text = (Path(__file__).resolve().parent.parent / "docs" / "rules.md").read_text()
    sequence, refcount = (json.loads(part.partition("```")[0]) for part in text.split("```json\n")[1:])
    skipped = " | ".join(["@tcp://127.0.0.1:5557#0 .", *["."] * 99, "lost(20,absent_from_replay) ."])
    answers = audit(history(skipped, topic=b"kv@local@tiny")).as_object()["rules"]
    assert answers[0] == sequence  # type: ignore[index]
    answers = audit(history("c:+a | c:-a | c:+b | c:-a")).as_object()["rules"]
    assert answers[1] == refcount  # type: ignore[index]
    (code,) = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    exec(compile(code, "docs/rules.md", "exec"), {"print": lambda told: told})
