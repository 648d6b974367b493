"""A violation that was found while a log was being written, and the word of a sink that keeps such.

It states what was known then; ``kvbus check`` on the whole log has the last word. No rule is here
(``kvbus/rules``), nor who looks when (``kvbus/checking``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from kvbus.log import Entry
from kvbus.verdict import Witness

Key = tuple[str, str, tuple[Witness, ...]]
"""What tells violations apart: rule, because, witnesses."""


class Violation(Struct, frozen=True):
    """One finding; ``rule`` and ``id`` as in ``kvbus check --list``.

    ``count``: how many alike it stands for. Without ``witnesses`` it only counts: further ones of its rule,
    which are not told one by one. ``next_position``: how many batches were judged when it was found;
    ``found_ns``: when, ns since 1970.
    """

    rule: str
    id: str
    because: str
    witnesses: tuple[Witness, ...]
    count: int
    next_position: int
    found_ns: int

    @property
    def key(self) -> Key:
        return self.rule, self.because, self.witnesses


@runtime_checkable
class KeepsViolations(Protocol):
    """What a ``Sink`` has besides where it has a place for violations."""

    def write_judged(self, entries: Sequence[Entry], violations: Sequence[Violation], /) -> None:
        """As ``Sink.write``; the violations become durable with the last of the entries, in one
        transaction.
        """
        ...

    def violations(self) -> Iterator[Violation]:
        """Those that were durable when the sink was opened, in the order in which they were written."""
        ...
