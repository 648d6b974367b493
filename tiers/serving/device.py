"""What an engine asks of the memory its blocks lie in: made, copied between GPU and CPU, compared.

The engine decides which block lies in which slot; a device moves what lies there. ``BooksOnly`` moves
nothing, for runs that only ask who would have hit: the same engine, the same books.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiers.keys import OffloadKey
from tiers.specs import LoadStoreSpec


class Device(Protocol):
    """``slots`` are GPU slots, one for each of ``keys``, in order; ``cpu`` are slots of the CPU tier.

    Calls return when what they ask for is done.
    """

    def compute(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        """Put the content that belongs to each key into its slot, as a model would by computing it."""
        ...

    def load(self, cpu: LoadStoreSpec, slots: Sequence[int]) -> bool:
        """Copy CPU → GPU. False if the copy failed: then the slots hold anything."""
        ...

    def store(self, slots: Sequence[int], cpu: LoadStoreSpec) -> bool:
        """Copy GPU → CPU. False if the copy failed."""
        ...

    def mismatches(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> list[int]:
        """The positions in ``slots`` whose content is not that of their key."""
        ...


class BooksOnly:
    """A device without memory: every copy succeeds at once, nothing is ever wrong."""

    def compute(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> None: ...

    def load(self, cpu: LoadStoreSpec, slots: Sequence[int]) -> bool:  # noqa: ARG002
        return True

    def store(self, slots: Sequence[int], cpu: LoadStoreSpec) -> bool:  # noqa: ARG002
        return True

    def mismatches(self, slots: Sequence[int], keys: Sequence[OffloadKey]) -> list[int]:  # noqa: ARG002
        return []
