"""``kvbus run``: an engine in small, driven by a request trace, whose tiers move real blocks and say so."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import options
from cli.amounts import COUNT_MAX, share, size_of
from cli.entry import COULD_NOT
from cli.exits import NO, OK, pipe_may_close, stop_signals
from cli.extras import extra
from cli.format import plain
from cli.json_line import json_line
from cli.progress import progress
from cli.render import say
from cli.scoreboard import blocks, transfers, trouble
from cli.stat import terminal
from kvbus.config import Settings

if TYPE_CHECKING:
    from cli.run_flags import RunOptions, RunPlan
    from cli.self_record import SelfRecord
    from tiers.serving.stack import TierStack
    from tiers.serving.tally import Tally

EPILOG: Final = """\
The first --tier is the CPU's, the others lie behind it, in order: fs:path=DIR, s3:bucket=NAME, memory,
or module:Class. Counts take k and m, up to 100m; sizes KiB, MiB, GiB. --what-if axes: gpu-blocks,
cpu.blocks, policy, NAME.max_blocks; 1k..64k doubles. The tokens of a trace's blocks are made up: events
carry --block-tokens of them a block, however many the trace counts.

Examples:

\b
  kvbus run
  kvbus run --trace conversation.jsonl --gpu-blocks 1k --tier cpu:blocks=4096,policy=arc
  kvbus run --tier cpu:blocks=1k --tier fs:path=/mnt/kv,max_bytes=2GiB --record run.duckdb
  kvbus run --tier cpu --tier s3:bucket=kv,endpoint_url=http://127.0.0.1:9000 --json
  kvbus run --trace conversation.jsonl --speed 10 --publish 'tcp://*:5600'
  kvbus run --what-if 'gpu-blocks=256..4096,policy=lru|arc' --plot curves.svg"""

Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Requests, as Mooncake or Bailian write them. Default: made-up chats.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Which made-up chats. Default: 0.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        max=COUNT_MAX,
        metavar="N",
        help="At most N requests. Default: all; 1000 made-up ones.",
    ),
]
GPUBlocks = Annotated[str, typer.Option("--gpu-blocks", metavar="N", help="Blocks of the GPU tier.")]
Tiers = Annotated[
    list[str] | None,
    typer.Option(
        "--tier", metavar="TYPE:NAME=VALUE,…", help="A tier; repeat it. Default: cpu:blocks=1k,policy=lru."
    ),
]
BlockBytes = Annotated[str, typer.Option("--block-bytes", metavar="SIZE", help="Bytes a block.")]
BlockTokens = Annotated[
    int,
    typer.Option("--block-tokens", min=1, max=65_536, metavar="N", help="Made-up tokens a block in events."),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda",
        help="Where GPU blocks lie. Default: auto, which is CUDA if there is any.",
    ),
]
Speed = Annotated[
    str | None,
    typer.Option(
        "--speed", metavar="1|10|max", help="1: at the trace's pace; 10: ten times that. Default: max."
    ),
]
Record = Annotated[
    Path | None, typer.Option("--record", metavar="LOG", help="Record the run itself, over its sockets.")
]
Publish = Annotated[
    str | None,
    typer.Option(
        "--publish",
        metavar="ENDPOINT",
        help="Where tiers publish: tcp://*:5600 and up, or ipc://NAME. Default: free local ports.",
    ),
]
WhatIf = Annotated[
    str | None,
    typer.Option("--what-if", metavar="AXIS=VALUES,…", help="Try sizes and policies, without moving bytes."),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="With --what-if: draw the curves, as PNG or SVG."),
]


def run(
    trace: Trace = None,
    seed: Seed = None,
    limit: Limit = None,
    gpu_blocks: GPUBlocks = "256",
    tier: Tiers = None,
    block_bytes: BlockBytes = "64KiB",
    block_tokens: BlockTokens = 16,
    device: Device = None,
    speed: Speed = None,
    record: Record = None,
    publish: Publish = None,
    what_if: WhatIf = None,
    plot: Plot = None,
    as_json: options.Json = None,
    quiet: options.Quiet = None,
    config: options.Config = None,
) -> None:
    """Serve a request trace with a GPU and the tiers behind it, move the blocks, and publish what they say.

    Every block that comes back is compared with what was stored; a wrong one is named, and makes the exit
    code 1. A table of tiers ends it. Ctrl-C stops it after the present request.
    """
    from cli.run_flags import RunOptions, read_flags

    given = options.settings(config, json=as_json, speed=speed, quiet=quiet)
    plan = read_flags(
        RunOptions(
            trace=trace,
            seed=seed,
            limit=limit,
            gpu_blocks=gpu_blocks,
            tiers=tier or [],
            block_bytes=block_bytes,
            block_tokens=block_tokens,
            device=device,
            speed=speed,
            record=record,
            publish=publish,
            what_if=what_if,
            plot=plot,
        ),
        speed=given.speed,
    )
    if plan.axes is not None:
        from cli.what_if import explore

        explore(plan, given)
    else:
        serve(plan, given)


def serve(plan: RunPlan, given: Settings) -> None:
    """Run the engine to the end of the trace, or until told to stop."""
    from cli.addresses import addresses, engine_flag, feeds_of
    from cli.self_record import SelfRecord
    from tiers.serving.prompt import prompts
    from tiers.serving.workload import drive

    stack_class = the_stack()
    requests = plan.options.requests()
    where = addresses(plan.options.publish, plan.stack.names)
    with stop_signals() as stop, ExitStack() as opened:
        stack = opened.enter_context(stack_class(plan.stack, where))
        feeds = feeds_of(stack.announcer.feeds)
        to_watch = engine_flag(feeds)
        recorder = None
        if plan.options.record is not None:
            recorder = opened.enter_context(SelfRecord(plan.options.record, feeds, on_failure=stop.set))
        if not given.quiet:
            introduce(plan.options, to_watch)
        with progress(len(requests), quiet=given.quiet) as served:
            wanted = prompts(requests, plan.stack.block_tokens)
            count = drive(stack.engine, wanted, speed=plan.speed, stop=stop, on_served=served)
        unrecorded = None if recorder is None else keep(recorder, stack, quiet=given.quiet)
        tally = stack.tally(count)
        with pipe_may_close(COULD_NOT if unrecorded else NO if tally.mismatches else OK):
            show(tally, stack, given, stopped=stop.is_set())
        if unrecorded is not None:
            raise unrecorded
    if tally.mismatches:
        raise typer.Exit(NO)


def introduce(options: RunOptions, engine_flag: str) -> None:
    """Where it can be watched, and what of it is not as in the trace."""
    from tiers.serving.trace import format_of

    say(f"watch it with: kvbus tail {engine_flag}")
    if options.trace is None or not options.trace.is_file():  # a pipe cannot be read a second time
        return
    size = format_of(options.trace).block_size
    if size != options.block_tokens:
        say(f"blocks of {size} tokens in the trace have {options.block_tokens} made-up ones in events")


def the_stack() -> type[TierStack]:
    """The class, with torch behind it. Raises ``ConfigError`` where that is not installed."""
    with extra("tiers", module="torch", what="moving blocks", otherwise="ask --what-if, which moves none"):
        from tiers.serving.stack import TierStack
    return TierStack


def keep(recorder: SelfRecord, stack: TierStack, *, quiet: bool) -> Exception | None:
    """Wait until everything that was published is in the log. What stopped that is returned: what was served
    is worth knowing all the same.
    """
    drains = int(stack.announcer.get_stats().get("drains", 0))
    batches = drains * len(stack.spec.names)
    try:
        recorder.wait_for(batches)
    except Exception as error:  # whatever it is, it is raised when the rest has been said
        return error
    if not quiet:
        say(f"recorded {batches:,} batches to {plain(str(recorder.path))}")
    return None


def show(tally: Tally, stack: TierStack, given: Settings, *, stopped: bool) -> None:
    """The object, or the table; what a person should know besides goes to stderr."""
    if not given.quiet:
        if stopped:
            say(f"stopped after {tally.requests:,} requests")
        for line in trouble({**stack.engine.get_stats(), **stack.engine.manager.get_stats()}):
            say(line)
    if given.json:
        sys.stdout.write(json_line(tally))
        return
    console = terminal()
    with console.capture() as shown:
        console.print(blocks(tally))
        console.print(transfers(tally, stack.transfer_times()))
    sys.stdout.write(shown.get() + f"{headline(tally, stack)}\n")


def headline(tally: Tally, stack: TierStack) -> str:
    """The whole run in a line."""
    return (
        f"{tally.requests:,} requests, {tally.block_refs:,} blocks of {size_of(stack.spec.block_bytes)}, "
        f"{share(tally.all_hits, tally.block_refs) or 'no'} hits, {tally.mismatches:,} wrong; "
        f"GPU blocks on {stack.device.name}"
    )
