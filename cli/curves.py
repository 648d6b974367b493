"""Hit rates over sizes, drawn: a curve for each combination of the other axes, PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.axes import Axes, Value, value_of
from kvbus.errors import ConfigError
from tiers.what_if import Sizes
from tiers.workload import Count

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel

Curves = dict[tuple[Value, ...], list[tuple[int, float]]]


def the_pyplot() -> Any:
    """matplotlib's pyplot, without a display. Raises ``ConfigError`` where it is not installed."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed",
            next_step="Install kvbus[plot], or leave --plot out: the numbers are printed anyway.",
        ) from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw(axes: Axes, found: Sequence[tuple[Sizes, Count]], path: Path) -> None:
    """Draw all runs into ``path``; the axis with most numbers runs along the bottom. Raises ``OSError``."""
    plt = the_pyplot()
    along = longest(axes)
    others = [axis for axis in axes if axis != along]
    figure, panel = plt.subplots(figsize=(8, 5), layout="constrained")
    try:
        for values, points in curves(found, along, others).items():
            label = ", ".join(f"{axis} {value}" for axis, value in zip(others, values, strict=True))
            xs, ys = zip(*sorted(points), strict=True)
            panel.plot(xs, ys, marker="o", markersize=4, label=label or None)
        dress(panel, along, labelled=bool(others))
        figure.savefig(path, dpi=144)
    finally:
        plt.close(figure)


def longest(axes: Axes) -> str:
    """The axis with the most numbers, the first of them."""
    return max(axes, key=lambda axis: sum(isinstance(value, int) for value in axes[axis]))


def curves(found: Sequence[tuple[Sizes, Count]], along: str, others: Sequence[str]) -> Curves:
    """Points (size, hits in percent) by the values on the other axes, in the order of the runs."""
    by_others: Curves = {}
    for number, (sizes, count) in enumerate(found):
        at = value_of(sizes, along)
        point = (at if isinstance(at, int) else number, 100 * sum(count.hits) / max(1, count.block_refs))
        by_others.setdefault(tuple(value_of(sizes, axis) for axis in others), []).append(point)
    return by_others


def dress(panel: Panel, along: str, *, labelled: bool) -> None:
    panel.set_xscale("symlog", base=2, linthresh=1)
    panel.set_xlabel(along)
    panel.set_ylabel("block references that hit, %")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    if labelled:
        panel.legend()
