"""How far a run is: a bar on a terminal; and everywhere, at once, which blocks were wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cli.amounts import share
from cli.render import say, wants_colour

if TYPE_CHECKING:
    from tiers.serving.prompt import Prompt
    from tiers.serving.served import Served
    from tiers.serving.workload import OnServed, RunCount

NAMED_MAX: Final = 10
"""Blocks that were wrong and are named; the others are counted."""


@contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[OnServed]:
    """What to call for each request served: moves a bar on a terminal, and names wrong blocks anywhere."""
    wrong = Wrong()
    if quiet or not sys.stderr.isatty():
        yield lambda prompt, served, _: wrong.name(prompt, served)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, no_color=not wants_colour(sys.stderr))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("requests", total=total)

        def note(prompt: Prompt, served: Served, so_far: RunCount) -> None:
            wrong.name(prompt, served)
            rate = share(so_far.all_hits, so_far.block_refs)
            bar.update(task, completed=so_far.requests, description=f"hit rate {rate}")

        yield note


class Wrong:
    """Says which blocks were not what had been stored: the first few of them by name."""

    def __init__(self) -> None:
        self._named = 0

    def name(self, prompt: Prompt, served: Served) -> None:
        for key in served.mismatches:
            self._named += 1
            if self._named <= NAMED_MAX:
                say(f"{prompt.req_id}: block {key.hex()} is not what was stored")
