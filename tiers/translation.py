"""What a tier said of keys, as events of block hashes: what consumers of engines read on the wire.

A store is one ``BlockStored`` a key, a removal one ``BlockRemoved`` a KV-cache group, keys in their order:
the shapes of vLLM's connector (``offloading/events.py``). Values in, values out; what is remembered between
two events is in ``Descriptions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from kvbus.events import BlockRemoved, Event
from tiers.description import Descriptions
from tiers.keys import OffloadKey, get_offload_group_idx


class Said(Protocol):
    """What translation reads of an event. ``OffloadingEvent`` is one."""

    @property
    def keys(self) -> Sequence[OffloadKey]: ...
    @property
    def medium(self) -> str: ...
    @property
    def removed(self) -> bool: ...
    @property
    def locality(self) -> str | None: ...
    @property
    def ownership(self) -> str | None: ...
    @property
    def removal_expected(self) -> bool: ...
    @property
    def emit_seq(self) -> int | None: ...
    @property
    def reason(self) -> str | None: ...


def translate(event: Said, *, tier: int, descriptions: Descriptions) -> list[Event]:
    """One event of the tier of this number (0: the primary) as it goes on the wire.

    The primary always says what it gives up; of others ``removal_expected`` tells. A removal names the same
    hashes as that tier's store did. Raises ``ValueError`` for a key without a block hash.
    """
    return _removed(event, tier, descriptions) if event.removed else _stored(event, tier, descriptions)


def _stored(event: Said, tier: int, descriptions: Descriptions) -> list[Event]:
    lasting = tier == 0 or event.removal_expected
    medium, locality, ownership = plain(event.medium), plain(event.locality), event.ownership
    emit_seq = event.emit_seq
    return [
        replace(alike, medium=medium, locality=locality, ownership=ownership, emit_seq=emit_seq)
        for alike in descriptions.stored(event.keys, tier=tier, lasting=lasting)
    ]


def _removed(event: Said, tier: int, descriptions: Descriptions) -> list[Event]:
    by_group: dict[int, list[int]] = {}
    for key in event.keys:
        hashes = descriptions.removed(key, tier=tier)
        by_group.setdefault(get_offload_group_idx(key), []).extend(hashes)
    medium, locality = plain(event.medium), plain(event.locality)
    return [
        BlockRemoved(
            hashes,
            medium=medium,
            group_idx=group_idx,
            locality=locality,
            ownership=event.ownership,
            emit_seq=event.emit_seq,
            reason=event.reason,
        )
        for group_idx, hashes in by_group.items()
    ]


def plain(name: object) -> str | None:
    """The word itself, of a member of anybody's enum too."""
    if name is None:
        return None
    return str(name.value if isinstance(name, Enum) else name)
