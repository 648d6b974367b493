"""What the answer to one replay request has shown so far. It remembers, it concludes nothing."""

from __future__ import annotations

from kvbus.arrival import Arrival


class Reply:
    """One answer under way.

    ``start``: from which number on it was asked for this stream (None: it was not). ``asked_high``: the
    highest number that waited when it was asked (what lies below must be in a complete answer).
    ``suspected``: a restart was suspected by then. ``first`` / ``last``: seqs in it. ``older``: what comes
    is of a life that is over. ``void``: the stream has moved on to another life since it was asked.
    ``same``: it holds bytes we have. ``held``: batches that wait for that proof.
    """

    __slots__ = ("asked_high", "first", "held", "last", "older", "same", "start", "suspected", "void")

    def __init__(self, *, start: int | None = None, asked_high: int = -1, suspected: bool = False) -> None:
        self.start = start
        self.asked_high = asked_high
        self.suspected = suspected
        self.first: int | None = None
        self.last = -1
        self.older = False
        self.void = False
        self.same = False
        self.held: list[Arrival] = []

    def count(self, seq: int) -> bool:
        """Take note of a batch's number; True when it starts over: such an answer holds two lives of the
        publisher.
        """
        again = seq <= self.last
        self.last = seq
        if again:
            self.older = False
            self.first = None
            self.held = []
        return again

    def after_restart(self, *, void: bool) -> Reply:
        """The same answer as the next epoch sees it: only how far its numbers went is still true of it."""
        reply = Reply()
        reply.last, reply.void = self.last, void
        return reply
