"""What a running command says of itself on stderr: a moving line on a terminal, else one now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cli.render import say, wants_colour

EVERY_S: Final = 5.0
"""Between two lines where stderr is no terminal."""


class Rate:
    """Something per second since it was last asked; the first answer is over the whole time so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._count = 0

    def since(self, count: int) -> float:
        now = self._clock()
        rate = (count - self._count) / max(now - self._at, 1e-9)
        self._at, self._count = now, count
        return rate


@contextmanager
def status_line(*, quiet: bool) -> Iterator[Callable[[Callable[[], str]], None]]:
    """A function to call, however often, with what would make the line; made only when it is shown."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        yield _now_and_then()


@contextmanager
def _live() -> Iterator[Callable[[Callable[[], str]], None]]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, no_color=not wants_colour(sys.stderr))
    with Live(Text(""), console=console, refresh_per_second=8, transient=False) as live:
        shown = 0.0

        def show(line: Callable[[], str]) -> None:
            nonlocal shown
            if time.monotonic() - shown >= 0.25:
                shown = time.monotonic()
                live.update(Text(line(), overflow="ellipsis", no_wrap=True))

        yield show


def _now_and_then() -> Callable[[Callable[[], str]], None]:
    shown = time.monotonic()

    def show(line: Callable[[], str]) -> None:
        nonlocal shown
        if time.monotonic() - shown >= EVERY_S:
            shown = time.monotonic()
            say(line())

    return show
