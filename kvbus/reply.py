"""What the answer to one replay request has shown so far. It remembers, it concludes nothing."""

from __future__ import annotations


class Reply:
    """One answer under way.

    ``asked_high``: the highest number that waited when it was asked (what lies below must be in a complete
    answer). ``suspected``: a restart was suspected by then. ``first`` / ``last``: seqs in it. ``older``:
    what comes is of a life that is over. ``void``: the stream has moved on to another life since it was
    asked. ``same``: it holds bytes we have.
    """

    __slots__ = ("asked_high", "first", "last", "older", "same", "suspected", "void")

    def __init__(self, *, asked_high: int = -1, suspected: bool = False) -> None:
        self.asked_high = asked_high
        self.suspected = suspected
        self.first: int | None = None
        self.last = -1
        self.older = False
        self.void = False
        self.same = False

    def count(self, seq: int) -> bool:
        """Take note of a batch's number; True when it starts over: such an answer holds two lives of the
        publisher.
        """
        again = seq <= self.last
        self.last = seq
        if again:
            self.older = False
            self.first = None
        return again
