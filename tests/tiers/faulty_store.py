"""A medium in memory that fails when told to, and remembers the most it ever held."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from tiers import OffloadKey
from tiers.storage.block_store import BlockCorruptError, BlockMissingError, BlockUnsureError


class FaultyStore:
    """Blocks by key, oldest first. ``fail[operation, key]`` is raised, ``fail[operation, None]`` for any key.

    A put that is to raise ``BlockUnsureError`` has put the block before. Of ``unknown`` blocks nobody can say
    if they are there; ``stuck`` ones can never be deleted. While ``gate`` is not set, ``put``, ``get`` and
    ``holds`` wait.
    """

    def __init__(self) -> None:
        self.blocks: dict[OffloadKey, bytes] = {}
        self.corrupt: set[OffloadKey] = set()
        self.unknown: set[OffloadKey] = set()
        self.stuck: set[OffloadKey] = set()
        self.fail: dict[tuple[str, OffloadKey | None], Exception] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        """Released by each call that comes to the gate."""
        self.calls: Counter[str] = Counter()
        self.most_bytes = 0
        self.is_closed = False
        self._lock = threading.Lock()

    def put(self, key: OffloadKey, data: memoryview) -> bool:
        try:
            self._enter("put", key)
        except BlockUnsureError:
            self._place(key, data)
            raise
        return self._place(key, data)

    def _place(self, key: OffloadKey, data: memoryview) -> bool:
        with self._lock:
            if key in self.blocks:
                return False
            self.blocks[key] = bytes(data)
            self.most_bytes = max(self.most_bytes, sum(map(len, self.blocks.values())))
            return True

    def get(self, key: OffloadKey, into: memoryview) -> None:
        self._enter("get", key)
        with self._lock:
            if key not in self.blocks:
                raise BlockMissingError(key)
            if key in self.corrupt or len(self.blocks[key]) != len(into):
                into[:] = b"?" * len(into)
                raise BlockCorruptError(key, "told so")
            into[:] = self.blocks[key]

    def delete(self, key: OffloadKey) -> None:
        self._enter("delete", key)
        if key in self.stuck:
            raise PermissionError(errno.EPERM, "stuck")
        with self._lock:
            self.blocks.pop(key, None)
            self.corrupt.discard(key)

    def holds(self, keys: Sequence[OffloadKey]) -> list[bool | None]:
        self._enter("holds", None)
        with self._lock:
            return [None if key in self.unknown else key in self.blocks for key in keys]

    def inventory(self) -> Iterator[tuple[OffloadKey, int]]:
        self._enter("inventory", None)
        with self._lock:
            return iter([(key, len(data)) for key, data in self.blocks.items()])

    def close(self) -> None:
        self.is_closed = True

    def _enter(self, operation: str, key: OffloadKey | None) -> None:
        assert not self.is_closed, "used after close"
        self.calls[operation] += 1
        if operation in ("put", "get", "holds"):
            self.waiting.release()
            assert self.gate.wait(30), "nobody opened the gate"
        if error := self.fail.get((operation, key)) or self.fail.get((operation, None)):
            raise error
