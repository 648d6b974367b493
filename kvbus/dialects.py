"""Bytes to facts and back: every generation of KV-cache events that an engine has put on the wire.

A stream speaks one *dialect* at a time. A ``DialectReader`` finds out which, remembers it, notices a
change:

- ``map``: maps tagged by ``type``, unsigned hashes, keys we know (vLLM 0.24 …, Dynamo's shims, kvbus
  itself). One compiled decode straight into the public structs.
- ``map-mixed-hashes``: signed or bytes hashes among them (SGLang 0.5.20 …, TensorRT-LLM, vLLM told to send
  bytes).
- ``map-new-keys``: keys this kvbus does not know (an engine newer than it, Mooncake), learned from the
  stream.
- ``array``: positional events (vLLM 0.9 … 0.23, SGLang 0.4.6 … 0.5.19).
- ``array-mixed-hashes``: with signed or bytes hashes (SGLang; CPU events of vLLM 0.11 … 0.21).
- ``tolerant``: anything else, event by event: a batch that is itself a map, unknown tags, longer arrays,
  bad events.
- ``unreadable``: no batch at all; ``read`` answered with an ``Undecodable``.

It refuses to guess and it refuses to raise: what cannot be read is a value that says why and keeps its
bytes. Fields that stay raw (token ids, extra keys) are carried, not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import DecodeError, Raw
from msgspec.structs import replace

from kvbus.compiled import ARRAY, ARRAY_MIXED, MAP, MAP_MIXED, map_dialect
from kvbus.errors import EncodeError
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    KnownEvent,
    Undecodable,
    Unrecognized,
)
from kvbus.tolerant import read_event, read_parts, why
from kvbus.unread import is_one_value

PAYLOAD_BYTES_MAX: Final = 64 << 20
"""Longer payloads are not read: a hostile one can need about a hundred times its size in memory."""
NEW_KEYS_MAX: Final = 32
"""Most unknown keys a reader learns. A stream with more of them is read all the same, only slower."""
PLAIN: Final = frozenset({BlockStored, BlockRemoved, AllBlocksCleared})
PLAIN_RUN: Final = 64
"""Batches in a row that need nothing of their dialect before the plainer ones are tried first again."""
MILLISECONDS_FROM: Final = 1e11
"""A larger ``ts`` counts milliseconds (Mooncake): as seconds it would be past the year 5138."""
NEW_KEYS: Final = "map-new-keys"


class DialectReader:
    """Reads the payloads of one source, one after the other. Not for two threads at once.

    ``dialect`` names how the last payload was read (the list above; empty before the first).
    """

    def __init__(self) -> None:
        self.dialect = ""
        self._dialects = [MAP, MAP_MIXED, ARRAY, ARRAY_MIXED]
        self._new_keys: frozenset[tuple[str, str]] = frozenset()
        self._plain_run = 0

    def read(self, payload: bytes) -> EventBatch | Undecodable:
        """What one message says. Never raises for what the payload holds.

        An ``EventBatch`` may hold ``Unrecognized`` and ``Undecodable`` events in their places; an
        ``Undecodable`` instead of a batch means that not even its events could be told apart.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            return self._unreadable(f"{len(payload)} bytes; kvbus reads {PAYLOAD_BYTES_MAX}", payload)
        for place, dialect in enumerate(self._dialects):
            try:
                found = dialect.batch.decode(payload)
                events, unknown, special = dialect.facts(found.events)
            except (DecodeError, RecursionError):
                continue
            self.dialect = dialect.name
            if place or not special or self._plain_run:
                self._remember(place, special=special)
            ts = found.ts
            if not -MILLISECONDS_FROM <= ts <= MILLISECONDS_FROM and (ts := _seconds(ts)) is None:
                return self._unreadable(f"ts: {found.ts} is not a time", payload)
            return EventBatch(ts, events, found.data_parallel_rank, unknown)
        return self._tolerant(payload)

    def _tolerant(self, payload: bytes) -> EventBatch | Undecodable:
        try:
            parts = read_parts(payload)
        except (DecodeError, RecursionError) as error:
            return self._unreadable(why(error), payload)
        if (ts := _seconds(parts.ts)) is None:
            return self._unreadable(f"ts: {parts.ts} is not a time", payload)
        maps = map_dialect(NEW_KEYS, self._new_keys) if self._new_keys else MAP_MIXED
        events = [read_event(raw, maps) for raw in parts.events]
        known = [event for event in events if isinstance(event, KnownEvent)]
        extras = [(type(event).__name__, event.extra) for event in known if event.extra]
        self._learn({(tag, key) for tag, extra in extras for key in extra})
        self.dialect = "tolerant"
        return EventBatch(ts, events, parts.rank, parts.unknown + sum(len(extra) for _, extra in extras))

    def _learn(self, keys: set[tuple[str, str]]) -> None:
        """Compile a dialect that takes these keys too, so that a newer engine is not read slowly for ever."""
        new = {(tag, key) for tag, key in keys if len(key) <= 64 and key.isidentifier()} - self._new_keys
        if new and len(self._new_keys) + len(new) <= NEW_KEYS_MAX:
            self._new_keys |= new
            others = [dialect for dialect in self._dialects if dialect.name != NEW_KEYS]
            self._dialects = [map_dialect(NEW_KEYS, self._new_keys), *others]
            self._plain_run = 0

    def _remember(self, place: int, *, special: bool) -> None:
        """Try first what worked last; the plain dialects again when nothing else was needed for long."""
        dialects = self._dialects
        if place:
            dialects.insert(0, dialects.pop(place))
            self._plain_run = 0
        elif special:
            self._plain_run = 0
        else:
            self._plain_run += 1
            if self._plain_run >= PLAIN_RUN:
                dialects.sort(key=lambda dialect: dialect.name not in ("map", "array"))
                self._plain_run = 0

    def _unreadable(self, because: str, payload: bytes) -> Undecodable:
        self.dialect = "unreadable"
        return Undecodable(because, Raw(payload))


