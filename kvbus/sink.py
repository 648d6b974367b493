"""Where an ordered stream goes. A sink numbers what it is given and says what it already has.

Durable first, then say so: ``standings`` speaks of what ``flush`` made durable, nothing else. Rows and
cursors move together, so that a crash at any instant leaves something a restarted recorder continues
without a hole or a double.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from kvbus.log import Entry, SourceId, Standing


class Sink(Protocol):
    """One narrow protocol; ``tests/contracts/test_sinks.py`` is its contract.

    ``write`` takes entries in their final order. It raises ``LogError`` when a ``Received`` does not come
    after everything its (source, epoch) already has: (source, epoch, seq) can exist once. It may return
    before the entries are durable and may raise what an earlier write ran into.
    """

    def standings(self) -> Mapping[SourceId, Standing]:
        """Where each source stood when the sink was opened, from what is durable."""
        ...

    def write(self, entries: Sequence[Entry], /) -> None: ...

    def flush(self) -> None:
        """Return when everything written is durable; raise ``LogError`` if it cannot be."""
        ...

    def close(self) -> None:
        """Flush and let go. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
