"""``kvbus run --what-if``: hit rates under other sizes and policies, as lines, a table, or curves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from cli.amounts import share
from cli.axes import Axes, Value, axes_of, runs_of, value_of
from cli.exits import pipe_may_close
from cli.format import plain
from cli.json_line import json_line
from cli.render import say
from cli.run_flags import RunPlan
from cli.stat import terminal
from cli.status import status_line
from kvbus.config import Settings
from tiers.serving.stack_spec import StackSpec
from tiers.serving.what_if import what_if_each
from tiers.serving.workload import RunCount

if TYPE_CHECKING:
    from rich.table import Table

Found = tuple[StackSpec, RunCount]


def explore(plan: RunPlan, given: Settings) -> None:
    """Try every combination, and show what came of it: JSON lines as they come, else a table at the end."""
    assert plan.axes is not None
    axes, plot = plan.axes, plan.options.plot
    if plot is not None:
        from cli.curves import draw, the_figure

        the_figure()  # before minutes of work, not after
    runs = runs_of(axes, plan.stack)
    prompts = plan.options.prompts()
    processes = min(os.cpu_count() or 1, len(runs))
    found: list[Found] = []
    with (
        pipe_may_close(),
        status_line(quiet=given.quiet) as show,
        closing(what_if_each(runs, prompts, processes=processes)) as outcomes,
    ):
        for spec, count in outcomes:
            found.append((spec, count))
            show(lambda: f"{len(found)} of {len(runs)} runs")
            if given.json:
                sys.stdout.write(line(spec, count))
                sys.stdout.flush()
        if not given.json:
            console = terminal()
            with console.capture() as shown:
                console.print(table(axes, found))
            sys.stdout.write(shown.get())
    if plot is not None:
        draw(axes, found, plot)
        if not given.quiet:
            say(f"drew {plain(str(plot))}")


def line(spec: StackSpec, count: RunCount) -> str:
    """A run as a JSON object: its sizes under the names of the axes, then what was hit."""
    sizes = {axis: value_of(spec, axis) for axis in axes_of([tier.name for tier in spec.behind])}
    hits = dict(zip(spec.names, count.hits, strict=True))
    said = {**sizes, **msgspec.structs.asdict(count), "hit_rate": count.hit_rate, "hits": hits}
    return json_line(said)


def table(axes: Axes, found: Iterable[Found]) -> Table:
    """A row a run: its values on the axes, the share of hits, and each tier's part in it."""
    from rich.table import Table

    made: Table | None = None
    for spec, count in found:
        if made is None:
            made = Table(*axes)
            for column in ("hit rate", *spec.names):
                made.add_column(column, justify="right")
        values = (shown(value_of(spec, axis)) for axis in axes)
        shares = (share(hits, count.block_refs) for hits in (count.all_hits, *count.hits))
        made.add_row(*values, *shares)
    return made or Table()


def shown(value: Value | None) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
