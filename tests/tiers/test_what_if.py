"""What-if runs: the engine on books alone, as often as there are sizes to try."""

from __future__ import annotations

import functools
import subprocess
import sys

from tests.tiers.small_engine import SmallEngine
from tiers.serving.prompt import Prompt, prompts
from tiers.serving.stack_spec import StackSpec, TierSpec
from tiers.serving.synthetic import synthetic
from tiers.serving.what_if import what_if, what_if_each
from tiers.serving.workload import drive


def traffic(requests: int = 150) -> list[Prompt]:
    return list(prompts(synthetic(7, requests=requests), block_size=4))


def test_names_go_with_hits() -> None:
    """The tiers of a run are named in the order in which their hits are counted."""
    spec = StackSpec(64, 100, behind=(TierSpec("fs", "fs", {"max_blocks": 500}), TierSpec("s3", "s3")))
    assert spec.names == ("gpu", "cpu", "fs", "s3")
    assert len(what_if(spec, traffic(10)).hits) == len(spec.names)


def test_a_what_if_is_what_a_run_with_bytes_gives() -> None:
    """The same sizes with real bytes hit the same number of blocks in each tier."""
    with_bytes = SmallEngine(70, 120, 300, policy="arc")
    spec = StackSpec(70, 120, policy="arc", behind=(TierSpec("memory0", "memory", {"max_blocks": 300}),))
    assert drive(with_bytes.engine, traffic()) == what_if(spec, traffic())


def test_more_room_of_an_lru_never_hits_less() -> None:
    """LRU has no anomalies: a larger GPU alone hits at least as often."""
    hits = [sum(what_if(StackSpec(blocks, 0), traffic()).hits) for blocks in (64, 128, 256, 512)]
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]


def test_processes_change_nothing() -> None:
    """Two processes give, in the same order, what one gives."""
    runs = [StackSpec(blocks, 100, policy=policy) for blocks in (64, 128) for policy in ("lru", "arc")]
    source = functools.partial(traffic, 60)
    alone = [(spec, count.hits) for spec, count in what_if_each(runs, source)]
    assert [spec for spec, _ in alone] == runs
    assert [(s, count.hits) for s, count in what_if_each(runs, source, processes=2)] == alone


def test_books_need_nothing_that_moves_bytes() -> None:
    """Asking what would have been hit loads no tensors, no object store, no database and no memory."""
    loaded = "import sys, tiers.serving.what_if; print(*sorted(m for m in sys.modules if m in sys.argv))"
    heavy = ("torch", "boto3", "duckdb", "matplotlib", "tiers.serving.stack", "tiers.serving.torch_device")
    done = subprocess.run([sys.executable, "-c", loaded, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
