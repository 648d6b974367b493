"""Events of managers that were not written for kvbus, as its own: read by their attributes, no import needed.

Three kinds are read: kvbus's own; msgspec structs as engines put them on the wire (vLLM's ``BlockStored`` …,
of any release); and vLLM-style offloading events, which have ``keys`` (or, in early ones, ``block_hashes``),
``medium`` and ``removed``. A key is bytes (block hash and 4 bytes of group, as vLLM's), an int or a string.
What is none of these is refused: a test must not pass because an event was not understood.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec

from kvbus.dialects import DialectReader
from kvbus.errors import KvbusError
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_hash,
    tokens,
)

Key = bytes | int | str
GROUP_BYTES: Final = 4

Named = tuple[int, int | None]
"""A block as events speak of it: canonical hash and group."""


class ForeignEventError(KvbusError):
    """An event, or a key in it, is in no form that kvbus reads."""


class Keys:
    """Which block each key stands for, and what to call it. No two keys stand for one block."""

    def __init__(self) -> None:
        self._of: dict[int, Key] = {}

    def names(self) -> dict[int, str]:
        """What people call the blocks: the text of a key where it is text, else its hexadecimal digits."""
        return {block: _label(key) for block, key in self._of.items()}

    def block(self, key: object, *, grouped: bool = True) -> Named:
        """The block of a key. ``grouped``: bytes end with the group. Raises ``ForeignEventError``."""
        if isinstance(key, bytes) and grouped and len(key) > GROUP_BYTES:
            block, group = key[:-GROUP_BYTES], int.from_bytes(key[-GROUP_BYTES:], "big")
            return self._know(canonical_hash(block), block), group
        if isinstance(key, bytes) and key:
            return self._know(canonical_hash(key), key), None
        if isinstance(key, int) and not isinstance(key, bool) and -(1 << 63) <= key < 1 << 64:
            return self._know(canonical_hash(key), canonical_hash(key)), None
        if isinstance(key, str) and key:
            return self._know(_hash_of_text(key), key), None
        raise ForeignEventError(
            f"{key!r} is no key of a block", next_step="Keys are bytes, 64-bit integers or strings."
        )

    def _know(self, block: int, key: Key) -> int:
        if self._of.setdefault(block, key) != key:
            raise ForeignEventError(
                f"{key!r} and {self._of[block]!r} stand for one block, as their last 8 bytes are equal",
                next_step="Give your blocks hashes that differ in their last 8 bytes.",
            )
        return block


def _hash_of_text(key: str) -> int:
    from kvbus.testing import block

    return block(key)


def _label(key: Key) -> str:
    if isinstance(key, int):
        return f"{key:016x}"
    text = key if isinstance(key, str) else key.decode("ascii", "replace")
    return text if isinstance(key, str) or (text.isprintable() and "\ufffd" not in text) else key.hex()


def read_events(events: Iterable[object], keys: Keys) -> list[Event]:
    """Events in their order; one of several groups becomes one for each. Raises ``ForeignEventError``."""
    if isinstance(events, str | bytes) or not isinstance(events, Iterable):
        raise ForeignEventError(
            f"{events!r} is no list of events", next_step="Put a single event into a list: [event]."
        )
    return [one for event in events for one in _read(event, keys)]


def _read(event: object, keys: Keys) -> Iterable[Event]:
    if isinstance(event, BlockStored | BlockRemoved | AllBlocksCleared | Unrecognized | Undecodable):
        return [event]
    if isinstance(event, msgspec.Struct):
        return _from_the_wire(event)
    if getattr(event, "metadata_only", False):  # vLLM: for the manager's own ears
        return []
    return _offloaded(event, keys)


def _from_the_wire(event: msgspec.Struct) -> list[Event]:
    """As an engine's publisher would have sent it, and a reader read it."""
    batch = DialectReader().read(msgspec.msgpack.encode((0.0, [event], None)))
    if not isinstance(batch, EventBatch) or isinstance(batch.events[0], Undecodable):
        raise ForeignEventError(
            f"{type(event).__name__} is no event of a KV cache",
            next_step="Give it the fields of vLLM's kv_events.py, or hand over offloading events.",
        )
    return batch.events


def _offloaded(event: object, keys: Keys) -> Iterator[Event]:
    old = getattr(event, "block_hashes", None)
    of_event = getattr(event, "keys", old)
    if isinstance(of_event, str | bytes | bytearray | memoryview):
        raise ForeignEventError(
            f"{event!r} has one key where keys are expected", next_step="Put a single key into a list: [key]."
        )
    medium, removed = _text(getattr(event, "medium", None)), getattr(event, "removed", None)
    if not isinstance(of_event, Iterable) or medium is None or not isinstance(removed, bool):
        raise ForeignEventError(
            f"{event!r} has no keys, medium and removed",
            next_step="Hand over what take_events() gives: vLLM-style OffloadingEvents, or kvbus's events.",
        )
    owner, reason = _text(getattr(event, "ownership", None)), _text(getattr(event, "reason", None))
    named = [keys.block(key, grouped=old is None) for key in of_event]
    for group, blocks in groupby(named, key=itemgetter(1)):
        hashes = [block for block, _ in blocks]
        if removed:
            yield BlockRemoved(hashes, medium, group, ownership=owner, reason=reason)
        else:
            ids = tokens([])
            yield BlockStored(hashes, None, ids, 0, medium=medium, group_idx=group, ownership=owner)


def _text(value: object) -> str | None:
    """A string, or an enum's; None for anything else."""
    value = getattr(value, "value", value)
    return value if isinstance(value, str) else None
