"""``--what-if AXIS=VALUES,…``: which sizes and policies to try, and every fault of it. Pure.

An axis is ``gpu-blocks``, ``cpu.blocks``, ``policy`` (the CPU tier's) or ``NAME.max_blocks`` of a tier behind
it. Values stand between bars; ``1k..64k`` doubles from the first for as long as it is not above the second.
Every combination is one run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tiers.errors import TierError
from tiers.policy import CachePolicyFactory
from tiers.what_if import Sizes

RUNS_MAX: Final = 256
UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000}

Value = int | str
Axes = Mapping[str, Sequence[Value]]


def read_axes(text: str, names: Sequence[str], faults: list[str]) -> dict[str, list[Value]]:
    """The axes in their order. ``names``: the tiers behind the CPU. Faults go to ``faults``."""
    known = ["gpu-blocks", "cpu.blocks", "policy", *(f"{name}.max_blocks" for name in names)]
    axes: dict[str, list[Value]] = {}
    for part in text.split(","):
        axis, _, values = part.partition("=")
        axis = "policy" if axis == "cpu.policy" else axis
        if axis not in known:
            faults.append(f"--what-if: {axis or text!r}: not an axis; known: {', '.join(known)}")
        elif axis in axes:
            faults.append(f"--what-if: {axis} is there twice")
        else:
            read = _policies if axis == "policy" else _counts
            axes[axis] = list(dict.fromkeys(read(axis, values, faults)))
    if (runs := count_runs(axes)) > RUNS_MAX:
        faults.append(f"--what-if: {runs} runs; at most {RUNS_MAX}: fewer values, or fewer axes")
    return axes


def count_runs(axes: Axes) -> int:
    """How many combinations there are."""
    runs = 1
    for values in axes.values():
        runs *= len(values)
    return runs


def runs_of(axes: Axes, base: Sizes) -> list[Sizes]:
    """``base`` under every combination, the last axis fastest."""
    combinations = itertools.product(*axes.values())
    return [_with(base, dict(zip(axes, values, strict=True))) for values in combinations]


def _with(base: Sizes, said: Mapping[str, Value]) -> Sizes:
    sizes = base
    for axis, value in said.items():
        match axis:
            case "gpu-blocks":
                sizes = replace(sizes, gpu_blocks=int(value))
            case "cpu.blocks":
                sizes = replace(sizes, cpu_blocks=int(value))
            case "policy":
                sizes = replace(sizes, policy=str(value))
            case _:
                name = axis.removesuffix(".max_blocks")
                behind = tuple((n, int(value) if n == name else most) for n, most in sizes.behind)
                sizes = replace(sizes, behind=behind)
    return sizes


def value_of(sizes: Sizes, axis: str) -> Value:
    """What a run has on an axis."""
    match axis:
        case "gpu-blocks":
            return sizes.gpu_blocks
        case "cpu.blocks":
            return sizes.cpu_blocks
        case "policy":
            return sizes.policy
        case _:
            most = dict(sizes.behind)[axis.removesuffix(".max_blocks")]
            return "unbounded" if most is None else most


def _counts(axis: str, values: str, faults: list[str]) -> list[Value]:
    found: list[Value] = []
    for value in values.split("|"):
        first, dots, last = value.partition("..")
        low = _count(first)
        high = _count(last) if dots else low
        if low is None or high is None or not (0 < low <= high or low == high):
            faults.append(f"--what-if: {axis}: expected numbers such as 500, 4k or 1k..64k, got {value!r}")
            continue
        while low <= high:
            found.append(low)
            low = 2 * low or 1
    return found


def _count(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,12})([km]?)", text)
    return None if match is None else int(match[1]) * UNITS[match[2]]


def _policies(axis: str, values: str, faults: list[str]) -> list[Value]:
    found: list[Value] = []
    for value in values.split("|"):
        try:
            CachePolicyFactory.get_cache_policy_cls(value)
        except (TierError, ImportError) as error:
            faults.append(f"--what-if: {axis}: {error}")
        else:
            found.append(value)
    return found
