"""A block's life as lines: for people one each, for machines one object each. Forms only."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from cli.format import hex_hash, plain
from cli.render import Paint, stream_name
from kvbus.log import SourceId
from kvbus.rules.words import tier

if TYPE_CHECKING:
    from kvbus.life import Step

At = Annotated[
    str | None,
    typer.Option("--at", metavar="POSITION|TIME", help="As it was after this position, or at this time."),
]
HashArgument = Annotated[
    str,
    typer.Argument(metavar="HASH", help="A block's hash, or how it begins: hex, decimal, signed."),
]

STYLES: Final = {
    "stored": "BlockStored",
    "removed": "BlockRemoved",
    "cleared": "AllBlocksCleared",
    "restarted": "AllBlocksCleared",
    "missed": "Undecodable",
}


def source_object(source: SourceId) -> dict[str, Any]:
    """The keys by which a stream is known."""
    return {
        "source": source.source,
        "topic": source.topic_text,
        "rank": source.said_rank,
        "instance": source.instance,
    }


def step_object(step: Step) -> dict[str, Any]:
    """The object that stands for a step in ``--json``."""
    said = msgspec.structs.asdict(step)
    return {**source_object(said.pop("source")), **said}


def step_line(step: Step, paint: Paint) -> str:
    """Position, time, stream, what happened where, and what is to be said of it."""
    said = [paint(STYLES[step.what], f"{step.what:<9}"), "" if step.medium is None else where(step)]
    if step.copies is not None:
        said.append(copies(step.copies))
    said += [plain(word) for word in (step.reason, step.note) if word]
    head = paint("dim", f"{step.position:>8} {clock(step.received_ns)} {spot(step)}")
    return f"{head} {' '.join(filter(None, said))}"


def where(step: Step) -> str:
    return plain(tier(step.medium or "", step.group))


def copies(count: int) -> str:
    return "gone" if count == 0 else "1 copy" if count == 1 else f"{count} copies"


def spot(step: Step) -> str:
    """Which event of which batch of which stream, as ``tail`` names streams."""
    text = stream_name(step.source)
    if step.seq is not None:
        text += f" #{step.seq}" + (f".{step.event}" if step.event is not None else "")
    return text + (f"/{step.epoch}" if step.epoch else "")


def clock(received_ns: int | None) -> str:
    """The local time of day, ms; blank where there is none."""
    if received_ns is None:
        return " " * 12
    seconds, rest = divmod(received_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S.") + f"{rest // 1_000_000:03d}"


def hash_object(block: int) -> dict[str, Any]:
    """A hash both ways: numbers beyond 2**53 do not survive every JSON reader."""
    return {"hash": block, "hex": hex_hash(block)}