def _seconds(ts: float) -> float | None:
    """``ts`` in seconds; None for what is no time: not finite, or too large in milliseconds too."""
    if ts > MILLISECONDS_FROM:
        ts /= 1000
    return ts if -MILLISECONDS_FROM <= ts <= MILLISECONDS_FROM else None


# ---- encoding ----------------------------------------------------------------------------------------------

Form = Literal["map", "array"]
_ENCODE: Final = msgspec.msgpack.Encoder().encode


def encode(events: Sequence[Event], *, ts: float, rank: int | None = None, form: Form = "map") -> bytes:
    """One batch as vLLM sends it: an array of ``ts`` (seconds), events and rank.

    ``map`` is the form since vLLM 0.24, key for key (byte for byte what 0.33 sends; before it, the header
    of a BlockStored was two bytes shorter): fields that vLLM always sends are always there, later ones where
    they are set, ``extra`` goes back among the keys. ``array`` is the last positional form (0.22 … 0.23),
    which has no place for ``cache_salt``, ``locality`` and what came later, nor for ``extra``: they are left
    out. ``Unrecognized`` and ``Undecodable`` events go out as the bytes they came in. Raw fields are taken
    as they are.

    Raises ``EncodeError``.
    """
    try:
        if not -MILLISECONDS_FROM <= ts <= MILLISECONDS_FROM:
            raise ValueError(f"ts {ts} is not a time in seconds")
        if rank is not None and not 0 <= rank < 1 << 31:
            raise ValueError(f"rank {rank} is not in 0 … 2**31 - 1")
        if form == "map":
            # Asking for the type by name: a union in isinstance takes longer than encoding the event.
            ready = [one if type(one) in PLAIN and one.extra is None else _as_map(one) for one in events]  # type: ignore[union-attr]
            return _ENCODE((float(ts), ready, rank))
        if form == "array":
            return _ENCODE((float(ts), [_as_array(one) for one in events], rank))
        raise ValueError(f"no form {form!r}")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(
            f"this batch cannot be encoded: {error}",
            next_step="Mend or leave out the event; hashes are 0 … 2**64 - 1, forms are map and array.",
        ) from error


def _as_map(event: Event) -> Raw:
    if not isinstance(event, KnownEvent):
        return _as_it_came(event)
    extra = event.extra or {}
    fields = msgspec.msgpack.decode(_ENCODE(replace(event, extra=None)), type=dict[str, Raw])
    if taken := extra.keys() & {"type", *event.__struct_encode_fields__}:
        raise ValueError(f"extra holds {sorted(taken)}, which {type(event).__name__} has itself")
    return Raw(_ENCODE(fields | extra))


def _as_array(event: Event) -> Any:
    match event:
        case BlockStored():
            known = [getattr(event, name) for name in ARRAY_FIELDS]
            return ["BlockStored", *known]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, event.medium, event.group_idx]
        case AllBlocksCleared():
            return ["AllBlocksCleared"]
    return _as_it_came(event)


ARRAY_FIELDS: Final = BlockStored.__struct_fields__[:11]


def _as_it_came(event: Event) -> Raw:
    if not isinstance(event, Unrecognized | Undecodable):
        raise TypeError(f"{type(event).__name__} is not an event")
    if not is_one_value(bytes(event.raw)):
        raise ValueError("the bytes of an event that are not one msgpack value")
    return event.raw
