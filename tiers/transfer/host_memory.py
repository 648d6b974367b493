"""The CPU tier's memory: one region of equal slots, seen as bytes and as a tensor, never copied.

The region is anonymous, or a file (in /dev/shm) that several processes map. Pages are taken as they are first
written, unless the region is pinned. It knows no keys and keeps no books. Whoever got a view keeps the memory
alive: closing lets go of it, the last holder frees it, so no thread can ever read what is not mapped.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import time
from pathlib import Path
from typing import Final

import torch

from tiers.errors import TierContractError, TierMemoryError, TierValueError
from tiers.row_layout import ROW_ALIGNMENT, RowLayout

JOIN_SECONDS: Final = 30.0
LOOK_AGAIN_SECONDS: Final = 0.01

log = logging.getLogger(__name__)


class HostMemory:
    """``num_blocks`` slots of ``layout.row_bytes`` bytes, zeroed, the first at an address divisible by 4096.

    ``pin``: register the region with CUDA, so that copies to and from it are asynchronous; where that fails
    a warning says why, and ``pinned`` is False. ``path``: a file all of whose users share the memory; the
    first to come makes it and removes its name again, others wait up to ``join_seconds`` until it has its
    size. A name left by a process that died is joined like any other: give each run its own.

    Raises ``TierValueError`` for fewer than 1 block, ``TierMemoryError`` if there is not so much memory, if
    the file cannot be made or joined, or if it does not get this size in time.
    """

    def __init__(
        self,
        num_blocks: int,
        layout: RowLayout,
        *,
        pin: bool = False,
        path: Path | None = None,
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        if num_blocks < 1:
            raise TierValueError(f"memory of {num_blocks} blocks", next_step="Give 1 or more.")
        self.num_blocks = num_blocks
        self.layout = layout
        self.nbytes = num_blocks * layout.row_bytes
        self._made: Path | None = None
        region = self._region(path, join_seconds)
        # Nobody calls region.close(), which could unmap it under a tensor: both views keep it alive.
        shape = (num_blocks, layout.row_bytes)
        self._view: memoryview | None = memoryview(region).cast("B", shape)
        self._tensor: torch.Tensor | None = torch.frombuffer(region, dtype=torch.int8).view(shape)
        self.pinned = pin and register(self._tensor)

    def _region(self, path: Path | None, join_seconds: float) -> mmap.mmap:
        try:
            return self._anonymous() if path is None else self._shared(path, join_seconds)
        except (OSError, OverflowError, ValueError) as error:  # ValueError: a path with a NUL
            raise TierMemoryError(
                f"no {self.nbytes} bytes of memory for {self.num_blocks} slots: {error}",
                next_step="Give fewer blocks, or make room."
                if path is None
                else "Make room, or give a path that can be written; all its users give the same sizes.",
            ) from error

    def _anonymous(self) -> mmap.mmap:
        region = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages copies a little slower
            region.madvise(mmap.MADV_HUGEPAGE)
        return region

    def _shared(self, path: Path, join_seconds: float) -> mmap.mmap:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return self._join(path, join_seconds)
        self._made = path
        try:
            # Not ftruncate: memory that is not there would be a SIGBUS at some later write.
            os.posix_fallocate(fd, 0, self.nbytes)
            return mmap.mmap(fd, self.nbytes)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _join(self, path: Path, join_seconds: float) -> mmap.mmap:
        deadline = time.monotonic() + join_seconds
        with path.open("r+b") as file:
            while (size := os.fstat(file.fileno()).st_size) != self.nbytes:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{path} has {size} bytes after {join_seconds:g} s")
                time.sleep(LOOK_AGAIN_SECONDS)
            return mmap.mmap(file.fileno(), self.nbytes)

    @property
    def view(self) -> memoryview:
        """All slots as bytes, shape (num_blocks, row bytes). Raises ``TierContractError`` once closed."""
        if self._view is None:
            raise closed()
        return self._view

    @property
    def tensor(self) -> torch.Tensor:
        """The same bytes, int8, shape (num_blocks, row bytes). Raises ``TierContractError`` once closed."""
        if self._tensor is None:
            raise closed()
        return self._tensor

    def close(self) -> None:
        """Let go of the memory; it is freed with the last view of it. Safe to call twice.

        Shut workers down first: of pinned memory, copies that CUDA still makes must be over.
        """
        if self.pinned:
            unregister(self.tensor)
            self.pinned = False
        if self._made is not None:
            self._made.unlink(missing_ok=True)
            self._made = None
        self._view = self._tensor = None

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        if self._tensor is None:
            assert self._view is None, "closed by half"
            assert not self.pinned, "pinned, and nobody left to unpin it"
            return
        assert self._tensor.data_ptr() % ROW_ALIGNMENT == 0, "the first slot is not aligned"
        assert self.layout.row_bytes % ROW_ALIGNMENT == 0, "the second slot is not aligned"
        assert self.view.shape == tuple(self._tensor.shape), "view and tensor differ"


def closed() -> TierContractError:
    return TierContractError("this memory was closed", next_step="Close it after all who use it.")


def register(tensor: torch.Tensor) -> bool:
    """Pin the tensor's memory for CUDA. False, and a warning, if that cannot be."""
    if not torch.cuda.is_available():
        log.warning("host memory stays unpinned: no CUDA device")
        return False
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = int(cudart.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if error:
        log.warning("host memory stays unpinned: cudaHostRegister says error %d", error)
        # CUDA remembers a refused call until somebody asks; else the engine's next kernel would be blamed.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")
    return not error


def unregister(tensor: torch.Tensor) -> None:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = int(cudart.cudaHostUnregister(tensor.data_ptr()))
    if error:
        log.warning("host memory stays pinned: cudaHostUnregister: error %d", error)
