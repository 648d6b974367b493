"""How entries look to people: a line an event, and what is said about the rest.

Data goes to stdout, everything said about it to stderr. Colour only where a terminal is, and never under
``NO_COLOR``. Text that came over the network is shown so that it cannot steer a terminal. Written by hand
rather than through rich where events pass by the thousand a second; the styles are rich's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Final, TextIO

from cli.format import Cell, Shown, kind_of, plain
from kvbus.events import BlockRemoved, BlockStored, Event, Undecodable, canonical_medium, token_count
from kvbus.log import LOSS_REASONS, STRAY_REASONS, EpochBegan, Loss, Received, SourceId, Stray

HASHES_SHOWN: Final = 2
STYLES: Final = {
    "BlockStored": "green",
    "BlockRemoved": "red",
    "AllBlocksCleared": "bold magenta",
    "Undecodable": "bold red",
    "dim": "dim",
}

BEGINNINGS: Final = {
    "first_sight": "first seen",
    "incarnation": "the publisher says it is another process",
    "content": "the same number has other bytes in its replay",
    "replay_empty": "its replay no longer has the last batch heard",
    "seq": "numbers went back and its clock went on",
}

Paint = Callable[[str, str], str]
"""(style name, text) -> the text, coloured or not."""


def wants_colour(stream: TextIO) -> bool:
    """A terminal that is not dumb, and no ``NO_COLOR`` (no-color.org); ``FORCE_COLOR`` says yes elsewhere."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def painter(stream: TextIO) -> Paint:
    """How to colour text for ``stream``."""
    if not wants_colour(stream):
        return lambda _, text: text
    from rich.color import ColorSystem
    from rich.style import Style

    around = {
        name: Style.parse(style).render("|", color_system=ColorSystem.STANDARD).split("|")
        for name, style in STYLES.items()
    }
    return lambda style, text: around[style][0] + text + around[style][1] if style in around else text


def stream_name(source: SourceId) -> str:
    """A stream in few letters: no ``tcp://``, and only the parts that it has."""
    text = plain(source.source.removeprefix("tcp://"))
    if source.topic:
        text += " " + plain(source.topic.decode("utf-8", "backslashreplace"))
    if source.rank >= 0:
        text += f" r{source.rank}"
    return text + (f" ·{source.instance}" if source.instance else "")


def human_line(paint: Paint) -> Cell:
    """A cell that renders an event as a line: time, stream, seq, kind, medium, blocks, hashes, tokens.

    What the events of a batch have in common is rendered once, for the batch before.
    """
    last: Received | None = None
    head = ""
    kinds = {name: paint(name, f"{name:<12}") for name in STYLES}

    def line(shown: Shown) -> str:
        nonlocal last, head
        if shown.batch is not last:
            last = shown.batch
            head = paint("dim", _head(last))
        kind = kind_of(shown.event)
        return f"{head} {kinds.get(kind, kind)} {_details(shown.event)}".rstrip() + "\n"

    return line


def _head(received: Received) -> str:
    epoch = f"/{received.epoch}" if received.epoch else ""
    return f"{_clock(received.received_ns)} {stream_name(received.source)} #{received.seq}{epoch}"


def _details(event: Event) -> str:
    if isinstance(event, Undecodable):
        return f"{len(event.raw)} bytes: {plain(event.why)}"
    if not isinstance(event, BlockStored | BlockRemoved):
        return ""
    hashes = event.block_hashes
    text = f"{_medium(event.medium)} {len(hashes):>3} blk "
    text += ",".join([f"{block_hash >> 32:08x}" for block_hash in hashes[:HASHES_SHOWN]])
    if len(hashes) > HASHES_SHOWN:
        text += "…"
    if isinstance(event, BlockStored):
        if event.parent_block_hash is not None:
            text += f" ← {event.parent_block_hash >> 32:08x}"
        text += f" {token_count(event.token_ids)} tok"
    elif event.reason is not None:
        text += f" {plain(event.reason)}"
    return f"{text} g{event.group_idx}" if event.group_idx else text


@lru_cache(maxsize=256)
def _medium(medium: str | None) -> str:
    return f"{plain(canonical_medium(medium)):<7}"


def _clock(received_ns: int) -> str:
    seconds, rest = divmod(received_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S.") + f"{rest // 1_000_000:03d}"


def notice_text(entry: Loss | Stray | EpochBegan) -> str:
    """What a person should know of an entry that is no batch."""
    stream = stream_name(entry.source)
    if isinstance(entry, Loss):
        many = entry.last_seq - entry.first_seq + 1
        span = (
            f"seq {entry.first_seq}"
            if many == 1
            else f"seq {entry.first_seq} to {entry.last_seq} ({many} batches)"
        )
        return f"lost: {stream} {span}: {LOSS_REASONS.get(entry.reason, entry.reason)}"
    if isinstance(entry, Stray):
        return f"set aside: {stream} seq {entry.seq}: {STRAY_REASONS.get(entry.reason, entry.reason)}"
    return f"epoch {entry.epoch} of {stream}: {BEGINNINGS.get(entry.because, entry.because)}"


def say(text: str) -> None:
    """A notice on stderr. Nobody reading it is no reason to stop."""
    try:
        print(f"kvbus: {text}", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - it replaces a stream for good
