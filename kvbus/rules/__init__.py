"""The rules of order, one class a file, and the table of them.

A rule watches the log go by and can say at any moment how things stand. It never looks ahead and remembers no
more than its bounds. What the log does not hold (a late join, a hole, bytes nobody can read) makes it say
UNKNOWN where that could decide, never VIOLATED on suspicion. Shapes that look like bugs and are legal
(WIRE.md §1.6) are information.

A new rule is a class with ``about``, ``observe`` and ``verdict``, and its line in ``RULES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvbus.rules.refcount import RefCountRule
from kvbus.rules.rule import About, Rule, RuleMaker
from kvbus.rules.sequence import SequenceRule

RULES: Final[Mapping[str, RuleMaker]] = {
    "sequence": SequenceRule,
    "refcount": RefCountRule,
}
"""Every rule by its name, in the order of a report."""

__all__ = ["RULES", "About", "RefCountRule", "Rule", "RuleMaker", "SequenceRule"]
