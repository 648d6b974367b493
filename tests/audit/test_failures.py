"""What went wrong in the field shows: each failure that a stream can show is told by the rule
docs/failures.md names.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvbus.audit import Audit
from kvbus.rules.table import KINDS, RULES
from tests.audit.failures import FAILURES, Failure

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "failures.md"
SHOWN = [failure for failure in FAILURES if failure.story is not None]


@pytest.mark.parametrize("failure", SHOWN, ids=lambda failure: failure.where.partition(",")[0])
def test_the_rule_tells_it(failure: Failure) -> None:
    """The finding is there, and one that is more than information says what it counts as."""
    auditor = Audit(capacities=failure.capacities)
    for at in failure.log() or []:
        auditor.observe(at)
    report = auditor.verdict()
    (rule,) = [rule for rule in report.rules if rule.rule == failure.kind.partition(".")[0]]
    told = [finding.level for finding in (*rule.violations, *rule.information)]
    assert failure.kind in auditor.counts() or failure.kind.startswith(("silence.tier", "lifetime"))
    assert KINDS[failure.kind] in told


def test_there_are_64() -> None:
    """All of them are accounted for: with a story, or with the reason why there is none."""
    assert len(FAILURES) == 64
    assert {failure.kind for failure in FAILURES if failure.story is None}.isdisjoint(KINDS)


def test_the_docs_tell_the_same() -> None:
    """The table in the docs has a row for each, in this order, with the rule that tells it."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", DOCS.read_text(), re.MULTILINE)
    expected = []
    for number, failure in enumerate(FAILURES, 1):
        told = failure.kind
        if failure.story is not None:
            name, _, kind = failure.kind.partition(".")
            told = f"`{name}` ({RULES[name].id}), {kind}"
        expected.append((str(number), failure.where, failure.what, told))
    assert rows == expected
