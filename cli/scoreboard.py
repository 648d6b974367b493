"""What a run came to, for people: who had what, how fast it moved, and what was not as it should be.

Two tables, each narrow enough for a terminal of 80 columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cli.amounts import share, size_of
from cli.format import plain

if TYPE_CHECKING:
    from rich.table import Table

    from tiers.serving.tally import Tally
    from tiers.transfer_times import TransferTimes

    Times = Mapping[str, Mapping[str, TransferTimes]]

SENTENCES: Final = {
    "blocks_beyond_gpu": "{} blocks of prompts longer than the GPU were not served: misses",
    "stores_given_up": "{} blocks found no room in the CPU tier",
    "load_failures": "{} loads failed; their blocks were computed instead",
    "store_failures": "{} stores failed; their blocks are in no tier behind the GPU",
}
TIER_FAILURE: Final = re.compile(r"\d+:(?P<tier>[^.]+)\.(?P<what>\w+)_failures\.(?P<why>.+)")
"""How a composing manager names what a tier behind counts of its failures, each with its reason."""

COPY_TROUBLE: Final = re.compile(
    r"(?P<what>promotion_failures|cascade_failures|blocks_dropped)\.\d+:(?P<tier>[^.]+)\.(?P<why>.+)"
)
"""How it names what it counts itself, whatever the tier counts: jobs that failed, blocks refused."""

COPY_SENTENCES: Final = {
    "promotion_failures": "{} jobs out of it failed",
    "cascade_failures": "{} jobs into it failed",
    "blocks_dropped": "{} blocks not offered to it",
}


def blocks(tally: Tally) -> Table:
    """A row a tier: what it supplied, took in, gave up, and said."""
    from rich.table import Table

    table = Table("tier", "medium", title="blocks", title_justify="left")
    for column in ("hits", "hit rate", "stores", "evictions", "events"):
        table.add_column(column, justify="right")
    for tier in tally.tiers:
        counts = (f"{count:,}" for count in (tier.stores, tier.evictions, tier.events))
        rate = share(tier.hits, tally.block_refs)
        table.add_row(plain(tier.tier), tier.medium, f"{tier.hits:,}", rate, *counts)
    table.add_row("(misses)", "", f"{tally.misses:,}", share(tally.misses, tally.block_refs))
    return table


def transfers(tally: Tally, times: Times) -> Table:
    """Two rows a tier, into it and out of it. ``times``: by the tier's name, then ``store`` and ``load``."""
    from rich.table import Table

    table = Table("tier", "", title="transfers", title_justify="left")
    for column in ("bytes", "GB/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for tier in tally.tiers:
        known = times.get(tier.tier, {})
        for way, kind, num_bytes in (("in", "store", tier.bytes_stored), ("out", "load", tier.bytes_loaded)):
            timed = speed(known[kind]) if kind in known else ()
            if num_bytes:
                table.add_row(plain(tier.tier), way, size_of(num_bytes), *timed)
    return table


def speed(times: TransferTimes) -> tuple[str, str, str]:
    """Bytes a second while any transfer was under way; how long half, and 99 in 100, of the recent took at
    most.
    """
    if not times.seconds:
        return ("", "", "")
    half, most = times.quantile(0.5) or 0.0, times.quantile(0.99) or 0.0
    return (f"{times.bytes / times.seconds / 1e9:.3g}", f"{1e3 * half:.2f}", f"{1e3 * most:.2f}")


def trouble(stats: Mapping[str, float]) -> list[str]:
    """What of the counters of an engine and its manager a person should know, a sentence each."""
    lines = [
        sentence.format(f"{int(stats[name]):,}") for name, sentence in SENTENCES.items() if stats.get(name, 0)
    ]
    for name, count in stats.items():
        if count and (of_tier := TIER_FAILURE.fullmatch(name)):
            what = f"{int(count):,} {of_tier['what']} failures"
        elif count and (of_tier := COPY_TROUBLE.fullmatch(name)):
            what = COPY_SENTENCES[of_tier["what"]].format(f"{int(count):,}")
        else:
            continue
        lines.append(plain(f"{of_tier['tier']}: {what}: {of_tier['why']}"))
    return lines
