"""What the flags of ``kvbus run`` come to: requests, an engine, what to do with it; or every fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from cli.axes import Axes, read_axes
from cli.tier_flags import Count, read_tiers
from kvbus.config import faulty
from kvbus.errors import KvbusError
from kvbus.replay import speed as speed_of
from tiers.prompt import Prompt, prompts
from tiers.row_layout import RowLayout
from tiers.stack_spec import DEVICES, StackSpec, TierSpec
from tiers.synthetic import synthetic
from tiers.trace import Request, read_trace
from tiers.what_if import Sizes

MADE_UP: Final = 1_000
"""Requests that are made up where nobody says how many."""

BLOCKS_MAX: Final = 1 << 32
PLOTS: Final = (".png", ".svg")


@dataclass(frozen=True)
class RunFlags:
    """``speed``: the trace's seconds in one, None: no pause. ``axes``: what to try instead of a run."""

    trace: Path | None
    seed: int
    limit: int | None
    stack: StackSpec
    speed: float | None
    record: Path | None
    publish: str | None
    axes: Axes | None
    plot: Path | None

    def requests(self) -> list[Request]:
        """All of them: a torn trace is found before anything runs. Raises ``TierValueError``."""
        return requests_of(self.trace, self.seed, self.limit)

    def sizes(self) -> Sizes:
        """The engine as a what-if sees it: tiers behind the CPU as so many blocks."""
        behind = tuple((tier.name, most_blocks(tier, self.stack.block_bytes)) for tier in self.stack.behind)
        return Sizes(self.stack.gpu_blocks, self.stack.cpu_blocks, self.stack.policy, behind)


def requests_of(trace: Path | None, seed: int, limit: int | None) -> list[Request]:
    if trace is None:
        return list(synthetic(seed, requests=MADE_UP if limit is None else limit))
    return list(islice(read_trace(trace), limit))


def prompts_of(trace: Path | None, seed: int, limit: int | None, block_tokens: int) -> Sequence[Prompt]:
    """What ``what_if_each`` takes its requests from, in any process."""
    return list(prompts(requests_of(trace, seed, limit), block_tokens))


def most_blocks(tier: TierSpec, block_bytes: int) -> int | None:
    """How many blocks a tier's options leave room for: it keeps rows, which are blocks padded to a page."""
    row_bytes = RowLayout((block_bytes,)).row_bytes
    bounds = []
    if isinstance(most := tier.options.get("max_blocks"), int):
        bounds.append(most)
    if isinstance(most := tier.options.get("max_bytes"), int):
        bounds.append(most // row_bytes)
    return min(bounds, default=None)


def read_flags(given: Mapping[str, Any]) -> RunFlags:
    """The flags by their names, as the command got them. Raises ``ConfigError`` that lists every fault."""
    faults: list[str] = []
    found = read_tiers(given["tiers"], faults)
    gpu_blocks = number("--gpu-blocks", Count, given["gpu_blocks"], faults)
    block_bytes = number("--block-bytes", ByteSize, given["block_bytes"], faults)
    if given["device"] not in DEVICES:
        faults.append(f"--device: expected {', '.join(DEVICES)}, got {given['device']!r}")
    if not 0 < gpu_blocks <= BLOCKS_MAX:
        faults.append(f"--gpu-blocks: expected 1 or more, got {given['gpu_blocks']!r}")
    if block_bytes % 8 or block_bytes < 64:
        faults.append(f"--block-bytes: expected a multiple of 8 from 64 up, got {given['block_bytes']!r}")
    if given["trace"] is not None and given["seed"] is not None:
        faults.append("--seed: expected without --trace, which makes nothing up")
    axes = None
    if given["what_if"] is not None:
        axes = read_axes(given["what_if"], [tier.name for tier in found.behind], faults)
        idle = [name for name in ("record", "publish") if given[name] is not None]
        faults += [f"--{name}: expected without --what-if, which moves and says nothing" for name in idle]
    faults += plot_faults(given["plot"], given["what_if"])
    try:
        speed = speed_of(given["speed"])
    except KvbusError as error:
        faults.append(f"--speed: {error.problem}")
    if faults:
        raise faulty(faults)
    stack = StackSpec(
        gpu_blocks=gpu_blocks,
        cpu_blocks=found.cpu.blocks,
        policy=found.cpu.policy,
        behind=found.behind,
        block_bytes=block_bytes,
        block_tokens=given["block_tokens"],
        device=given["device"],
    )
    return RunFlags(
        given["trace"],
        given["seed"] or 0,
        given["limit"],
        stack,
        speed,
        given["record"],
        given["publish"],
        axes,
        given["plot"],
    )


def number(flag: str, form: Any, text: str, faults: list[str]) -> int:
    """A number in its form; 64 stands in for what cannot be read."""
    try:
        return int(TypeAdapter(form).validate_python(text))
    except ValidationError as error:
        detail = error.errors()[0]
        faults.append(f"{flag}: {detail['msg'][0].lower()}{detail['msg'][1:]}, got {text!r}")
        return 64


def plot_faults(plot: Path | None, what_if: str | None) -> Iterator[str]:
    if plot is not None and what_if is None:
        yield "--plot: expected together with --what-if"
    if plot is not None and plot.suffix.lower() not in PLOTS:
        yield f"--plot: expected a name in {' or '.join(PLOTS)}, got {str(plot)!r}"
