"""Which part of a live stream to show: where ``--from`` begins and ``--exit`` ends. No sockets, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from kvbus.config import faulty
from kvbus.feed import Notice
from kvbus.log import Entry, Received, SourceId

QUIET_S: Final = 1.0
"""``--exit``: nothing for so long, with every replay through, is the end."""
ABSENT_S: Final = 5.0
"""``--exit``: an endpoint that nobody answered at for so long has nothing."""


class Start(Struct, frozen=True):
    """``origin``: first seq wanted (None: what comes now). ``last``: only so many of the batches before."""

    origin: int | None
    last: int | None = None


def start_of(text: str | None, *, has_replay: bool) -> Start:
    """What ``--from`` means. Raises ``ConfigError``."""
    if text is None:
        text = "beginning" if has_replay else "end"
    if text == "beginning":
        return Start(0)
    if text == "end":
        return Start(None)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or int(digits) >= 1 << 63:
        raise faulty([f"--from: expected beginning, end, a seq, or -N for the last N batches, got {text!r}"])
    return Start(0, int(digits)) if text.startswith("-") else Start(int(text))


class EndOfFeeds:
    """Whether everything that is there has been had: every feed caught up, and then ``QUIET_S`` of nothing.

    A feed where nobody answers for ``ABSENT_S`` has nothing.
    """

    def __init__(self, names: Iterable[str], *, now: float) -> None:
        self._missing: set[tuple[str, str]] = {
            (name, kind) for name in names for kind in ("connected", "caught_up")
        }
        self._began = now
        self._last = now

    def note(self, items: Iterable[Entry | Notice], now: float) -> None:
        for item in items:
            if not isinstance(item, Notice):
                self._last = now
            elif (met := (item.source, item.kind)) in self._missing:
                self._missing.discard(met)
                self._last = now

    @property
    def absent(self) -> list[str]:
        """Feeds that nobody has answered for."""
        return sorted(name for name, kind in self._missing if kind == "connected")

    def reached(self, now: float) -> bool:
        return now - self._last >= (ABSENT_S if self._missing else QUIET_S)


class LastBatches:
    """Holds what was there before, then gives the last ``last`` batches of each stream."""

    def __init__(self, names: Iterable[str], last: int) -> None:
        self._open = set(names)
        self._last = last
        self._held: dict[SourceId, deque[tuple[int, Entry]]] = {}
        self._batches: dict[SourceId, int] = {}
        self._taken = 0

    def take(self, items: Iterable[Entry | Notice]) -> Iterator[Entry | Notice]:
        for item in items:
            if isinstance(item, Notice):
                if item.kind == "caught_up":
                    yield from self._release(item.source)
                yield item
            elif item.source.source in self._open:
                self._hold(item)
            else:
                yield item

    def _hold(self, entry: Entry) -> None:
        held = self._held.setdefault(entry.source, deque())
        held.append((self._taken, entry))
        self._taken += 1
        self._batches[entry.source] = self._batches.get(entry.source, 0) + isinstance(entry, Received)
        while self._batches[entry.source] > self._last:
            self._batches[entry.source] -= isinstance(held.popleft()[1], Received)

    def _release(self, name: str) -> Iterator[Entry]:
        self._open.discard(name)
        mine = [source for source in self._held if source.source == name]
        for _, entry in sorted(
            (pair for source in mine for pair in self._held.pop(source)), key=lambda pair: pair[0]
        ):
            yield entry
