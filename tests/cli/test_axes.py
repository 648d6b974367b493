"""What ``--what-if`` may say, and the runs that come of it."""

from __future__ import annotations

import pytest

from cli.axes import axes_of, count_runs, read_axes, runs_of, value_of
from tiers.serving.stack_spec import StackSpec, TierSpec

FS, S3 = TierSpec("fs", "fs", {"path": "/x"}), TierSpec("s3", "s3", {"max_blocks": 5})
BASE = StackSpec(100, 200, behind=(FS, S3))


def read(text: str) -> tuple[dict[str, list[int | str]], list[str]]:
    faults: list[str] = []
    return read_axes(text, [tier.name for tier in BASE.behind], faults), faults


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ("1k..8k", [1_000, 2_000, 4_000, 8_000]),
        ("1k..7999", [1_000, 2_000, 4_000]),
        ("5|1m|3..6", [5, 1_000_000, 3, 6]),
        ("0|1", [0, 1]),
        ("7|7..7", [7]),
    ],
)
def test_values(values: str, numbers: list[int]) -> None:
    """A range doubles from its first number for as long as it is not above its last; each value once."""
    assert read(f"cpu.blocks={values}") == ({"cpu.blocks": numbers}, [])


def test_every_combination_is_a_run() -> None:
    """The last axis changes fastest; what has no axis stays as it is."""
    axes, faults = read("gpu-blocks=1|2,policy=lru|arc,fs.max_blocks=9")
    runs = runs_of(axes, BASE)
    assert faults == []
    assert len(runs) == count_runs(axes) == 4
    assert [(run.gpu_blocks, run.policy) for run in runs] == [(1, "lru"), (1, "arc"), (2, "lru"), (2, "arc")]
    assert [(run.cpu_blocks, run.behind) for run in runs] == [(200, (FS.bounded(9), S3))] * 4
    assert [value_of(runs[1], axis) for axis in axes] == [1, "arc", 9]
    assert value_of(BASE, "fs.max_blocks") is None
    assert value_of(BASE, "cpu.blocks") == 200
    assert [value_of(BASE, axis) for axis in axes_of(["fs", "s3"])] == [100, 200, "lru", None, 5]


def test_the_policy_is_the_cpu_tier_s() -> None:
    """It may be written with or without the tier's name."""
    assert read("cpu.policy=arc") == read("policy=arc") == ({"policy": ["arc"]}, [])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpu-blocks=", "expected a number such as"),
        ("gpu-blocks=4k..1k", "expected a range upwards from 1"),
        ("gpu-blocks=0|8", "gpu-blocks: expected 1 or more, got '0'"),
        ("gpu-blocks=٣", "expected a number such as"),
        ("gpu-blocks=0..8", "expected a range upwards from 1"),
        ("gpu-blocks=900000000000", "from 0 to 100m, got '900000000000'"),
        ("gpu-blocks=1..900000m", "from 0 to 100m, got '1..900000m'"),
        ("gpu-blocks=x", "got 'x'"),
        ("colour=red", "not an axis; known: gpu-blocks, cpu.blocks, policy, fs.max_blocks, s3.max_blocks"),
        ("policy=fifo", "no cache policy 'fifo'"),
        ("gpu-blocks=1,gpu-blocks=2", "gpu-blocks is there twice"),
        ("gpu-blocks=1..1m,cpu.blocks=1..1m", "400 runs; at most 256"),
        ("", "not an axis"),
    ],
)
def test_faults(text: str, fault: str) -> None:
    """What cannot be is named, with what is expected there; so are more runs than anybody waits for."""
    _, faults = read(text)
    assert len(faults) == 1
    assert fault in faults[0]
