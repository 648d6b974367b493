"""`make mutants`: how much of what can go wrong a check sees. Real streams, spoilt a thousand times, and
judged.

The first table is of changes that break a rule for certain: *named* are those of which the rule names exactly
the events that prove it. The second is of changes at random; what is not caught there is explained.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table

from kvbus.audit import Audit
from kvbus.rules.table import KINDS
from kvbus.verdict import Report
from tests.audit.blind import BLIND
from tests.audit.mutants import MUTATORS, UNIQUE_MUTATORS, Log, Mutant, Settings, levels
from tests.conftest import ordered

CAPTURES: Final = Path(__file__).resolve().parent.parent / "tests" / "captures"
COPYING: Final = ("vllm032_gpu_int", "vllm011_gpu_int")
UNIQUE: Final = "sglang0523_radix"
"""Committed streams: two of engines that hold copies of a block, one of an engine that does not."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=14, help="mutants of each kind and stream (default: 14)")
    seeds = parser.parse_args().seeds
    logs = {name: ordered(CAPTURES / f"{name}.frames") for name in (*COPYING, UNIQUE)}
    console = Console()
    made = [*directed(logs, seeds, console), *blind(logs, seeds, console)]
    console.print(f"{len(made)} mutants, {sum(made) / len(made):.1%} caught")


def judged(log: Log, settings: Settings) -> tuple[Report, dict[str, int]]:
    auditor = Audit(capacities=settings.capacities, engines=settings.engines)
    for at in log:
        auditor.observe(at)
    return auditor.verdict(), auditor.counts()


def is_named(mutant: Mutant) -> bool:
    """Whether the rule that must see it names exactly the events that prove it."""
    report, _ = judged(mutant.log, mutant.settings)
    (rule,) = [rule for rule in report.rules if rule.rule == mutant.rule]
    told = [[(w.seq, w.event) for w in f.witnesses] for f in (*rule.violations, *rule.information)]
    return mutant.witnesses in told


def directed(logs: dict[str, Log], seeds: int, console: Console) -> Iterator[bool]:
    table = Table("what is wrong", "rule", "mutants", "named", title="changes that break a rule")
    cases: list[tuple[Callable[[Log, Random], Mutant], tuple[str, ...]]] = [
        *((mutate, COPYING) for mutate in MUTATORS),
        *((mutate, (UNIQUE,)) for mutate in UNIQUE_MUTATORS),
    ]
    for mutate, names in cases:
        mutants = [mutate(logs[name], Random(f"{name} {seed}")) for name in names for seed in range(seeds)]
        caught = [is_named(mutant) for mutant in mutants]
        table.add_row(mutate.__name__, mutants[0].rule, str(len(caught)), f"{sum(caught) / len(caught):.0%}")
        yield from caught
    console.print(table)


def blind(logs: dict[str, Log], seeds: int, console: Console) -> Iterator[bool]:
    table = Table("what is changed", "mutants", "caught", "what cannot be seen of it")
    table.title = "changes at random, the GPU's capacity known"
    fits = {name: Settings({"GPU": max(level for *_, level in levels(log))}) for name, log in logs.items()}
    clean = {name: judged(log, fits[name])[1] for name, log in logs.items()}
    for change, why in BLIND.items():
        caught = [
            is_seen(clean[name], judged(change(log, Random(f"{name} {seed}")), fits[name])[1])
            for name, log in logs.items()
            for seed in range(seeds)
        ]
        table.add_row(change.__name__, str(len(caught)), f"{sum(caught) / len(caught):.0%}", why)
        yield from caught
    console.print(table)


def is_seen(before: dict[str, int], after: dict[str, int]) -> bool:
    """Whether a kind of finding that is more than information is found more often than before."""
    return any(
        count > before.get(kind, 0) and KINDS[kind] in ("violation", "unknown", "warning")
        for kind, count in after.items()
    )


if __name__ == "__main__":
    main()
