"""What the bench says: a figure, what it stands against, and how far one wants to get.

A figure is the median of several rounds. Nothing here passes or fails: a machine with other work to do must
not turn a measurement into an alarm.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.table import Table


class Figure(Struct, frozen=True):
    """One measured value. ``ratio`` is value ÷ ``against`` in the sense that ``reach`` speaks of."""

    what: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    reach: str = ""
    rounds: tuple[float, ...] = ()


class Section(Struct, frozen=True):
    """Figures that belong together; ``note`` says what was done, or why there are none."""

    title: str
    note: str
    figures: tuple[Figure, ...] = ()


def rate(
    what: str,
    unit: str,
    rounds: Sequence[float],
    *,
    against: str = "",
    base: Sequence[float] = (),
    reach: str = "",
) -> Figure:
    """The median of ``rounds``; with ``base``, that of the ratios, each of two rounds run side by side."""
    ratio = statistics.median(r / b for r, b in zip(rounds, base, strict=True)) if base else None
    return Figure(
        what, statistics.median(rounds), unit, against=against, ratio=ratio, reach=reach, rounds=tuple(rounds)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 … 1) of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, str]:
    """What a reader must know to compare: processor, cores, load, and the versions that do the work."""
    facts = {"cpu": processor(), "cores": str(os.cpu_count()), "load": f"{os.getloadavg()[0]:.1f}"}
    facts["python"] = sys.version.split()[0]
    return facts | {name: version(name) for name in ("duckdb", "pyarrow", "pyzmq", "msgspec")}


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1e4:
        return f"{value / 1e3:.0f} k"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def show(section: Section, *, console: Console) -> None:
    """One section as a table."""
    console.print(f"[bold]{section.title}[/bold]  [dim]{section.note}[/dim]", highlight=False)
    if not section.figures:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("", "median", "unit", "ratio", "against", "reach"):
        table.add_column(heading, justify="right" if heading in ("median", "ratio") else "left", no_wrap=True)
    for f in section.figures:
        ratio = "" if f.ratio is None else f"{f.ratio:.2f}×"
        table.add_row(f.what, number(f.value), f.unit, ratio, f.against, f.reach)
    console.print(table)
