"""A checker that finds nothing proves nothing: real histories, spoilt, are caught at the right events."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kvbus.audit import Audit, audit
from kvbus.log import PositionedEntry
from kvbus.rules import RULES
from kvbus.verdict import Finding, Report
from tests.audit.mutants import MUTATORS, UNIQUE_MUTATORS, Log, Mutant

Entries = Callable[[str], list[PositionedEntry]]
Mutator = Callable[[Log, Random], Mutant]
SEEDS = range(3)
CASES = [
    *((mutate, capture) for mutate in MUTATORS for capture in ("vllm032_gpu_int", "vllm011_gpu_int")),
    *((mutate, "sglang0523_radix") for mutate in UNIQUE_MUTATORS),
]


def report_of(mutant: Mutant) -> Report:
    auditor = Audit(capacities=mutant.settings.capacities, engines=mutant.settings.engines)
    for at in mutant.log:
        auditor.observe(at)
    return auditor.verdict()


def findings(report: Report, name: str) -> list[Finding]:
    (rule,) = [rule for rule in report.rules if rule.rule == name]
    return [*rule.violations, *rule.information]


@pytest.mark.parametrize(
    ("mutate", "capture"), CASES, ids=[f"{mutate.__name__}-{capture}" for mutate, capture in CASES]
)
def test_mutant_is_caught_at_the_right_events(
    mutate: Mutator, capture: str, capture_entries: Entries
) -> None:
    """The rule that must see it tells a finding that names exactly the events that prove it."""
    log = capture_entries(capture)
    clean = audit(log)
    assert clean.verdict == "HOLDS"
    for seed in SEEDS:
        mutant = mutate(log, Random(f"{mutate.__name__} {seed}"))
        told = findings(report_of(mutant), mutant.rule)
        named = [[(w.seq, w.event) for w in finding.witnesses] for finding in told]
        assert mutant.witnesses in named, (seed, mutant.witnesses, named)
        before = [finding.witnesses for finding in findings(clean, mutant.rule)]
        assert mutant.witnesses not in [[(w.seq, w.event) for w in ws] for ws in before], seed
        assert mutant.many or sum(finding.level == "violation" for finding in told) <= 3, seed


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_mutant(rule: str, capture_entries: Entries) -> None:
    """No rule is in the table that nothing here can break."""
    log, unique = capture_entries("vllm032_gpu_int"), capture_entries("sglang0523_radix")
    broken = {mutate(log, Random(0)).rule for mutate in MUTATORS}
    assert rule in broken | {mutate(unique, Random(0)).rule for mutate in UNIQUE_MUTATORS}


def test_a_dropped_batch_makes_counts_uncertain_not_wrong(capture_entries: Entries) -> None:
    """What a hole leaves unexplained is UNKNOWN to the reference count, never VIOLATED."""
    log = capture_entries("vllm032_gpu_int")
    for seed in SEEDS:
        mutant = MUTATORS[0](log, Random(seed))
        refcount = {rule.rule: rule for rule in audit(mutant.log).rules}["refcount"]
        assert refcount.verdict == "UNKNOWN"
