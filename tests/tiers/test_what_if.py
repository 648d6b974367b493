"""What-if runs: the engine on books alone, as often as there are sizes to try."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiers.small_engine import SmallEngine
from tiers.errors import TierError, TierValueError
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
    some = traffic(60)
    alone = [(spec, count.hits) for spec, count in what_if_each(runs, some)]
    assert [spec for spec, _ in alone] == runs
    assert [(s, count.hits) for s, count in what_if_each(runs, some, processes=2)] == alone


ENDLESS = [StackSpec(64 + n, 100) for n in range(100)]
"""More runs than are done before something happens to them."""


def test_an_error_in_another_process_arrives_as_itself() -> None:
    """What a run raises is raised where it was asked for, with its next step."""
    runs = [StackSpec(64, 100), StackSpec(64, 100, policy="fifo")]
    with pytest.raises(TierValueError, match="no cache policy 'fifo'") as raised:
        list(what_if_each(runs, traffic(5), processes=2))
    assert raised.value.next_step.startswith("Known: ")


def test_a_process_that_dies_is_told() -> None:
    """Nobody waits for what a dead process would have found out: it is an error, and the others end."""
    outcomes = what_if_each(ENDLESS, traffic(), processes=2)
    next(outcomes)
    victim, *_ = multiprocessing.active_children()
    victim.kill()
    with pytest.raises(TierError, match="a process died"):
        list(outcomes)
    assert multiprocessing.active_children() == []


def test_leaving_early_ends_the_rest() -> None:
    """Whoever has seen enough closes it, and no process is left at work."""
    outcomes = what_if_each(ENDLESS, traffic(), processes=2)
    next(outcomes)
    assert multiprocessing.active_children()
    outcomes.close()
    assert multiprocessing.active_children() == []


def test_no_process_outlives_the_one_that_asked() -> None:
    """Even if that is killed: the others find out, and end."""
    asking = subprocess.Popen([sys.executable, "-c", ASKING], stdout=subprocess.PIPE, text=True)
    with asking:
        assert asking.stdout is not None
        workers = [int(pid) for pid in asking.stdout.readline().split()]
        asking.kill()
    assert workers
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline, "a process was left"
        time.sleep(0.02)


ASKING = """
import multiprocessing
from tests.tiers.test_what_if import ENDLESS, traffic
from tiers.serving.what_if import what_if_each

if __name__ == "__main__":
    outcomes = what_if_each(ENDLESS, traffic(), processes=2)
    next(outcomes)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    list(outcomes)
"""


def is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that nobody has buried yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_books_need_nothing_that_moves_bytes() -> None:
    """Asking what would have been hit loads no tensors, no object store, no database and no memory."""
    loaded = "import sys, tiers.serving.what_if; print(*sorted(m for m in sys.modules if m in sys.argv))"
    heavy = ("torch", "boto3", "duckdb", "matplotlib", "tiers.serving.stack", "tiers.serving.torch_device")
    done = subprocess.run([sys.executable, "-c", loaded, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
