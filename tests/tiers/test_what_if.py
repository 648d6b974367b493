"""What-if runs: the engine on books alone, as often as there are sizes to try."""

from __future__ import annotations

import functools

from tests.tiers.small_engine import SmallEngine
from tiers.prompt import Prompt, prompts
from tiers.synthetic import synthetic
from tiers.what_if import Sizes, what_if, what_if_each
from tiers.workload import drive


def traffic(requests: int = 150) -> list[Prompt]:
    return list(prompts(synthetic(7, requests=requests), block_size=4))


def test_names_go_with_hits() -> None:
    """The tiers of a run are named in the order in which their hits are counted."""
    sizes = Sizes(64, 100, behind=(("fs", 500), ("s3", None)))
    assert sizes.names == ("gpu", "cpu", "fs", "s3")
    assert len(what_if(sizes, traffic(10)).hits) == len(sizes.names)


def test_a_what_if_is_what_a_run_with_bytes_gives() -> None:
    """The same sizes with real bytes hit the same number of blocks in each tier."""
    with_bytes = SmallEngine(70, 120, 300, policy="arc")
    sizes = Sizes(70, 120, "arc", (("memory0", 300),))
    assert vars(drive(with_bytes.engine, traffic())) == vars(what_if(sizes, traffic()))


def test_more_room_of_an_lru_never_hits_less() -> None:
    """LRU has no anomalies: a larger GPU alone hits at least as often."""
    hits = [sum(what_if(Sizes(blocks, 0), traffic()).hits) for blocks in (64, 128, 256, 512)]
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]


def test_processes_change_nothing() -> None:
    """Two processes give, in the same order, what one gives."""
    runs = [Sizes(blocks, 100, policy) for blocks in (64, 128) for policy in ("lru", "arc")]
    source = functools.partial(traffic, 60)
    alone = [(sizes, count.hits) for sizes, count in what_if_each(runs, source)]
    assert [sizes for sizes, _ in alone] == runs
    assert [(s, count.hits) for s, count in what_if_each(runs, source, processes=2)] == alone
