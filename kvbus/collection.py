"""Events gathered in a test, and what it asserts of their order: the object behind the fixture ``kv_events``.

From a manager in this process, from a list, or from an endpoint; what is asserted is judged by the rules of
``kvbus check`` and the comparison of ``kvbus diff`` where they have it. Failures show what was said.
No pytest here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from kvbus.dialects import encode
from kvbus.errors import KvbusError
from kvbus.events import EventBatch
from kvbus.expected import Fault, Step, capacities, fault_of_order, fault_of_silence, fault_of_tiers, story
from kvbus.foreign_events import Keys, read_events
from kvbus.log import Entry, EpochBegan, PositionedEntry, Received, SourceId
from kvbus.telling import Telling, Told, telling

SOURCE: Final = SourceId("kv_events")
BEGAN_TS: Final = 1_700_000_000.0
"""The time of the first drain, seconds since 1970; each is a millisecond later. No clock is read."""


class Drained(Protocol):
    """All that is asked of a manager."""

    def take_events(self) -> Iterable[object]: ...


class NoManagerError(KvbusError):
    """What was to be drained has no events to take."""


class KvEvents:
    """``folder`` is where relative names of baselines begin; ``update``: write them instead of comparing."""

    def __init__(self, *, folder: Path | None = None, update: bool = False) -> None:
        self._folder = folder or Path()
        self._update = update
        self._keys = Keys()
        self._entries: list[PositionedEntry] = []
        self._position = 0
        self._seq = 0

    # -- gathering ---------------------------------------------------------------------------------------

    def drain(self, manager: Drained) -> list[object]:
        """Take a manager's events as one drain; they are handed back. Raises ``NoManagerError``,
        ``ForeignEventError``.
        """
        take_events = getattr(manager, "take_events", None)
        if isinstance(manager, type) or not callable(take_events):
            raise NoManagerError(
                f"{manager!r} has no take_events() to drain",
                next_step="Hand over a manager; events that were taken already are for add(events).",
            )
        events = take_events()
        if not isinstance(events, Iterable):
            raise NoManagerError(
                f"take_events() of {manager!r} gave {events!r}, which are no events",
                next_step="Let it give the events since the last call: a list, empty if there are none.",
            )
        taken = list(events)
        self.add(taken)
        return taken

    def add(self, events: Iterable[object]) -> None:
        """These events as one drain: kvbus's own, vLLM's, or offloading events. Raises
        ``ForeignEventError``.
        """
        ts = BEGAN_TS + self._seq / 1000
        batch = EventBatch(ts, read_events(events, self._keys))
        if not self._seq:
            self._append(EpochBegan(SOURCE, 0, "first_sight", "", round(ts * 1e9)))
        payload = encode(batch.events, ts=ts)
        self._append(Received(SOURCE, 0, self._seq, payload, round(ts * 1e9), False, batch, "kvbus"))
        self._seq += 1

    @contextmanager
    def listen(
        self, endpoint: str, *, replay: str | None = None, batches: int, timeout_s: float = 10.0
    ) -> Iterator[None]:
        """Hear what is published at ``endpoint`` while the ``with`` block runs, and until ``batches`` have
        come; AssertionError if they have not after ``timeout_s``. With a ``replay`` socket none is missed.
        """
        from kvbus.feed import Feed, Notice
        from kvbus.subscriber import Subscriber

        heard = 0
        with Subscriber([Feed(endpoint, replay)]) as subscriber:
            yield
            deadline = time.monotonic() + timeout_s
            while heard < batches and time.monotonic() < deadline:
                for item in subscriber.poll(0.05):
                    if not isinstance(item, Notice):
                        self._append(item)
                        heard += isinstance(item, Received)
        if heard < batches:
            raise AssertionError(f"{heard} of {batches} batches came from {endpoint} in {timeout_s:g} s")

    def _append(self, entry: Entry) -> None:
        self._entries.append(PositionedEntry(self._position, entry))
        self._position += isinstance(entry, Received)

    @property
    def entries(self) -> Sequence[PositionedEntry]:
        """What was gathered, as a log would have it: for ``kvbus.audit.audit`` and ``kvbus.lines``."""
        return list(self._entries)

    def telling(self) -> Telling:
        """What was gathered, by its order alone."""
        return telling(self._entries, name="kv_events")

    # -- asserting ---------------------------------------------------------------------------------------

    def assert_order(self, *steps: Step) -> None:
        """These things happened in this order; others may lie between. Raises ``StepError``."""
        __tracebackhide__ = True
        events = self.telling().events
        self._tell(fault_of_order(events, steps, self._keys), events)

    def assert_evicted_before_stored(
        self, *, capacity: int | Mapping[str, int] | None = None, medium: str | None = None
    ) -> None:
        """Room was made before it was taken: no tier holds more than ``capacity`` blocks (of ``medium``, or
        by medium) at any event; without it no block is stored and removed in one drain without a reason.

        Fails too where batches are missing, which only ``listen`` can miss. Raises ``StepError``.
        """
        __tracebackhide__ = True
        events = self.telling().events
        fits = capacities(capacity, medium, events)
        self._tell(fault_of_silence(events, fits), events)
        self._tell(self._broken("eviction", fits) or self._broken("sequence", {}), events)
        self._tell(self._broken("beginning", {}), events)

    def assert_tier_order(self, *tiers: str) -> None:
        """In each drain the events of these tiers come in this order. A tier is a medium, or the ownership
        that its events say. Fails where a tier that is not named speaks, or no drain has two of them.
        """
        __tracebackhide__ = True
        events = self.telling().events
        self._tell(fault_of_tiers(events, tiers), events)

    def assert_matches_baseline(self, path: str | Path, *, ignore: str | Iterable[str] = ()) -> None:
        """The order is that of a baseline; ``ignore``: what is not to be looked at, as of ``kvbus diff``, in
        one text or several. Raises ``ConfigError`` for what cannot be ignored.
        """
        __tracebackhide__ = True
        from kvbus.baseline_file import load, save
        from kvbus.comparison import compare
        from kvbus.side_by_side import lines
        from kvbus.tolerance import tolerances

        chosen, file = tolerances(ignore), self._folder / path
        if self._update:
            save(file, self.telling())
            return
        if not file.exists():
            raise AssertionError(
                f"there is no baseline {file}: run pytest with --kvbus-update to write it, and review it"
            )
        found = compare(load(file), self.telling(), chosen)
        if not found.same:
            raise AssertionError("\n".join([*lines(found), "(pytest --kvbus-update writes B over A)"]))

    def _broken(self, rule: str, fits: Mapping[str, int]) -> Fault | None:
        """What a rule of ``kvbus check`` has found, or could not find out, under the strictest profile."""
        from kvbus.audit import audit

        (answer,) = audit(self._entries, [rule], profile="kvbus", capacities=fits, examples=1).rules
        if answer.verdict == "HOLDS":
            return None
        finding = (answer.violations or answer.information)[0]
        places = {(at.position, at.event) for at in finding.witnesses}
        marks = [
            n
            for n, event in enumerate(self.telling().events)
            if {(event.where.position, event.where.event), (event.where.position, None)} & places
        ]
        names = {str(block): name for block, name in self._keys.names().items()}
        because = " ".join(names.get(word, word) for word in finding.because.split(" "))
        return Fault(f"{answer.verdict}: {because}", marks)

    def _tell(self, fault: Fault | None, events: Sequence[Told]) -> None:
        __tracebackhide__ = True
        if fault is not None:
            raise AssertionError(story(fault, events, self._keys.names()))
