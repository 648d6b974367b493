"""A whole engine with real bytes: what it hits, what it says, and that it counts what happened."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.log import Received
from kvbus.subscriber import Subscriber
from kvbus.wire import hello_request
from tests.cli.processes import until
from tests.sockets import KeepingContext, connect, replayed
from tiers.errors import TierError, TierValueError
from tiers.serving.prompt import Prompt, prompts
from tiers.serving.stack import TierStack
from tiers.serving.stack_spec import StackSpec, TierSpec
from tiers.serving.synthetic import ChatTraffic, synthetic
from tiers.serving.tally import Tally
from tiers.serving.what_if import what_if
from tiers.serving.workload import drive
from tiers.voice.voices import Address

BLOCK_BYTES = 4_096


SMALL = ChatTraffic(system_prompts=3, system_blocks=2, conversations=12, turn_blocks=2, max_blocks=12)


def traffic(requests: int = 60) -> list[Prompt]:
    return list(prompts(synthetic(3, requests=requests, traffic=SMALL), block_size=4))


def spec(*behind: TierSpec, gpu: int = 13, cpu: int = 18, policy: str = "lru") -> StackSpec:
    return StackSpec(
        gpu_blocks=gpu,
        cpu_blocks=cpu,
        policy=policy,
        behind=behind,
        block_bytes=BLOCK_BYTES,
        block_tokens=4,
        device="cpu",
    )


def run(stack: TierStack, some: list[Prompt]) -> Tally:
    count = drive(stack.engine, some)
    stack.check_integrity()
    return stack.tally(count)


def opened(wanted: StackSpec) -> TierStack:
    return TierStack(wanted, [Address()] * len(wanted.names))


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_real_bytes_through_files(tmp_path: Path, policy: str) -> None:
    """Every block that comes back through GPU, CPU and disk is right, and each tier hits what a what-if of
    its size hits.
    """
    disk = TierSpec("fs", "fs", {"path": tmp_path, "max_blocks": 40})
    with opened(spec(disk, policy=policy)) as stack:
        tally = run(stack, traffic())
    assert tally.mismatches == 0
    assert sum(tier.hits for tier in tally.tiers) + tally.misses == tally.block_refs
    assert min(tier.hits for tier in tally.tiers) > 0
    wanted = what_if(spec(disk, policy=policy), traffic())
    assert [tier.hits for tier in tally.tiers] == wanted.hits


def test_a_what_if_hits_what_a_run_through_files_hits(tmp_path: Path) -> None:
    """Also where the disk's bound is tight, each tier supplies in a what-if what it supplies in a run."""
    some = list(prompts(synthetic(0, requests=250), block_size=4))
    disk = TierSpec("fs", "fs", {"path": tmp_path, "max_blocks": 100})
    with opened(spec(disk, gpu=64, cpu=64)) as stack:
        count = drive(stack.engine, some)
    assert count == what_if(spec(disk, gpu=64, cpu=64), some)
    assert count.hits[2] > 0


def test_two_tiers_of_one_type(tmp_path: Path) -> None:
    """Each has its own name in counts and events, and its own folder."""
    first = TierSpec("fs", "fs", {"path": tmp_path / "a", "max_blocks": 20})
    second = TierSpec("fs2", "fs", {"path": tmp_path / "b"})
    with opened(spec(first, second)) as stack:
        tally = run(stack, traffic())
        assert [tier.tier_type for tier in stack.behind] == ["fs", "fs2"]
    assert [(t.tier, t.medium) for t in tally.tiers] == [
        ("gpu", "GPU"),
        ("cpu", "CPU"),
        ("fs", "STORAGE"),
        ("fs2", "STORAGE"),
    ]
    assert tally.tiers[3].evictions == 0
    assert tally.tiers[3].stores == tally.misses


