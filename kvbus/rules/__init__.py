"""The rules of order: a table that says what they are, and functions that find where they are broken.

A rule reads the log as columns, a chunk at a time, and never looks ahead. What the log does not hold (a late
join, a hole, bytes nobody can read) makes it say UNKNOWN where that could decide, never VIOLATED on
suspicion.

A new rule is a row of ``table.RULES``, its kinds of findings in ``table.KINDS``, a function of a ``Scene``
and its call in ``kvbus/audit``.
"""

from __future__ import annotations

from kvbus.rules.table import KINDS, RULES, About

__all__ = ["KINDS", "RULES", "About"]
