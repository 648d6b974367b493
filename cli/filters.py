"""Which events to show: by kind, medium, rank and hash prefix. All must agree; within one, any will do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from msgspec import Struct

from cli.format import events_of, hashes_of, hex_hash, kind_of, medium_of
from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared, Event
from kvbus.log import Received, SourceId

Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help="stored, removed, cleared, or a tag; may be repeated."),
]
Media = Annotated[
    list[str] | None,
    typer.Option(
        "--medium", metavar="MEDIUM", help="GPU, CPU, STORAGE …; may be repeated. A clear is GPU's."
    ),
]
RankFilter = Annotated[
    list[int] | None, typer.Option("--rank", metavar="RANK", help="Data-parallel rank; may be repeated.")
]
Hashes = Annotated[
    list[str] | None,
    typer.Option(
        "--hash", metavar="PREFIX", help="Block hash or how it begins, hex (0x…) or decimal; may be repeated."
    ),
]

SHORT_KINDS = {"stored": "blockstored", "removed": "blockremoved", "cleared": "allblockscleared"}


class Filters(Struct, frozen=True):
    """Kinds in lower case, media in upper; empty: everything passes."""

    kinds: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    hex_prefixes: tuple[str, ...] = ()
    decimal_prefixes: tuple[str, ...] = ()

    @property
    def selects_events(self) -> bool:
        """Whether some events of a batch may pass and others not."""
        return bool(self.kinds or self.media or self.hex_prefixes)

    def admit_source(self, source: SourceId) -> bool:
        return not self.ranks or source.rank in self.ranks

    def admit(self, event: Event) -> bool:
        """Whether an event passes, whatever stream it is in."""
        if self.kinds and kind_of(event).lower() not in self.kinds:
            return False
        if self.media:
            medium = "GPU" if isinstance(event, AllBlocksCleared) else medium_of(event)
            if medium not in self.media:
                return False
        return not self.hex_prefixes or any(map(self._admit_hash, hashes_of(event)))

    def events(self, received: Received) -> Iterator[tuple[int, Event]]:
        """The events of a batch that pass, with their index."""
        if not self.admit_source(received.source):
            return iter(())
        found = events_of(received)
        return ((i, e) for i, e in found if self.admit(e)) if self.selects_events else found

    def _admit_hash(self, block_hash: int) -> bool:
        return hex_hash(block_hash).startswith(self.hex_prefixes) or (
            bool(self.decimal_prefixes) and str(block_hash).startswith(self.decimal_prefixes)
        )


def filters(
    kinds: Sequence[str] | None,
    media: Sequence[str] | None,
    ranks: Sequence[int] | None,
    hashes: Sequence[str] | None,
) -> Filters:
    """Filters from flags. Raises ``ConfigError`` for a hash that is none."""
    lowered = [kind.lower() for kind in kinds or ()]
    hexes = [_hex_prefix(text) for text in hashes or ()]
    return Filters(
        kinds=frozenset(SHORT_KINDS.get(kind, kind) for kind in lowered),
        media=frozenset(medium.upper() for medium in media or ()),
        ranks=frozenset(ranks or ()),
        hex_prefixes=tuple(hexes),
        decimal_prefixes=tuple(text for text in hashes or () if text.isdecimal()),
    )


def _hex_prefix(text: str) -> str:
    digits = text.lower().removeprefix("0x")
    if not digits or digits.strip("0123456789abcdef") or (len(digits) > 16 and not text.isdecimal()):
        raise ConfigError(
            f"--hash {text!r} is not a block hash or the beginning of one",
            next_step="Give up to 16 hexadecimal digits, with or without 0x, or decimal digits.",
        )
    return digits
