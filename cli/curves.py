"""Hit rates over sizes, drawn: a curve for each combination of the other axes, PNG or SVG.

A policy is a line style, everything else a colour. The sizes along the bottom are those that were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.amounts import short
from cli.axes import Axes, Value, value_of
from cli.extras import extra
from cli.result_file import Kind, result_file
from tiers.serving.stack_spec import StackSpec
from tiers.serving.workload import RunCount

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure

Curves = dict[tuple[Value | None, ...], list[tuple[int, float]]]

POLICY: Final = "policy"
STYLES: Final = ("-", "--", ":", "-.")
COLOURS: Final = 10
LEGEND_INSIDE_MAX: Final = 6
LEVEL_TICKS_MAX: Final = 10
HEADROOM: Final = 1.08
FORMS: Final = {".png": "Software", ".svg": "Creator"}
"""What a picture's name may end in, and the field in which such a picture says what made it."""
MADE_BY: Final = "kvbus run --what-if"
"""What every drawing says of itself, and what may be replaced is known by."""


def _is_drawing(head: bytes) -> bool:
    return head.startswith((b"\x89PNG", b"<?xml")) and MADE_BY.encode() in head


DRAWING: Final = Kind("plot", _is_drawing)


def the_figure() -> type[Figure]:
    """matplotlib's, which needs no display. Raises ``ConfigError`` where it is not installed."""
    with extra(
        "plot",
        module="matplotlib",
        what="--plot",
        otherwise="leave --plot out: the numbers are printed anyway",
    ):
        from matplotlib.figure import Figure
    return Figure


def draw(axes: Axes, found: Sequence[tuple[StackSpec, RunCount]], path: Path) -> None:
    """Draw all runs into ``path``; the axis with most numbers runs along the bottom. Raises
    ``ResultFileError``.
    """
    figure = the_figure()(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    along = longest(axes)
    others = [axis for axis in axes if axis != along]
    drawn = curves(found, along, others, axes=axes)
    for (style, colour), (values, points) in zip(looks(drawn, others), drawn.items(), strict=True):
        label = ", ".join(f"{axis} {shown(value)}" for axis, value in zip(others, values, strict=True))
        xs, ys = zip(*sorted(points), strict=True)
        panel.plot(xs, ys, style, color=f"C{colour}", marker="o", markersize=4, label=label or None)
    dress(panel, along, axes[along])
    if others:
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if len(drawn) > LEGEND_INSIDE_MAX else {}
        panel.legend(**place)
    form = path.suffix.lower()
    with result_file(path, DRAWING) as draft:
        figure.savefig(draft, format=form[1:], dpi=144, metadata={FORMS[form]: MADE_BY})


def longest(axes: Axes) -> str:
    """The axis with the most numbers, the first of them."""
    return max(axes, key=lambda axis: sum(isinstance(value, int) for value in axes[axis]))


def curves(
    found: Sequence[tuple[StackSpec, RunCount]], along: str, others: Sequence[str], *, axes: Axes
) -> Curves:
    """Points (place on the axis ``along``, hits in percent) by the values on the other axes, in the order of
    the runs.
    """
    by_others: Curves = {}
    places = dict(zip(axes[along], places_of(axes[along]), strict=True))
    for spec, count in found:
        at = value_of(spec, along)
        assert at is not None, "an axis has a value in every run"
        by_others.setdefault(tuple(value_of(spec, axis) for axis in others), []).append(
            (places[at], 100 * count.hit_rate)
        )
    return by_others


def places_of(values: Sequence[Value]) -> list[int]:
    """Numbers are their own places, words stand in their order."""
    return [value if isinstance(value, int) else place for place, value in enumerate(values)]


def looks(drawn: Curves, others: Sequence[str]) -> list[tuple[str, int]]:
    """A line style by the policy, and a colour by everything else, for each curve."""
    policies = [values[others.index(POLICY)] if POLICY in others else None for values in drawn]
    rest = [tuple(v for axis, v in zip(others, values, strict=True) if axis != POLICY) for values in drawn]
    styles, colours = list(dict.fromkeys(policies)), list(dict.fromkeys(rest))
    return [
        (STYLES[styles.index(policy) % len(STYLES)], colours.index(others_of_it) % COLOURS)
        for policy, others_of_it in zip(policies, rest, strict=True)
    ]


def shown(value: Value | None) -> str:
    """A value as it may be written in ``--what-if``."""
    match value:
        case None:
            return "unbounded"
        case int():
            return short(value)
    return value


def dress(panel: Panel, along: str, values: Sequence[Value]) -> None:
    if any(isinstance(value, int) for value in values):
        panel.set_xscale("symlog", base=2, linthresh=1)
    panel.set_xticks(places_of(values), labels=[shown(value) for value in values], minor=False)
    panel.set_xticks([], minor=True)
    if len(values) > LEVEL_TICKS_MAX:
        panel.tick_params(axis="x", labelrotation=45)
    panel.set_xlabel(along)
    panel.set_ylabel("block references that hit, %")
    panel.set_ylim(0, HEADROOM * max(1.0, panel.dataLim.y1))
    panel.grid(alpha=0.3)
