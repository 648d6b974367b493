"""What ``--tier`` may say."""

from __future__ import annotations

from pathlib import Path

from cli.tier_flags import TierFlags, read_tiers
from tiers.medium import Locality
from tiers.memory import MemoryTier


def read(*flags: str) -> TierFlags:
    faults: list[str] = []
    found = read_tiers(flags, faults)
    assert faults == []
    return found


def faults_of(*flags: str) -> list[str]:
    faults: list[str] = []
    read_tiers(flags, faults)
    return faults


def test_without_a_flag_there_is_a_cpu_tier() -> None:
    """The defaults are a thousand blocks under LRU, and nothing behind."""
    assert read() == read("cpu") == read("cpu:blocks=1k,policy=lru")
    assert read().behind == ()


def test_values_have_the_types_of_the_tier_s_constructor() -> None:
    """Sizes take units, counts k and m, switches words; only what was said is passed on."""
    found = read(
        "cpu:blocks=4096,policy=arc",
        "fs:path=/mnt/kv,max_bytes=2GiB,fsync=yes,locality=REMOTE",
        "s3:bucket=kv,endpoint_url=http://127.0.0.1:9000,max_blocks=10k,read_timeout_s=1.5",
    )
    assert (found.cpu.blocks, found.cpu.policy) == (4096, "arc")
    disk, bucket = found.behind
    assert {**disk.options, "path": str(disk.options["path"])} == {
        "path": "/mnt/kv",
        "max_bytes": 2 << 30,
        "fsync": True,
        "locality": Locality.REMOTE,
    }
    assert bucket.options == {
        "bucket": "kv",
        "endpoint_url": "http://127.0.0.1:9000",
        "max_blocks": 10_000,
        "read_timeout_s": 1.5,
    }


def test_the_second_tier_of_a_type_gets_a_number() -> None:
    """Names tell tiers apart; the first has its type's."""
    found = read("cpu", "memory", "fs:path=/a", "memory:max_blocks=3")
    assert [(tier.name, tier.type) for tier in found.behind] == [
        ("memory", "memory"),
        ("fs", "fs"),
        ("memory2", "memory"),
    ]


class Elsewhere(MemoryTier):
    """A tier of somebody else, with an option of its own."""

    def __init__(
        self, offloading_spec: object, primary_kv_view: memoryview, tier_type: str, *, folder: Path
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type)
        self.folder = folder


def test_a_tier_of_somebody_else() -> None:
    """module:Class is imported, and its options are checked as ours are."""
    where = f"{__name__}:Elsewhere"
    (tier,) = read("cpu", f"{where}:folder=/x").behind
    assert (tier.name, tier.type, tier.options) == ("Elsewhere", where, {"folder": Path("/x")})
    assert faults_of("cpu", f"{where}:folder=/x,reel=1") == [
        f"--tier {where}: reel: not an option; known: folder"
    ]


def test_faults() -> None:
    """Everything that is wrong is said, once, with what was expected."""
    assert faults_of("fs:path=/x") == ["--tier fs: the first one is the CPU's: cpu:blocks=4k,policy=lru"]
    assert faults_of("cpu", "cpu", "gpu:blocks=3") == [
        "--tier cpu: there is one CPU tier, the first; --gpu-blocks sizes the GPU",
        "--tier gpu: there is one CPU tier, the first; --gpu-blocks sizes the GPU",
    ]
    assert faults_of("cpu", "fs") == ["--tier fs: path: missing"]
    assert faults_of("cpu:blocks=0") == [
        "--tier cpu: blocks: input should be greater than or equal to 1, got '0'"
    ]
    assert faults_of("cpu:blocks=900000000m") == [
        "--tier cpu: blocks: expected a number such as 500 or 4k, from 0 to 100m, got '900000000m'"
    ]
    (fault,) = faults_of("cpu", "memory:max_blocks=1.5")
    assert "expected a number such as 500 or 4k" in fault
    (fault,) = faults_of("cpu", "fs:path=/x,max_bytes=1e9 furlongs")
    assert "max_bytes: expected a size in bytes such as 4096, 64KiB or 2GiB" in fault
    (fault,) = faults_of("cpu", "memory:max_blocks=-1")
    assert fault == (
        "--tier memory: max_blocks: expected a number such as 500 or 4k, from 0 to 100m, got '-1'"
    )
    assert faults_of("cpu", "memory:max_blocks=1,max_blocks=2") == [
        "--tier memory: max_blocks is there twice"
    ]
    assert faults_of("cpu", "memory:max_blocks=1,") == [
        "--tier memory:max_blocks=1,: expected name=value, got ''"
    ]
    (fault,) = faults_of("cpu:blocks=3,policy=fifo")
    assert "no cache policy 'fifo'" in fault
    (fault,) = faults_of("cpu", "no.such.module:Tier")
    assert "No module named 'no'" in fault
