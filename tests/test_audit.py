"""The audit as a whole: real histories come out clean, and the answer has the form that others rely on."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvbus.audit import Audit, audit
from kvbus.log import PositionedEntry
from kvbus.rules import RULES
from kvbus.rules.table import UnknownRuleError
from kvbus.testing import history
from kvbus.verdict import Report, RuleVerdict, doubted, overall
from tests.test_residency import CAPTURES

Entries = Callable[[str], list[PositionedEntry]]


def rule_of(report: Report, name: str) -> RuleVerdict:
    (found,) = [rule for rule in report.rules if rule.rule == name]
    return found


@pytest.mark.parametrize("name", CAPTURES)
def test_real_histories_come_out_clean(name: str, capture_entries: Entries) -> None:
    """Every capture HOLDS under every rule, but the one whose subscriber came late: UNKNOWN."""
    report = audit(capture_entries(name))
    late = name == "vllm032_latejoin"
    unknown = {"sequence", "beginning", "refcount", "parent"} if late else set()
    assert {rule.rule for rule in report.rules if rule.verdict == "UNKNOWN"} == unknown
    assert {rule.rule for rule in report.rules if rule.verdict == "HOLDS"} == RULES.keys() - unknown
    assert report.verdict == ("UNKNOWN" if late else "HOLDS")
    assert all(rule.violations == [] for rule in report.rules)
    assert [f.because for rule in report.rules for f in rule.information if f.level == "warning"] == []


def test_a_late_join_counts_what_it_cannot_know(capture_entries: Entries) -> None:
    """Of the late capture 103 removals have no store in view, as its own oracle counted."""
    refcount = rule_of(audit(capture_entries("vllm032_latejoin")), "refcount")
    (unplaced,) = [f for f in refcount.information if "may be in what was missed" in f.because]
    assert unplaced.count == 103


def test_the_oddities_of_a_hybrid_model_are_counted(capture_entries: Entries) -> None:
    """Stores without blocks (314) and token lists that do not fit their blocks (493 with those) are told."""
    dense = rule_of(audit(capture_entries("vllm032_hybrid_swa")), "dense")
    counts = {f.because.removeprefix("GPU: "): f.count for f in dense.information}
    assert counts["stores of no blocks (masked or null blocks)"] == 314
    assert counts["token lists longer than their blocks (some were skipped)"] == 493 - 314


def test_the_report_has_the_form_others_rely_on() -> None:
    """``kvbus check --json``: verdict, rules, violations with sentence and witnesses, information."""
    plain = audit(history("@p#2 g:+a | g:-a | g:-a", topic=b"kv@x\xff")).as_object()
    assert plain["verdict"] == "VIOLATED"
    rules = {r["rule"]: r for r in plain["rules"]}  # type: ignore[attr-defined]
    assert list(rules) == list(RULES)
    assert [name for name, r in rules.items() if r["verdict"] == "VIOLATED"] == ["refcount"]
    (violation,) = rules["refcount"]["violations"]
    assert violation["level"] == "violation"
    assert violation["because"].startswith("p rank 2 epoch 0: block ")
    where = {"source": "p", "epoch": 0, "topic": r"kv@x\xff", "rank": 2, "instance": 0, "event": 0}
    assert violation["witnesses"] == [where | {"seq": 1, "position": 1}, where | {"seq": 2, "position": 2}]
    assert isinstance(rules["refcount"]["information"], list)
    assert msgspec.json.decode(json.dumps(plain), type=Report).as_object() == plain


def test_the_worst_answer_wins() -> None:
    """VIOLATED before UNKNOWN before HOLDS; nothing asked, nothing wrong."""
    assert overall([]) == "HOLDS"
    assert overall(["HOLDS", "UNKNOWN"]) == "UNKNOWN"
    assert overall(["UNKNOWN", "VIOLATED", "HOLDS"]) == "VIOLATED"
    mixed = audit(history("lost(3,late_join) g:+a | clear | g:-a"), ["sequence", "refcount"])
    assert ([rule.verdict for rule in mixed.rules], mixed.verdict) == (["UNKNOWN", "VIOLATED"], "VIOLATED")


@pytest.mark.parametrize("log", ["", "lost(3,late_join)"])
def test_what_was_not_seen_holds_nothing(log: str) -> None:
    """Before the first batch, be something declared lost or not, every rule is UNKNOWN and says why."""
    report = audit(history(log))
    assert report.verdict == "UNKNOWN"
    assert {rule.verdict for rule in report.rules} == {"UNKNOWN"}
    assert all("no batch was seen" in rule.information[0].because for rule in report.rules)
    assert audit(history("."), ["refcount"]).verdict == "HOLDS"


def test_doubt_leaves_proof_alone() -> None:
    """Where something was not heard, what held is UNKNOWN for that reason; a violation stays one."""
    report = audit(history("g:-a"), ["sequence", "refcount"])
    found = doubted(report, ["q was not heard"])
    assert found.verdict == "VIOLATED"
    assert [rule.verdict for rule in found.rules] == ["UNKNOWN", "VIOLATED"]
    assert [finding.because for finding in found.rules[0].information] == ["q was not heard"]
    assert found.rules[1] == report.rules[1]
    assert doubted(report, []) == report


def test_rules_are_chosen_by_name() -> None:
    """Only the rules asked for answer; a name that is none is refused, with those that are."""
    assert [rule.rule for rule in audit(history("g:-a"), ["sequence"]).rules] == ["sequence"]
    with pytest.raises(UnknownRuleError, match=r"'nonsense'.*sequence, epoch"):
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


def test_the_examples_in_the_docs_are_real() -> None:
    """The outputs that docs/rules.md shows are what the rules answer to such histories, and its code runs."""
    text = (Path(__file__).resolve().parent.parent / "docs" / "rules.md").read_text()
    sequence, refcount = (json.loads(part.partition("```")[0]) for part in text.split("```json\n")[1:])
    skipped = " | ".join(["@tcp://127.0.0.1:5557#0 .", *["."] * 99, "lost(20,absent_from_replay) ."])
    answers = audit(history(skipped, topic=b"kv@local@tiny"), ["sequence"]).as_object()["rules"]
    assert answers == [sequence]
    answers = audit(history("c:+a | c:-a | c:+b | c:-a"), ["refcount"]).as_object()["rules"]
    assert answers == [refcount]
    (code,) = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    exec(compile(code, "docs/rules.md", "exec"), {"print": lambda told: told})
