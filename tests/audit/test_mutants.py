"""A checker that finds nothing proves nothing: real histories, spoilt, are caught at the right events."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kvbus.audit import audit
from kvbus.log import PositionedEntry
from kvbus.rules import RULES
from tests.audit.mutants import MUTATORS, Log, Mutant

Entries = Callable[[str], list[PositionedEntry]]
SEEDS = range(8)


@pytest.mark.parametrize("capture", ["vllm032_gpu_int", "vllm011_gpu_int"])
@pytest.mark.parametrize("mutate", MUTATORS, ids=lambda mutate: mutate.__name__)
def test_mutant_is_caught_at_the_right_events(
    mutate: Callable[[Log, Random], Mutant], capture: str, capture_entries: Entries
) -> None:
    """The rule that must see it says VIOLATED, and a violation names exactly the events that prove it."""
    log = capture_entries(capture)
    assert audit(log).verdict == "HOLDS"
    for seed in SEEDS:
        mutant = mutate(log, Random(f"{mutate.__name__} {seed}"))
        verdict = {rule.rule: rule for rule in audit(mutant.log).rules}[mutant.rule]
        assert verdict.verdict == "VIOLATED", seed
        named = [[(w.seq, w.event) for w in v.witnesses] for v in verdict.violations]
        assert mutant.witnesses in named, seed
        assert len(named) == verdict.violation_count <= 3, seed


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_mutant(rule: str, capture_entries: Entries) -> None:
    """No rule is in the table that nothing here can break."""
    log = capture_entries("vllm032_gpu_int")
    assert rule in {mutate(log, Random(0)).rule for mutate in MUTATORS}


def test_a_dropped_batch_makes_counts_uncertain_not_wrong(capture_entries: Entries) -> None:
    """What a hole leaves unexplained is UNKNOWN to the reference count, never VIOLATED."""
    log = capture_entries("vllm032_gpu_int")
    for seed in SEEDS:
        mutant = MUTATORS[0](log, Random(seed))
        refcount = {rule.rule: rule for rule in audit(mutant.log).rules}["refcount"]
        assert refcount.verdict == "UNKNOWN"
