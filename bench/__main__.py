"""`make bench`: what kvbus costs, next to what it wants to beat and what it cannot.

    make bench                          # everything, a minute or two
    make bench BENCH='decode record --json'

Figures are medians of rounds taken in turn with what they are compared to. They describe the machine they
were taken on; ratios travel better. Nothing passes or fails here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import msgspec
from rich.console import Console

from bench.audit import auditing
from bench.decode import decode
from bench.figures import Section, machine, show
from bench.filesystem import filesystem
from bench.latency import latency
from bench.publisher import publisher
from bench.record import recording
from bench.run import run
from bench.stream import Stream, load
from bench.tiers import tiers
from bench.transfer import transfer


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints, one object."""

    stream: str
    machine: dict[str, str]
    sections: list[Section]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help="decode, publisher, record, latency, tiers, filesystem, transfer, run, audit; default: all",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    stream = load()
    parts: dict[str, Callable[[], Section]] = {
        "decode": lambda: decode(stream, rounds=args.rounds),
        "publisher": lambda: publisher(stream, rounds=args.rounds),
        "record": lambda: recording(stream, rounds=args.rounds, batches=33_000),
        "latency": lambda: latency(stream, batches=6000),
        "tiers": lambda: tiers(rounds=args.rounds),
        "filesystem": lambda: filesystem(rounds=args.rounds),
        "transfer": lambda: transfer(rounds=args.rounds),
        "run": lambda: run(rounds=args.rounds),
        "audit": lambda: auditing(stream, rounds=args.rounds, batches=33_000),
    }
    if unknown := sorted(set(args.parts) - parts.keys()):
        parser.error(f"no such part: {', '.join(unknown)}")
    facts = machine()
    console = Console(stderr=args.json, width=None if args.json else 120)
    console.print(f"[bold]{named(stream)}[/bold]", highlight=False)
    console.print(
        " · ".join(f"{name} {value}" for name, value in facts.items()), style="dim", highlight=False
    )
    sections = []
    for name in args.parts or parts:
        console.print(f"\nmeasuring {name} …", style="dim")
        sections.append(parts[name]())
        show(sections[-1], console=console)
    if args.json:
        print(msgspec.json.encode(Report(named(stream), facts, sections)).decode())


def named(stream: Stream) -> str:
    per_batch = stream.events / len(stream.batches)
    size = stream.bytes / len(stream.batches)
    return f"{stream.name}: {len(stream.batches)} batches of {per_batch:.1f} events and {size:.0f} bytes"


if __name__ == "__main__":
    main()
