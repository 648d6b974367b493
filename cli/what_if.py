"""``kvbus run --what-if``: hit rates under other sizes and policies, as lines, a table, or curves."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from cli.axes import Axes, Value, runs_of, value_of
from cli.exits import pipe_may_close
from cli.render import say
from cli.run_flags import RunFlags, prompts_of
from cli.scoreboard import share
from cli.stat import terminal
from cli.status import status_line
from kvbus.config import Settings
from tiers.what_if import Sizes, what_if_each
from tiers.workload import Count

if TYPE_CHECKING:
    from rich.table import Table

Found = tuple[Sizes, Count]


def explore(flags: RunFlags, given: Settings) -> None:
    """Try every combination, and show what came of it: JSON lines as they come, else a table at the end."""
    assert flags.axes is not None
    axes = flags.axes
    if flags.plot is not None:
        from cli.curves import draw, the_pyplot

        the_pyplot()  # before minutes of work, not after
    runs = runs_of(axes, flags.sizes())
    stack = flags.stack
    source = functools.partial(prompts_of, flags.trace, flags.seed, flags.limit, stack.block_tokens)
    processes = min(os.cpu_count() or 1, len(runs))
    found: list[Found] = []
    with pipe_may_close(), status_line(quiet=given.quiet) as show:
        for sizes, count in what_if_each(runs, source, processes=processes):
            found.append((sizes, count))
            show(lambda: f"{len(found)} of {len(runs)} runs")
            if given.json:
                sys.stdout.write(line(sizes, count) + "\n")
                sys.stdout.flush()
        if not given.json:
            console = terminal()
            with console.capture() as shown:
                console.print(table(axes, found))
            sys.stdout.write(shown.get())
    if flags.plot is not None:
        draw(axes, found, flags.plot)
        if not given.quiet:
            say(f"drew {flags.plot}")


def line(sizes: Sizes, count: Count) -> str:
    """A run as a JSON object: its sizes under the names of the axes, then what was hit."""
    said = {
        "gpu-blocks": sizes.gpu_blocks,
        "cpu.blocks": sizes.cpu_blocks,
        "policy": sizes.policy,
        **{f"{name}.max_blocks": most for name, most in sizes.behind},
        "requests": count.requests,
        "block_refs": count.block_refs,
        "misses": count.misses,
        "hit_rate": hit_rate(count),
        "hits": dict(zip(sizes.names, count.hits, strict=True)),
    }
    return msgspec.json.encode(said).decode()


def hit_rate(count: Count) -> float:
    """Of all block references; 0 where there are none."""
    return sum(count.hits) / count.block_refs if count.block_refs else 0.0


def table(axes: Axes, found: Iterable[Found]) -> Table:
    """A row a run: its values on the axes, the share of hits, and each tier's part in it."""
    from rich.table import Table

    made: Table | None = None
    for sizes, count in found:
        if made is None:
            made = Table(*axes)
            for column in ("hit rate", *sizes.names):
                made.add_column(column, justify="right")
        values = (shown(value_of(sizes, axis)) for axis in axes)
        shares = (share(hits, count.block_refs) for hits in (sum(count.hits), *count.hits))
        made.add_row(*values, *shares)
    return made or Table()


def shown(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else value
