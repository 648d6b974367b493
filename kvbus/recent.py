"""The last payloads of an epoch by number, to tell a duplicate from a restart byte for byte. Bounded."""

from __future__ import annotations


class Recent:
    """The newest payloads delivered. At least one is kept, whatever its size."""

    def __init__(self, *, batches_max: int, bytes_max: int) -> None:
        self._by_seq: dict[int, bytes] = {}
        self._bytes = 0
        self._batches_max = batches_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._by_seq)

    def get(self, seq: int) -> bytes | None:
        return self._by_seq.get(seq)

    def payloads(self) -> dict[int, bytes]:
        """What is remembered, oldest first."""
        return dict(self._by_seq)

    def add(self, seq: int, payload: bytes) -> None:
        """Remember the newest; forget the oldest where the bounds say so."""
        by_seq = self._by_seq
        by_seq[seq] = payload
        self._bytes += len(payload)
        while len(by_seq) > self._batches_max or (self._bytes > self._bytes_max and len(by_seq) > 1):
            self._bytes -= len(by_seq.pop(next(iter(by_seq))))

    def check_integrity(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert self._bytes == sum(map(len, self._by_seq.values()))
        assert len(self._by_seq) <= self._batches_max
