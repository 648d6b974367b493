"""What a log holds, entry by entry, and where each publisher's stream stands in it.

A log is a sequence of entries. Each ``Received`` gets the next ``position`` (0, 1, 2 … without a gap); the
others stand between two positions. Entries say what was heard and what is missing; what it means is worked
out from them again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from kvbus.events import EventBatch, Undecodable
from kvbus.wire import Capacity


class SourceId(Struct, frozen=True, order=True):
    """One publisher's stream, told apart as WIRE facts allow.

    ``source`` is the name or endpoint the stream was read from, ``topic`` the exact topic frame, ``rank``
    the data-parallel rank the payloads carry (-1: none). ``instance`` counts publishers that share all
    three on one bound socket.
    """

    source: str
    topic: bytes = b""
    rank: int = -1
    instance: int = 0

    @property
    def topic_text(self) -> str:
        """The topic for people and text columns: bytes that are not UTF-8 as ``\\xNN``."""
        return self.topic.decode("utf-8", "backslashreplace")

    @property
    def said_rank(self) -> int | None:
        """The rank as reports say it: None where payloads carry none."""
        return None if self.rank < 0 else self.rank

    @property
    def engine_and_tier(self) -> tuple[str, str] | None:
        """Both names, where the source is called ``ENGINE/TIER`` as ``record --engine`` does; else None."""
        engine, _, tier = self.source.rpartition("/")
        return (engine, tier) if engine and "://" not in self.source else None


class Received(Struct, frozen=True, gc=False):
    """One batch, as it came. ``received_ns`` is our wall clock; ``replayed``: from the replay socket."""

    source: SourceId
    epoch: int
    seq: int
    payload: bytes
    received_ns: int
    replayed: bool
    batch: EventBatch | Undecodable
    dialect: str


LOSS_REASONS: Final = {
    "late_join": "they came before the first one seen, and there is no replay socket to ask",
    "no_replay": "there is no replay socket to ask",
    "too_old": "the publisher's replay begins later",
    "absent_from_replay": "complete replays lack them: the publisher burned the numbers",
    "replay_incomplete": "the replay did not end or did not answer: nothing is known of them",
    "restart": "their publisher is gone",
    "late": "they came after the round they belong to was out",
    "unsequenced": "the recording carries no sequence numbers: nobody can tell how many are missing",
}
"""Why batches cannot be had."""

STRAY_REASONS: Final = {
    "conflict": "the number exists with other bytes",
    "late": "its place was already declared lost",
}
"""Why a batch has no place in the order."""


class Loss(Struct, frozen=True, gc=False):
    """Batches ``first_seq`` … ``last_seq`` (both included) of an epoch that cannot be had, and why: a key
    of ``LOSS_REASONS``.
    """

    source: SourceId
    epoch: int
    first_seq: int
    last_seq: int
    reason: str
    noticed_ns: int


class Stray(Struct, frozen=True, gc=False):
    """A batch that has no place in the order, kept aside; ``reason``: a key of ``STRAY_REASONS``."""

    source: SourceId
    epoch: int
    seq: int
    payload: bytes
    received_ns: int
    reason: str


class EpochBegan(Struct, frozen=True, gc=False):
    """A publisher process was seen for the first time under this source.

    ``because``: ``first_sight``, ``incarnation`` (its hello reply says so), ``content`` (the same number
    has other bytes in its replay), ``replay_empty`` (it no longer has the last batch we heard), ``seq``
    (numbers went back and the clock went on). ``incarnation`` is what a kvbus publisher calls itself, else
    empty; ``capacity`` how many distinct blocks fit into a medium, where it says so and was heard in time.
    """

    source: SourceId
    epoch: int
    because: str
    incarnation: str
    began_ns: int
    capacity: Capacity = {}


Entry = Received | Loss | Stray | EpochBegan


class LastBatch(Struct, frozen=True):
    """The last batch of a stream whose time can be read, of whatever epoch; ``ts`` in seconds."""

    position: int
    epoch: int
    ts: float
    received_ns: int
    replayed: bool


class Standing(Struct, frozen=True):
    """Where one stream stands: enough to go on after a restart of the reader.

    ``next_seq`` is the first seq not in the log. ``last_ts``: of this epoch; 0: none. ``recent`` holds the
    last payloads by seq, newest last, so that a replay's overlap can be compared byte for byte. ``last``: its
    place among the others.
    """

    epoch: int
    next_seq: int
    last_ts: float
    incarnation: str
    recent: dict[int, bytes]
    last: LastBatch | None = None


class PositionedEntry(Struct, frozen=True, gc=False):
    """An entry with its place: the position of a ``Received``; of the others, that of the next
    ``Received``.
    """

    position: int
    entry: Entry


class LogReader(Protocol):
    """Reading a log, whether or not somebody is writing it. One reader sees one unchanging state."""

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[PositionedEntry]:
        """Entries in order, positions ``first`` … ``last`` (included; None: to the end), streamed."""
        ...

    def batch_count(self) -> int:
        """How many ``Received`` entries there are; positions are 0 … count - 1."""
        ...

    def close(self) -> None: ...
