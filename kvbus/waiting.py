"""Batches that came early: they wait, by number, for what is missing before them. Bounded in count and
bytes.

While a hole is open the lowest number is asked for at every message, so it is kept in a heap: looking
through all that wait would make a long hole cost its square.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from kvbus.arrival import Arrival


class Waiting:
    """Early arrivals by seq, and their payload bytes."""

    def __init__(self, *, batches_max: int, bytes_max: int) -> None:
        self._by_seq: dict[int, Arrival] = {}
        self._lowest: list[int] = []
        self._bytes = 0
        self._batches_max = batches_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._by_seq)

    def __contains__(self, seq: int | None) -> bool:
        return seq in self._by_seq

    def get(self, seq: int) -> Arrival | None:
        return self._by_seq.get(seq)

    def add(self, arrival: Arrival) -> bool:
        """Keep it; False when there is no room. Its number must not be there yet."""
        size = len(arrival.payload)
        if len(self._by_seq) >= self._batches_max or self._bytes + size > self._bytes_max:
            return False
        self._by_seq[arrival.seq] = arrival
        self._bytes += size
        heappush(self._lowest, arrival.seq)
        return True

    def pop(self, seq: int) -> Arrival | None:
        arrival = self._by_seq.pop(seq, None)
        if arrival is not None:
            self._bytes -= len(arrival.payload)
            if self._lowest[0] == seq:
                heappop(self._lowest)
            else:
                self._lowest.remove(seq)
                heapify(self._lowest)
        return arrival

    def take_if(self, wanted: Callable[[Arrival], bool]) -> list[Arrival]:
        """Remove and return, by rising seq, what ``wanted`` picks."""
        picked = [arrival for arrival in self._by_seq.values() if wanted(arrival)]
        for arrival in picked:
            del self._by_seq[arrival.seq]
            self._bytes -= len(arrival.payload)
        self._lowest = sorted(self._by_seq)
        return sorted(picked, key=lambda arrival: arrival.seq)

    @property
    def first(self) -> Arrival:
        """The one with the lowest number. Raises ``IndexError`` when nothing waits."""
        return self._by_seq[self._lowest[0]]

    @property
    def last_seq(self) -> int:
        """The highest number that waits; -1 for none."""
        return max(self._by_seq, default=-1)

    @property
    def since_ns(self) -> int:
        """When the one that has waited longest came (``received_ns``). Raises ``StopIteration`` when
        nothing waits.
        """
        return next(iter(self._by_seq.values())).received_ns

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert self._bytes == sum(len(arrival.payload) for arrival in self._by_seq.values())
        assert len(self._by_seq) <= self._batches_max
        assert self._bytes <= self._bytes_max
        assert all(seq == arrival.seq for seq, arrival in self._by_seq.items())
        assert sorted(self._lowest) == sorted(self._by_seq)
        assert not self._lowest or self._lowest[0] == min(self._lowest)
