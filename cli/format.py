"""``--format``: a line per event from a template such as ``%t %S %s %k %m %h``.

A template is compiled once into a list of small functions of an event in its batch; no terminal, no
files. An unknown directive is an error, never printed as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec import Struct

from kvbus.errors import ConfigError
from kvbus.events import (
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_medium,
    token_count,
)
from kvbus.log import Received


class Shown(Struct, frozen=True, gc=False):
    """An event to be shown, with its batch and its index there."""

    batch: Received
    index: int
    event: Event


Cell = Callable[[Shown], str]
ABSENT: Final = "-"


def events_of(received: Received) -> Iterator[tuple[int, Event]]:
    """The events of a batch with their index in it; a payload nobody can read is one ``Undecodable``."""
    if isinstance(received.batch, EventBatch):
        yield from enumerate(received.batch.events)
    else:
        yield 0, received.batch


def plain(text: str) -> str:
    """Text from the network as one that cannot move a terminal's cursor or begin a line of its own."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def kind_of(event: Event) -> str:
    """``BlockStored``, ``BlockRemoved``, ``AllBlocksCleared``, ``Undecodable``, or the unknown tag."""
    return plain(event.tag) if isinstance(event, Unrecognized) else type(event).__name__


def medium_of(event: Event) -> str:
    """The canonical medium; ``-`` for what has none."""
    return plain(canonical_medium(event.medium)) if isinstance(event, BlockStored | BlockRemoved) else ABSENT


def topic_of(received: Received) -> str:
    """The topic frame as text."""
    return plain(received.source.topic.decode("utf-8", "backslashreplace"))


def hashes_of(event: Event) -> list[int]:
    """The canonical block hashes; none for what has none."""
    return event.block_hashes if isinstance(event, BlockStored | BlockRemoved) else []


def hex_hash(block_hash: int) -> str:
    """A canonical hash as 16 hexadecimal digits."""
    return f"{block_hash:016x}"


def parent_of(event: Event) -> int | None:
    """The parent's canonical hash, if the event names one."""
    return event.parent_block_hash if isinstance(event, BlockStored) else None


def tokens_of(event: Event) -> int:
    """How many tokens the event carries."""
    return token_count(event.token_ids) if isinstance(event, BlockStored) else 0


@lru_cache(maxsize=64)
def utc(received_ns: int) -> str:
    """A wall-clock time as ISO 8601 in UTC, to the microsecond."""
    seconds, rest = divmod(received_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{rest // 1000:06d}Z"


def _raw_medium(event: Event) -> str:
    if isinstance(event, BlockStored | BlockRemoved) and event.medium is not None:
        return plain(event.medium)
    return ABSENT


def _group(event: Event) -> str:
    group = event.group_idx if isinstance(event, BlockStored | BlockRemoved) else None
    return ABSENT if group is None else str(group)


def _parent(event: Event) -> str:
    parent = parent_of(event)
    return ABSENT if parent is None else hex_hash(parent)


def _block_size(event: Event) -> str:
    size = event.block_size if isinstance(event, BlockStored) else None
    return ABSENT if size is None else str(size)


def _ts(received: Received) -> str:
    return f"{received.batch.ts:.6f}" if isinstance(received.batch, EventBatch) else ABSENT


def _reason(event: Event) -> str:
    if isinstance(event, Undecodable):
        return plain(event.why)
    return plain((event.reason if isinstance(event, BlockRemoved) else None) or ABSENT)


DIRECTIVES: Final[dict[str, tuple[str, Cell]]] = {
    "t": ("time received, ISO 8601, UTC", lambda x: utc(x.batch.received_ns)),
    "u": ("the publisher's own time (ts), seconds since 1970", lambda x: _ts(x.batch)),
    "S": ("source", lambda x: plain(x.batch.source.source)),
    "T": ("topic", lambda x: topic_of(x.batch)),
    "r": ("data-parallel rank", lambda x: ABSENT if x.batch.source.rank < 0 else str(x.batch.source.rank)),
    "I": (
        "instance, where several publishers share source, topic and rank",
        lambda x: str(x.batch.source.instance),
    ),
    "e": ("epoch", lambda x: str(x.batch.epoch)),
    "s": ("seq", lambda x: str(x.batch.seq)),
    "i": ("index of the event in its batch", lambda x: str(x.index)),
    "k": ("kind: BlockStored, BlockRemoved, AllBlocksCleared …", lambda x: kind_of(x.event)),
    "m": ("medium: GPU, CPU, STORAGE …", lambda x: medium_of(x.event)),
    "M": ("medium as the engine wrote it", lambda x: _raw_medium(x.event)),
    "g": ("group", lambda x: _group(x.event)),
    "h": (
        "block hashes, 16 hex digits each, comma between",
        lambda x: ",".join(map(hex_hash, hashes_of(x.event))),
    ),
    "H": ("block hashes in decimal, comma between", lambda x: ",".join(map(str, hashes_of(x.event)))),
    "p": ("parent block's hash, 16 hex digits", lambda x: _parent(x.event)),
    "n": ("number of blocks", lambda x: str(len(hashes_of(x.event)))),
    "b": ("block size in tokens", lambda x: _block_size(x.event)),
    "l": ("number of tokens", lambda x: str(tokens_of(x.event))),
    "w": ("why: reason of a removal, or why it cannot be read", lambda x: _reason(x.event)),
    "d": ("dialect the payload was read as", lambda x: x.batch.dialect),
    "L": ("live or replay: which socket brought it", lambda x: "replay" if x.batch.replayed else "live"),
    "%": ("a percent sign", lambda _: "%"),
}
"""What may follow ``%``: what it gives and how. ``-`` stands for what is absent."""

ESCAPES: Final = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}


def compile_format(template: str) -> Cell:
    """A function that renders an event, newline included. Raises ``ConfigError`` for an unknown directive."""
    cells: list[Cell] = []
    literal = ""
    letters = iter(template)
    for letter in letters:
        if letter not in "%\\":
            literal += letter
            continue
        name = next(letters, "")
        if letter == "\\" and name in ESCAPES:
            literal += ESCAPES[name]
        elif letter == "%" and name in DIRECTIVES:
            cells += [_literal(literal), DIRECTIVES[name][1]]
            literal = ""
        else:
            raise _unknown(template, letter + name)
    cells.append(_literal(literal + "\n"))
    return lambda shown: "".join([cell(shown) for cell in cells])


def _literal(text: str) -> Cell:
    return lambda _: text


def _unknown(template: str, what: str) -> ConfigError:
    known = " ".join("%" + name for name in DIRECTIVES)
    return ConfigError(
        f"--format {template!r} has {what!r}, which is not a directive",
        next_step=f"Known are {known} and \\n \\t \\0 \\\\.",
    )