def test_each_tier_says_what_fits(tmp_path: Path) -> None:
    """Whoever says hello hears how many blocks a tier holds at most; where there is no bound, nothing."""
    bounded = TierSpec("small", "fs", {"path": tmp_path / "a", "max_bytes": 9 * BLOCK_BYTES + 1})
    endless = TierSpec("large", "fs", {"path": tmp_path / "b"})
    wanted = spec(bounded, endless)
    with opened(wanted) as stack, KeepingContext() as context:
        told = [asked(context, feed.replay or "") for feed in stack.announcer.feeds]
        context.destroy(linger=0)
    assert told == [{"GPU": wanted.gpu_blocks}, {"CPU": wanted.cpu_blocks}, {"STORAGE": 9}, {}]


def asked(context: KeepingContext, endpoint: str) -> dict[str, int]:
    """The capacity in the answer to a hello."""
    client = connect(context, zmq.DEALER, endpoint)
    client.send_multipart(hello_request())
    items, info = replayed(client)
    assert info is not None
    assert not items
    return info.capacity


def test_counts_are_what_was_said(tmp_path: Path) -> None:
    """Stores, evictions and events of each tier's count are those that a reader of its socket sees; bytes
    are those of the blocks.
    """
    disk = TierSpec("fs", "fs", {"path": tmp_path, "max_blocks": 30})
    heard: dict[str, list[BlockStored | BlockRemoved]] = {"gpu": [], "cpu": [], "fs": []}
    with opened(spec(disk)) as stack, Subscriber(stack.announcer.feeds) as reader:
        tally = run(stack, traffic(40))
        events = {tier.tier: tier.events for tier in tally.tiers}

        def all_heard() -> bool:
            for entry in reader.poll(0.05):
                if isinstance(entry, Received) and isinstance(entry.batch, EventBatch):
                    kept = [e for e in entry.batch.events if isinstance(e, BlockStored | BlockRemoved)]
                    heard[entry.source.source] += kept
            return {name: len(said) for name, said in heard.items()} == events

        until(all_heard, 20)
    for tier in tally.tiers:
        said = heard[tier.tier]
        assert tier.stores == sum(len(e.block_hashes) for e in said if isinstance(e, BlockStored))
        assert tier.evictions == sum(len(e.block_hashes) for e in said if isinstance(e, BlockRemoved))
        assert tier.bytes_stored == tier.stores * BLOCK_BYTES
    gpu, cpu, fs = tally.tiers
    assert gpu.bytes_loaded == 0
    assert cpu.bytes_loaded == (cpu.hits + fs.hits) * BLOCK_BYTES
    assert fs.bytes_loaded == fs.hits * BLOCK_BYTES
    times = stack.transfer_times()
    assert times["cpu"]["load"].bytes == cpu.bytes_loaded
    assert times["fs"]["store"].bytes == fs.bytes_stored
    assert times["fs"]["load"].recent


def test_a_file_that_was_changed_is_never_served(tmp_path: Path) -> None:
    """A flipped bit on the disk makes a miss: the block is computed again, and no byte of it was wrong."""
    disk = TierSpec("fs", "fs", {"path": tmp_path})
    once, twice = traffic(1)[0], traffic(2)[1]
    with opened(spec(disk, gpu=12, cpu=12)) as stack:
        served = [stack.engine.serve(once)]
        for path in tmp_path.rglob("*.bin"):
            spoilt = bytearray(path.read_bytes())
            spoilt[-1] ^= 1
            path.write_bytes(spoilt)
        stack.engine.manager.reset_cache()
        stack.gpu.reset_prefix_cache()
        served += [stack.engine.serve(twice), stack.engine.serve(once)]
        stack.check_integrity()
    assert [s.mismatches for s in served] == [(), (), ()]
    assert served[1].hits[2] == 0
    assert served[2].hits[2] == 0


def test_what_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    """A tier that cannot be opened is an error with its own words; what was opened before it is closed."""
    (tmp_path / "file").write_text("not a folder")
    wrong = TierSpec("fs", "fs", {"path": tmp_path / "file"})
    with pytest.raises(TierError, match="cannot keep blocks"):
        opened(spec(wrong))
    with pytest.raises(TierValueError, match="cannot be made"):
        opened(spec(TierSpec("memory", "memory", {"no_such": 1})))


def test_closing_twice(tmp_path: Path) -> None:
    """Everything is let go of once."""
    stack = opened(spec(TierSpec("fs", "fs", {"path": tmp_path})))
    stack.close()
    stack.close()
