"""What the engine's thread leaves for the sending thread: a bounded queue, its losses in their place.

Putting never blocks (unless asked to): a full box takes a hole instead of the batch, at the place the batch
would have had, so the sender uses up a number for it and readers see that something is missing. No sockets,
no encoding, no numbers here. The queue is CPython's own C queue: the engine pays an append, and wakes the
sender only when it sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final

from msgspec import Struct

from kvbus.errors import KvbusError
from kvbus.events import Event

# gc=False: a hundred thousand waiting batches must not make the engine's garbage collector walk them.


class Fresh(Struct, gc=False):
    """A batch to encode and to number. ``ts`` in seconds since 1970."""

    ts: float
    events: Sequence[Event]


class Ready(Struct, gc=False):
    """A batch that has its bytes and its number."""

    topic: bytes
    seq: int
    payload: bytes


class Hole(Struct, gc=False):
    """``count`` batches that found no room here."""

    count: int
    taken: bool = False


class Nudge(Struct, gc=False):
    """Nothing to send: look at the world. ``last``: nothing comes after this."""

    last: bool = False


Item = Fresh | Ready | Hole | Nudge

WAIT_S: Final = 0.05


class Outbox:
    """Many threads put, one takes. ``limit`` counts items; ``waits``: a full box makes ``put`` wait."""

    def __init__(self, limit: int, *, waits: bool = False) -> None:
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._limit = limit
        self._waits = waits
        self._hole: Hole | None = None  # the youngest hole, while nothing was put after it
        # Reentrant: a signal handler or a finalizer may put in the middle of the same thread's put.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0
        self._shut_because: str | None = None
        self._dropped = 0
        self._dropping = False
        self._dropped_within: list[Hole] = []

    @property
    def dropped(self) -> int:
        """Batches that found no room."""
        return self._dropped + len(self._dropped_within)

    def __len__(self) -> int:
        return self._queue.qsize()

    def put(self, item: Fresh | Ready) -> None:
        """Leave a batch. Raises ``KvbusError`` once shut."""
        if self._shut_because is not None:
            self._refuse()
        if self._queue.qsize() >= self._limit and not self._make_room():
            return
        self._hole = None
        self._queue.put(item)

    def take(self, at_most: int, *, timeout_s: float) -> list[Item]:
        """The oldest items, at least one unless ``timeout_s`` passes first."""
        try:
            items = [self._queue.get(timeout=timeout_s)]
        except Empty:
            return []
        # There is no other taker, so what is counted is there.
        items += [self._queue.get_nowait() for _ in range(min(self._queue.qsize(), at_most - 1))]
        if self._waiting:
            with self._room:
                self._room.notify_all()
        return items

    def open_hole(self, hole: Hole) -> int:
        """How many batches this hole stands for; none are added to it any more."""
        with self._lock:
            hole.taken = True
            return hole.count

    def nudge(self) -> None:
        """Wake the taker."""
        self._queue.put(Nudge())

    def shut(self, because: str) -> None:
        """Refuse what comes now, and mark the end of what came before. ``because`` goes into the error."""
        with self._room:
            if self._shut_because is None:
                self._shut_because = because
                self._queue.put(Nudge(last=True))
            self._room.notify_all()

    def disown(self, because: str) -> None:
        """As ``shut``, but touching no lock: for a forked child, where another thread may have held it."""
        self._shut_because = because

    def leftover(self) -> int:
        """How many batches nobody took; they are gone after this."""
        count = 0
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return count
            count += isinstance(item, Fresh | Ready)

    def _make_room(self) -> bool:
        with self._room:
            if not self._waits:
                self._drop()
                return False
            self._waiting += 1
            try:
                while self._queue.qsize() >= self._limit and self._shut_because is None:
                    self._room.wait(WAIT_S)  # bounded: the taker looks at _waiting without the lock
            finally:
                self._waiting -= 1
        if self._shut_because is not None:
            self._refuse()
        return True

    def _drop(self) -> None:
        if self._dropping:  # in a handler that interrupted the lines below: adding there could be undone
            self._dropped_within.append(hole := Hole(1, taken=True))
            self._queue.put(hole)
            return
        self._dropping = True
        try:
            self._dropped += 1
            if self._hole is not None and not self._hole.taken:
                self._hole.count += 1
                return
            self._hole = hole = Hole(1)
            self._queue.put(hole)
        finally:
            self._dropping = False

    def _refuse(self) -> None:
        raise KvbusError(
            f"the publisher {self._shut_because}", next_step="Make a new Publisher; its numbers start at 0."
        )
