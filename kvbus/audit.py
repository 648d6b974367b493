"""One pass over a log: every entry is counted once and shown to every rule.

Give it entries as they come, from a log or from a running recorder; ask for the verdict whenever you like.
Memory is bounded by the blocks that are resident and by what each rule declares to remember, not by the
length of the log. It opens nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvbus.errors import KvbusError
from kvbus.log import PositionedEntry
from kvbus.residency import Residency
from kvbus.rules import RULES, Rule
from kvbus.verdict import EXAMPLES, Report, overall


class UnknownRuleError(KvbusError):
    """A rule was asked for that kvbus does not have."""


class Audit:
    """Runs rules (names of ``RULES``; None: all of them) side by side.

    ``examples``: how many findings of a kind each rule shows in full. Raises ``UnknownRuleError``.
    """

    def __init__(self, rules: Sequence[str] | None = None, *, examples: int = EXAMPLES) -> None:
        names = list(RULES) if rules is None else list(rules)
        if unknown := [name for name in names if name not in RULES]:
            raise UnknownRuleError(
                f"there is no rule {', '.join(map(repr, unknown))}",
                next_step=f"The rules are: {', '.join(RULES)}.",
            )
        self.residency = Residency()
        self._rules: list[Rule] = [RULES[name](examples=examples) for name in names]

    def observe(self, at: PositionedEntry) -> None:
        """Take the next entry of the log."""
        remarks = self.residency.fold(at.entry)
        for rule in self._rules:
            rule.observe(at, remarks)

    def verdict(self) -> Report:
        """What the rules answer to everything observed so far."""
        answers = [rule.verdict() for rule in self._rules]
        return Report(overall(answer.verdict for answer in answers), answers)


def audit(
    entries: Iterable[PositionedEntry], rules: Sequence[str] | None = None, *, examples: int = EXAMPLES
) -> Report:
    """The verdict on a finished log. Raises ``UnknownRuleError``."""
    auditor = Audit(rules, examples=examples)
    for at in entries:
        auditor.observe(at)
    return auditor.verdict()
