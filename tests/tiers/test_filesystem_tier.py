"""The filesystem tier on disks that fail: the right events, the right counter, and never wrong data."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiers.storage_rows import ROW_BYTES, Rows
from tests.tiers.words import k, keys
from tiers import Locality, LookupResult, TierError, TierValueError
from tiers.factory import SecondaryTierFactory
from tiers.filesystem.tier import FilesystemTier


def opened(root: Path, **options: Any) -> Rows:
    return Rows(lambda view: FilesystemTier(None, view, path=root, enable_events=True, **options))


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    made = opened(tmp_path)
    yield made
    made.tier.shutdown()


def file_of(root: Path, name: str) -> Path:
    (found,) = root.rglob(f"{k(name)[:-4].hex()}_g0.bin")
    return found


def test_blocks_outlive_their_tier(tmp_path: Path) -> None:
    """What a tier stored is announced once by the next one on the same root, and can be loaded there."""
    first = opened(tmp_path)
    assert first.store("a b c").success
    first.tier.shutdown()
    second = opened(tmp_path)
    assert second.said() == "+a +b +c"
    result, right = second.load("c a")
    assert (result.success, right) == (True, [True, True])
    second.tier.shutdown()


def test_the_bound_holds_on_the_disk(tmp_path: Path) -> None:
    """A bounded tier says what it evicts, and its folder never keeps it."""
    rows = opened(tmp_path, max_bytes=2 * ROW_BYTES)
    for name in "abc":
        assert rows.store(name).success
    assert rows.said() == "+a | +b | -a:evicted | +c"
    assert {path.name for path in tmp_path.rglob("*.bin")} == {f"{ord(name):02x}_g0.bin" for name in "bc"}
    rows.tier.shutdown()


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_file(rows: Rows, tmp_path: Path, damage: str) -> None:
    """A cut, flipped or vanished file fails its own load alone, is announced as removed, and is a miss."""
    rows.store("a b")
    rows.said()
    path = file_of(tmp_path, "a")
    match damage:
        case "cut":
            os.truncate(path, 5000)
        case "flipped":
            whole = bytearray(path.read_bytes())
            whole[-1] ^= 1
            path.write_bytes(whole)
        case "gone":
            path.unlink()
    result, right = rows.load("a b")
    assert (result.success, result.successful_keys, right[1]) == (False, keys("b"), True)
    assert rows.said() == f"-a:{'deleted' if damage == 'gone' else 'corrupt'}"
    assert rows.find("a") is LookupResult.MISS
    assert not path.exists()
    assert rows.store("a").success
    assert rows.load("a")[0].success


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=os.strerror)
def test_a_disk_that_takes_no_more(rows: Rows, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A store that fails on the disk is counted by the system's name for it and announces nothing; what is
    there can be loaded, and the next store works.
    """

    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    rows.store("a")
    rows.said()
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        assert not rows.store("b").success
        assert rows.load("a")[0].success
    assert rows.said() == ""
    assert rows.tier.get_stats()[f"store_failures.{errno.errorcode[number]}"] == 1
    assert rows.store("b").success
    assert rows.said() == "+b"


def test_two_tiers_on_one_root(tmp_path: Path) -> None:
    """A tier that shares its root finds what the other stored, announces it as its own, and can load it; what
    the other deleted meanwhile is a failed load and a removal.
    """
    one, two = opened(tmp_path), opened(tmp_path, shared=True)
    one.store("a b")
    assert [two.find(name) for name in "abc"] == [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS]
    assert two.said() == "+a | +b"
    assert two.load("b")[1] == [True]
    file_of(tmp_path, "a").unlink()
    assert not two.load("a")[0].success
    assert two.said() == "-a:deleted"
    one.tier.shutdown()
    two.tier.shutdown()


def test_a_disk_that_is_away_for_a_while(tmp_path: Path) -> None:
    """While the disk is away loads and stores fail, and no block is said to be gone; when it is back, the
    blocks are there and the bound holds.
    """
    root, away = tmp_path / "mounted", tmp_path / "away"
    rows = opened(root, max_blocks=5)
    rows.store("a b c d")
    rows.said()
    root.rename(away)
    assert not rows.load("a b c d")[0].success
    assert not rows.store("e").success
    assert rows.said() == ""
    away.rename(root)
    assert rows.load("a b c d")[1] == [True] * 4
    for name in "efg":
        assert rows.store(name).success
    assert rows.load("e f g")[1] == [True] * 3
    assert len([*root.rglob("*.bin")]) == 5
    rows.tier.shutdown()


def test_a_folder_that_cannot_be_tidied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier opens where a file cannot be tidied up, and counts it; it does not where nothing is listed."""
    first = opened(tmp_path)
    first.store("a b")
    first.tier.shutdown()
    stuck, unlink = str(file_of(tmp_path, "b")), os.unlink
    os.truncate(stuck, 100)

    def refusing(path: str) -> None:
        if path == stuck:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path)

    def shut(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "unlink", refusing)
    second = opened(tmp_path)
    assert second.said() == "+a"
    assert second.tier.get_stats()["inventory_skips.EPERM"] == 1
    second.tier.shutdown()
    monkeypatch.setattr(os, "scandir", shut)
    with pytest.raises(TierError, match="cannot list"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("path", None),
        ("path", ""),
        ("layout", ["model"]),
        ("max_bytes", "10GB"),
        ("max_blocks", 1.5),
        ("max_blocks", True),
        ("fsync", "false"),
        ("direct", 0),
        ("shared", "yes"),
        ("enable_events", 1),
        ("read_threads", "8"),
        ("write_threads", 0),
        ("backpressure", "true"),
        ("locality", 1),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, option: str, value: object) -> None:
    """A configuration's value of a wrong type or size is a ValueError that names the option."""
    view = memoryview(bytearray(4 * ROW_BYTES)).cast("B", (4, ROW_BYTES))
    config = {"type": "fs", "path": str(tmp_path), option: value}
    with pytest.raises(TierValueError, match=option):
        SecondaryTierFactory.create_secondary_tier(config, view)


def test_made_by_its_type(tmp_path: Path) -> None:
    """The factory makes it from a configuration, in which the locality is text; another word is refused."""
    view = memoryview(bytearray(4 * ROW_BYTES)).cast("B", (4, ROW_BYTES))
    config = {
        "type": "fs",
        "path": str(tmp_path),
        "max_blocks": 3,
        "backpressure": True,
        "locality": "REMOTE",
    }
    tier = SecondaryTierFactory.create_secondary_tier(config, view)
    assert isinstance(tier, FilesystemTier)
    assert tier.locality is Locality.REMOTE
    assert tier.backpressure is not None
    assert tier.backpressure.high == 0.020
    tier.shutdown()
    with pytest.raises(TierValueError, match="LOCAL or REMOTE"):
        SecondaryTierFactory.create_secondary_tier({**config, "locality": "NEAR"}, view)


def test_a_tier_without_memory(tmp_path: Path) -> None:
    """A tier needs rows to know how large a block is."""
    with pytest.raises(TierValueError, match="0 bytes"):
        FilesystemTier(None, memoryview(b""), path=tmp_path)
