"""What a tier said of keys, as events of block hashes: what consumers of engines read on the wire.

A store is one ``BlockStored`` a key, a removal one ``BlockRemoved`` a KV-cache group, keys in their order:
the shapes of vLLM's connector (``offloading/events.py``). Values in, values out; what is remembered between
two events is in ``Descriptions``. What cannot be said is refused before anything is noted of it, so one event
at fault costs that event alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, Protocol, TypeGuard

from msgspec.structs import replace

from kvbus.events import BlockRemoved, Event
from tiers.keys import OffloadKey, get_offload_group_idx, is_offload_key
from tiers.voice.description import Descriptions
from tiers.voice.unsaid import Unsaid

EMIT_SEQ_MAX: Final = (1 << 64) - 1
"""What msgpack and a log's column carry."""


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


def translated(
    taken: Iterable[Iterable[Said]], descriptions: Descriptions, *, unsaid: Unsaid
) -> list[list[Event]]:
    """Each tier's events as they go on the wire, the primary's first. One that cannot be read or said is left
    out, and noted as ``unreadable``.
    """
    shares: list[list[Event]] = []
    for tier, share in enumerate(taken):
        made: list[Event] = []
        for event in share:
            try:
                made += translate(event, tier=tier, descriptions=descriptions)
            except Exception as error:  # a tier is anybody's; its other events must go out
                unsaid.note("unreadable", error)
        shares.append(made)
    return shares


def translate(event: Said, *, tier: int, descriptions: Descriptions) -> list[Event]:
    """One event of the tier of this number (0: the primary) as it goes on the wire.

    The primary always says what it gives up; of others ``removal_expected`` tells. A removal names the same
    hashes as that tier's store did. Raises ``ValueError`` for what is no key and for what msgpack cannot
    carry, and whatever reading the event raises; then nothing is noted of it.
    """
    keys, emit_seq = _keys_of(event), _number_of(event)
    medium, locality, ownership = plain(event.medium), plain(event.locality), plain(event.ownership)
    reason = plain(event.reason)
    if not event.removed:
        lasting = tier == 0 or bool(event.removal_expected)
        return [
            replace(alike, medium=medium, locality=locality, ownership=ownership, emit_seq=emit_seq)
            for alike in descriptions.stored(keys, tier=tier, lasting=lasting)
        ]
    return [
        BlockRemoved(
            hashes,
            medium=medium,
            group_idx=group_idx,
            locality=locality,
            ownership=ownership,
            emit_seq=emit_seq,
            reason=reason,
        )
        for group_idx, hashes in _let_go(keys, tier, descriptions).items()
    ]


def _let_go(keys: Iterable[OffloadKey], tier: int, descriptions: Descriptions) -> dict[int, list[int]]:
    by_group: dict[int, list[int]] = {}
    for key in keys:
        hashes = descriptions.removed(key, tier=tier)
        by_group.setdefault(get_offload_group_idx(key), []).extend(hashes)
    return by_group


def _keys_of(event: Said) -> list[OffloadKey]:
    keys = list(event.keys)
    for key in keys:
        if not is_offload_key(key):
            raise ValueError(f"{key!r} is not a key: a block hash and a group")
    return keys


def _number_of(event: Said) -> int | None:
    if event.emit_seq is not None and not is_emit_seq(event.emit_seq):
        raise ValueError(f"emit_seq {event.emit_seq!r}")
    return event.emit_seq


def is_emit_seq(number: object) -> TypeGuard[int]:
    """Whether this can be an ``emit_seq``: 0 … ``EMIT_SEQ_MAX``, and an int proper, or msgpack refuses it."""
    return type(number) is int and 0 <= number <= EMIT_SEQ_MAX


def plain(name: object) -> str | None:
    """The word itself, of a member of anybody's enum too. Raises ``ValueError`` for half a character."""
    if name is None:
        return None
    word = str(name.value if isinstance(name, Enum) else name)
    if type(word) is not str:  # some __str__ gives kin of str's, which msgpack refuses
        word = str.__str__(word)
    if not word.isascii():
        word.encode()  # UnicodeEncodeError is a ValueError
    return word
