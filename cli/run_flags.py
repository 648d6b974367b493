"""What the flags of ``kvbus run`` come to: requests, an engine, what to do with it; or every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.amounts import count, size, size_of
from cli.axes import Axes, read_axes
from cli.curves import DRAWING, FORMS
from cli.result_file import ResultFileError, check_place
from cli.tier_flags import read_tiers
from kvbus.config import faulty
from kvbus.errors import KvbusError
from kvbus.replay import speed as speed_of
from tiers.serving.prompt import Prompt, prompts
from tiers.serving.stack_spec import DEVICES, StackSpec
from tiers.serving.synthetic import synthetic
from tiers.serving.trace import Request, read_trace

MADE_UP: Final = 1_000
"""Requests that are made up where nobody says how many."""

BLOCK_BYTES_MIN: Final = 64
BLOCK_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The flags as they were given: text where a number may have a unit, None where one was left out."""

    trace: Path | None
    seed: int | None
    limit: int | None
    gpu_blocks: str
    tiers: Sequence[str]
    block_bytes: str
    block_tokens: int
    device: str | None
    speed: str | None
    record: Path | None
    publish: str | None
    what_if: str | None
    plot: Path | None

    def requests(self) -> list[Request]:
        """All of them: a torn trace is found before anything runs. Raises ``TierValueError``."""
        if self.trace is not None:
            return list(read_trace(self.trace, limit=self.limit))
        return list(synthetic(self.seed or 0, requests=MADE_UP if self.limit is None else self.limit))

    def prompts(self) -> Sequence[Prompt]:
        """All requests as an engine sees them. Raises as ``requests``."""
        return list(prompts(self.requests(), self.block_tokens))


@dataclass(frozen=True)
class RunPlan:
    """What they come to. ``speed``: the trace's seconds in one, None: no pause. ``axes``: what to try instead
    of a run.
    """

    options: RunOptions
    stack: StackSpec
    speed: float | None
    axes: Axes | None


def read_flags(options: RunOptions, *, speed: str) -> RunPlan:
    """``speed``: as the flag or the settings say. Raises ``ConfigError`` that lists every fault."""
    faults: list[str] = []
    tiers = read_tiers(options.tiers, faults)
    gpu_blocks = number("--gpu-blocks", count, options.gpu_blocks, faults)
    block_bytes = number("--block-bytes", size, options.block_bytes, faults)
    seconds_in_one = speed_in(speed, faults)
    axes = None
    if options.what_if is not None:
        axes = read_axes(options.what_if, [tier.name for tier in tiers.behind], faults)
    faults += size_faults(gpu_blocks, block_bytes)
    faults += choice_faults(options)
    if faults or gpu_blocks is None or block_bytes is None:
        raise faulty(faults)
    stack = StackSpec(
        gpu_blocks,
        tiers.cpu.blocks,
        policy=tiers.cpu.policy,
        behind=tiers.behind,
        block_bytes=block_bytes,
        block_tokens=options.block_tokens,
        device=options.device or DEVICES[0],
    )
    return RunPlan(options, stack, seconds_in_one, axes)


def number(flag: str, read: Callable[[str], int], text: str, faults: list[str]) -> int | None:
    """What ``read`` makes of it; None, and a fault, if it cannot be read."""
    try:
        return read(text)
    except ValueError as error:
        faults.append(f"{flag}: {error}, got {text!r}")
        return None


def speed_in(text: str, faults: list[str]) -> float | None:
    try:
        return speed_of(text)
    except KvbusError as error:
        faults.append(f"--speed: {error.problem}")
        return None


def size_faults(gpu_blocks: int | None, block_bytes: int | None) -> Iterator[str]:
    if gpu_blocks == 0:
        yield "--gpu-blocks: expected 1 or more, got 0"
    if block_bytes is not None and (block_bytes % 8 or not BLOCK_BYTES_MIN <= block_bytes <= BLOCK_BYTES_MAX):
        yield (
            f"--block-bytes: expected a multiple of 8 from {BLOCK_BYTES_MIN} to {size_of(BLOCK_BYTES_MAX)}, "
            f"got {block_bytes}"
        )


def choice_faults(options: RunOptions) -> Iterator[str]:
    """Words that are none, and flags that would have no effect."""
    if options.device is not None and options.device not in DEVICES:
        yield f"--device: expected {', '.join(DEVICES)}, got {options.device!r}"
    if options.trace is not None and options.seed is not None:
        yield "--seed: expected without --trace, which makes nothing up"
    if options.what_if is not None:
        moving = {
            "--record": options.record,
            "--publish": options.publish,
            "--device": options.device,
            "--speed": options.speed,
        }
        for flag, value in moving.items():
            if value is not None:
                yield f"{flag}: expected without --what-if, which moves and says nothing"
    elif options.plot is not None:
        yield "--plot: expected together with --what-if"
    if options.plot is not None:
        yield from plot_faults(options.plot)


def plot_faults(path: Path) -> Iterator[str]:
    """Why no picture can be drawn there, as far as that can be told before."""
    if path.suffix.lower() not in FORMS:
        yield f"--plot: expected a name in {' or '.join(FORMS)}, got {str(path)!r}"
        return
    try:
        check_place(path, DRAWING)
    except ResultFileError as error:
        yield f"--plot: {error.problem}"
