"""``--what-if AXIS=VALUES,…``: which sizes and policies to try, and every fault of it. Pure.

An axis is ``gpu-blocks``, ``cpu.blocks``, ``policy`` (the CPU tier's) or ``NAME.max_blocks`` of a tier behind
it. Values stand between bars; ``1k..64k`` doubles from the first for as long as it is not above the second.
Every combination is one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cli.amounts import count
from tiers.errors import TierError
from tiers.policy import CachePolicyFactory
from tiers.serving.stack_spec import StackSpec

RUNS_MAX: Final = 256

Value = int | str
Axes = Mapping[str, Sequence[Value]]


def axes_of(names: Sequence[str]) -> list[str]:
    """Every axis of an engine. ``names``: the tiers behind the CPU."""
    return ["gpu-blocks", "cpu.blocks", "policy", *(f"{name}.max_blocks" for name in names)]


def read_axes(text: str, names: Sequence[str], faults: list[str]) -> dict[str, list[Value]]:
    """The axes in their order. ``names``: the tiers behind the CPU. Faults go to ``faults``."""
    known = axes_of(names)
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
            if axis == "gpu-blocks" and 0 in axes[axis]:
                faults.append("--what-if: gpu-blocks: expected 1 or more, got '0'")
    if (runs := count_runs(axes)) > RUNS_MAX:
        faults.append(f"--what-if: {runs} runs; at most {RUNS_MAX}: fewer values, or fewer axes")
    return axes


def count_runs(axes: Axes) -> int:
    """How many combinations there are."""
    runs = 1
    for values in axes.values():
        runs *= len(values)
    return runs


def runs_of(axes: Axes, base: StackSpec) -> list[StackSpec]:
    """``base`` under every combination, the last axis fastest."""
    combinations = itertools.product(*axes.values())
    return [_with(base, dict(zip(axes, values, strict=True))) for values in combinations]


def _with(base: StackSpec, said: Mapping[str, Value]) -> StackSpec:
    spec = base
    for axis, value in said.items():
        match axis:
            case "gpu-blocks":
                spec = replace(spec, gpu_blocks=int(value))
            case "cpu.blocks":
                spec = replace(spec, cpu_blocks=int(value))
            case "policy":
                spec = replace(spec, policy=str(value))
            case _:
                name = axis.removesuffix(".max_blocks")
                behind = (t.bounded(int(value)) if t.name == name else t for t in spec.behind)
                spec = replace(spec, behind=tuple(behind))
    return spec


def value_of(spec: StackSpec, axis: str) -> Value | None:
    """What a run has on an axis; None: no bound."""
    match axis:
        case "gpu-blocks":
            return spec.gpu_blocks
        case "cpu.blocks":
            return spec.cpu_blocks
        case "policy":
            return spec.policy
        case _:
            (tier,) = (t for t in spec.behind if f"{t.name}.max_blocks" == axis)
            return tier.most_blocks(spec.block_bytes)


def _counts(axis: str, values: str, faults: list[str]) -> list[Value]:
    found: list[Value] = []
    for value in values.split("|"):
        try:
            found += _range(value)
        except ValueError as error:
            faults.append(f"--what-if: {axis}: {error}, got {value!r}")
    return found


def _range(value: str) -> list[int]:
    """A number, or those from one to another. Raises ``ValueError``."""
    first, dots, last = value.partition("..")
    if not dots:
        return [count(value)]
    low, high = count(first), count(last)
    if not 0 < low <= high:
        raise ValueError("expected a range upwards from 1 or more, such as 1k..64k")
    found = []
    while low <= high:
        found.append(low)
        low *= 2
    return found


def _policies(axis: str, values: str, faults: list[str]) -> list[Value]:
    found: list[Value] = []
    for value in values.split("|"):
        try:
            CachePolicyFactory.get_cache_policy_cls(value)
        except TierError as error:
            faults.append(f"--what-if: {axis}: {error}")
        else:
            found.append(value)
    return found
