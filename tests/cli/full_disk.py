"""A sink on a disk that is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from kvbus.errors import LogError
from kvbus.log import Entry, SourceId, Standing


class FullDisk:
    """A sink that takes nothing."""

    def standings(self) -> Mapping[SourceId, Standing]:
        return {}

    def write(self, entries: Sequence[Entry], /) -> None:
        raise LogError("the disk is full", next_step=f"Make room for {len(entries)} entries.")

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
