"""What ``--tier`` may say."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_no_two_tiers_have_one_name() -> None:
    """Whatever their types are: names are what hits are counted by, and what tiers publish under."""
    here = __name__
    kinds = ("fs:path=/a", f"{here}:fs", f"{here}:cpu", "fs:path=/b", f"{here}:fs2", f"{here}:fs2")
    found = read("cpu", *kinds)
    assert [tier.name for tier in found.behind] == ["fs", "fs2", "cpu2", "fs3", "fs22", "fs23"]


class fs(MemoryTier):  # noqa: N801 - names that others have already
    """Called like a type of ours."""


class cpu(MemoryTier):  # noqa: N801
    """Called like the primary tier."""


class fs2(MemoryTier):  # noqa: N801
    """Called like a second tier of another type."""


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


class OddWords(Elsewhere):
    """A tier whose options have names that mean something to others, and that passes on what it is given."""

    def __init__(
        self,
        offloading_spec: object,
        primary_kv_view: memoryview,
        tier_type: str,
        *more: object,
        schema: str = "a",
        copy: int = 1,
        model_config: str = "",
        _private: str = "",
        **rest: object,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, folder=Path())
        self.said = (more, schema, copy, model_config, _private, rest)


def test_an_option_may_have_any_name() -> None:
    """No word is taken, and what stands for any number of arguments is no option."""
    where = f"{__name__}:OddWords"
    (tier,) = read("cpu", f"{where}:schema=b,copy=2,model_config=c,_private=d").behind
    assert tier.options == {"schema": "b", "copy": 2, "model_config": "c", "_private": "d"}
    assert faults_of("cpu", f"{where}:more=1") == [
        f"--tier {where}: more: not an option; known: schema, copy, model_config, _private"
    ]


class BadHint(Elsewhere):
    """A tier whose annotations name what is not there."""

    def __init__(
        self,
        offloading_spec: object,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        gone: Gone = None,  # type: ignore[name-defined]  # noqa: F821
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, folder=Path())
        self.gone = gone


def test_options_that_cannot_be_told_are_a_fault_of_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever somebody else's class, or its module, says or does: it is named, and nothing is raised."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaves_at_import.py").write_text("import sys; sys.exit(3)")
    (fault,) = faults_of("cpu", f"{__name__}:BadHint:gone=1")
    assert "BadHint: what it takes cannot be told" in fault
    assert "name 'Gone' is not defined" in fault
    (fault,) = faults_of("cpu", "tiers.storage.tier:StorageTier:max_blocks=1")
    assert "StorageTier: what it takes cannot be told" in fault
    (fault,) = faults_of("cpu", "leaves_at_import:Tier")
    assert "SystemExit: 3" in fault


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
