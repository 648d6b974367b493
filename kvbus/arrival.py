"""One message as it came in, already read, and the bounds on what is kept of such messages. Values only."""

from __future__ import annotations

from msgspec import Struct

from kvbus.events import EventBatch, Undecodable


class Arrival(Struct, frozen=True, gc=False):
    """One message of a live stream or a replay.

    ``topic`` is None where the framing has none (old replay replies). ``connection`` tells publishers on a
    bound socket apart (0: there is only one).
    """

    topic: bytes | None
    seq: int
    payload: bytes
    received_ns: int
    batch: EventBatch | Undecodable
    dialect: str
    connection: int = 0
    replayed: bool = False

    @property
    def ts(self) -> float | None:
        """The publisher's clock in seconds; None where the payload cannot be read."""
        return self.batch.ts if isinstance(self.batch, EventBatch) else None

    @property
    def rank(self) -> int:
        """The data-parallel rank the payload carries; -1 where it has none or cannot be read."""
        if not isinstance(self.batch, EventBatch) or self.batch.data_parallel_rank is None:
            return -1
        return self.batch.data_parallel_rank

    def later_than(self, ts: float | None) -> bool:
        """Whether the publisher's clock says that this was made after ``ts``; False where a clock is
        unknown.
        """
        return self.ts is not None and ts is not None and self.ts > ts


class Limits(Struct, frozen=True):
    """Bounds of one stream. What is early beyond ``waiting_*`` is refused (and counted): the replay still
    has it.
    """

    waiting_batches: int = 65_536
    waiting_bytes: int = 256 << 20
    recent_batches: int = 1024
    recent_bytes: int = 2 << 20
    tries: int = 3
    """Replay requests without an end marker, one after another, before a hole is given up."""
    complete_tries: int = 2
    """Complete replays that lack a batch before it counts as burned: a full ROUTER could have cut one."""
    reorder_ns: int = 500_000_000
    """How long an early batch waits for the ones before it where there is no replay socket to ask."""
    reorder_batches: int = 1024
    suspect_ns: int = 1_000_000_000
    """How long a lone number from the past may stay undecided."""
