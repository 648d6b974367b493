"""Shows what passes, for the length of a command: events to stdout, what is said about them to stderr.

As lines for people or from a template (``render``, ``format``), or as JSON lines; filtered, and counted where
only so many are wanted. Writes once a call, and to the reader's end of the pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from cli.filters import Filters
from cli.format import Cell, Shown
from cli.render import notice_text, say
from kvbus.events import EventBatch
from kvbus.lines import encode_line
from kvbus.log import Entry, Received
from kvbus.rounds import emitted

NOTICE_LINE: Final = b'{"kind":"Notice",'
"""How the JSON line of a notice begins; ``import`` passes over it."""


class Said(Struct, tag="Notice", tag_field="kind"):
    """A notice as a JSON line."""

    notice: str
    source: str
    text: str


class Printer:
    """Owns stdout for the length of a command: shows what passes, counts lines, writes once a call.

    ``cell`` renders events; None: JSON lines, with each batch's ``payload`` where whole batches are shown.
    ``limit``: lines of events after which ``show`` answers True.
    """

    def __init__(
        self,
        *,
        cell: Cell | None,
        filters: Filters,
        limit: int | None = None,
        payload: bool = True,
        quiet: bool = False,
    ) -> None:
        self._cell = cell
        self._filters = filters
        self._left = limit
        self._payload = payload and not filters.selects_events
        self._quiet = quiet
        self._gone: set[str] = set()
        self._out = sys.stdout.buffer

    def show(self, entries: Iterable[Entry]) -> bool:
        """Write ``entries`` out, to the reader's end of the pipe; True when the limit is reached."""
        lines: list[bytes] = []
        for entry in entries:
            if self._left is not None and self._left <= 0:
                break
            if not self._filters.admit_source(entry.source):
                continue
            if isinstance(entry, Received):
                new = self._json_lines(entry) if self._cell is None else self._lines(entry, self._cell)
                lines += new if self._left is None else new[: self._left]
                self._left = None if self._left is None else self._left - len(new)
            elif self._cell is None:
                lines.append(encode_line(entry))
            elif not self._quiet:
                say(notice_text(entry))
        self._write(lines)
        return self._left is not None and self._left <= 0

    def show_as_made(self, entries: Iterable[Entry]) -> bool:
        """Like ``show`` for one engine's round: first what is no event, then the events as they were made.

        Batches are not shown whole then, so there is no payload.
        """
        rest: list[Entry] = []
        batches: list[Received] = []
        for entry in entries:
            if isinstance(entry, Received) and isinstance(entry.batch, EventBatch):
                batches.append(entry)
            else:
                rest.append(entry)
        if self.show(rest):
            return True
        lines = {id(batch): self._event_lines(batch) for batch in batches}
        made = (lines[id(batch)].get(index) for batch, index, _ in emitted(batches))
        shown = [line for line in made if line is not None][: self._left]
        self._left = None if self._left is None else self._left - len(shown)
        self._write(shown)
        return self._left is not None and self._left <= 0

    def _event_lines(self, received: Received) -> dict[int, bytes]:
        """The line of each event of a batch that passes, by the event's index."""
        passing = [index for index, _ in self._filters.events(received)]
        if self._cell is not None:
            return dict(zip(passing, self._lines(received, self._cell), strict=True))
        lines = encode_line(received).splitlines(keepends=True)
        return {index: lines[index] for index in passing}

    def notice(self, kind: str, source: str, text: str) -> None:
        """Tell something about a feed: on stderr, or as a JSON line. A first connection is no news."""
        if kind == "connected" and source not in self._gone:
            return
        if kind == "disconnected":
            self._gone.add(source)
        if self._cell is None:
            self._write([msgspec.json.encode(Said(kind, source, text)) + b"\n"])
        elif not self._quiet:
            say(f"{source}: {text}")

    def _json_lines(self, received: Received) -> list[bytes]:
        lines = encode_line(received, payload=self._payload).splitlines(keepends=True)
        if not self._filters.selects_events:
            return lines
        return [lines[index] for index, _ in self._filters.events(received)]

    def _lines(self, received: Received, cell: Cell) -> list[bytes]:
        return [
            cell(Shown(received, index, event)).encode("utf-8", "backslashreplace")
            for index, event in self._filters.events(received)
        ]

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            self._out.write(b"".join(lines))
            self._out.flush()
