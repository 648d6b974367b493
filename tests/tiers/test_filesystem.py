"""The filesystem store and its tier: bytes survive, and whatever happens to a disk has a name."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers.words import k, keys
from tiers import OffloadKey, TierContractError, TierError, TierValueError
from tiers.filesystem.file import is_aligned
from tiers.filesystem.tier import FilesystemStore
from tiers.storage.block_store import (
    FIELDS,
    HEADER_BYTES,
    BlockCorruptError,
    BlockMissingError,
    BlockUnsureError,
)

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD = 8192
WHOLE = HEADER_BYTES + PAYLOAD


def memory(nbytes: int, *, offset: int = 0) -> memoryview:
    """Fresh memory, ``offset`` bytes behind the beginning of a page."""
    return memoryview(mmap.mmap(-1, offset + nbytes))[offset:]


def content(key: OffloadKey, nbytes: int = PAYLOAD) -> memoryview:
    """Bytes that only this key has."""
    made = memory(nbytes)
    made[:] = (key * (nbytes // len(key) + 1))[:nbytes]
    return made


def opened(root: Path, *, direct: bool = True, fsync: bool = False, shared: bool = True) -> FilesystemStore:
    return FilesystemStore(root, block_bytes=PAYLOAD, direct=direct, fsync=fsync, shared=shared)


def put(store: FilesystemStore, *names: str) -> None:
    for name in names:
        assert store.put(k(name), content(k(name)))


def got(store: FilesystemStore, name: str) -> bool:
    """The block is there and is what was put; an error if it is anything else."""
    into = memory(PAYLOAD)
    store.get(k(name), into)
    return into == content(k(name))


def path_of(store: FilesystemStore, name: str) -> Path:
    return Path(store.folder.path_of(k(name)))


def files(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    return opened(tmp_path / "root")


# Bytes


@settings(deadline=None)  # a disk takes the time it takes
@given(
    nbytes=st.one_of(st.integers(1, 20_000), st.sampled_from([4096, 8192, 65536])),
    offset=st.sampled_from([0, 1, 512, 4095]),
    direct=st.booleans(),
    fsync=st.booleans(),
)
def test_bytes_survive(
    tmp_path_factory: pytest.TempPathFactory, nbytes: int, offset: int, direct: bool, fsync: bool
) -> None:
    """Any number of bytes at any address comes back as it was, whichever way it goes to the disk."""
    root = tmp_path_factory.getbasetemp() / "survive"
    store = FilesystemStore(root, block_bytes=nbytes, direct=direct, fsync=fsync)
    data, into = memory(nbytes, offset=offset), memory(nbytes, offset=offset)
    data[:] = os.urandom(nbytes)
    store.delete(k("a"))
    assert store.put(k("a"), data)
    store.get(k("a"), into)
    assert into == data
    assert [*store.inventory()] == [(k("a"), nbytes)]


def test_read_only_memory_can_be_put(store: FilesystemStore) -> None:
    """Bytes that cannot be written to are as good as others."""
    assert store.put(k("a"), content(k("a")).toreadonly())
    assert got(store, "a")


def test_alone_nobody_looks_before_writing(tmp_path: Path) -> None:
    """Where no other process puts blocks, a file that is there all the same is replaced, and whole."""
    store = opened(tmp_path / "root", shared=False)
    put(store, "a")
    before = path_of(store, "a").stat()
    assert store.put(k("a"), content(k("a")))
    assert path_of(store, "a").stat().st_ino != before.st_ino
    assert got(store, "a")


def test_a_file_that_is_too_long_is_corrupt(store: FilesystemStore) -> None:
    """Bytes behind a block are told with their number, whether they fill a page or not."""
    for extra in (1, 4096, 9000):
        put(store, "a")
        path = path_of(store, "a")
        path.write_bytes(path.read_bytes() + bytes(extra))
        with pytest.raises(BlockCorruptError, match=f"a file of {store.kind.stored_bytes + extra} bytes"):
            store.get(k("a"), memory(PAYLOAD))
        store.delete(k("a"))


def test_what_is_there_is_not_written_again(store: FilesystemStore) -> None:
    """A second put says that the block was there, and the file is the one that was there."""
    put(store, "a")
    before = path_of(store, "a").stat()
    assert not store.put(k("a"), content(k("other")))
    after = path_of(store, "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert got(store, "a")


def test_short_writes_and_reads_go_on(store: FilesystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that takes or gives a few bytes at a time gets and gives all of them in the end."""
    writev, preadv = os.writev, os.preadv
    store.is_direct = False
    monkeypatch.setattr(os, "writev", lambda fd, parts: writev(fd, [parts[0][:1000]]))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:999]], at))
    put(store, "a")
    assert got(store, "a")


def test_memory_of_another_size(store: FilesystemStore) -> None:
    """A wrong size is refused before anything is touched: the block that is there stays."""
    put(store, "a")
    with pytest.raises(TierContractError):
        store.get(k("a"), memory(PAYLOAD - 1))
    with pytest.raises(TierContractError):
        store.put(k("b"), memory(PAYLOAD + 1))
    assert store.holds(keys("a b")) == [True, False]


# Past the page cache


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each file opened from now on, whether it was with O_DIRECT."""
    really, seen = os.open, list[bool]()

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        seen.append(bool(flags & os.O_DIRECT))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    return seen


@pytest.mark.parametrize(("offset", "expected"), [(0, True), (512, False)], ids=["aligned", "not aligned"])
def test_alignment_decides(tmp_path: Path, opens: list[bool], offset: int, expected: bool) -> None:
    """Aligned memory goes past the page cache where the disk allows it, other memory through it."""
    store = opened(tmp_path)
    if not store.is_direct:
        pytest.skip("this file system has no O_DIRECT")
    path_of(store, "a").parent.mkdir()
    opens.clear()
    data = memory(PAYLOAD, offset=offset)
    assert is_aligned(data) is expected
    store.put(k("a"), data)
    store.get(k("a"), data)
    assert opens == [expected, expected]


def test_a_disk_without_direct_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where O_DIRECT is refused, that is found once, and everything goes through the page cache."""
    really = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    store = opened(tmp_path)
    assert not store.is_direct
    put(store, "a")
    assert got(store, "a")
    assert files(tmp_path) == {"config.json", path_of(store, "a").name}


# Damage


@pytest.mark.parametrize(
    "length",
    [0, 1, FIELDS.size - 1, 100, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, WHOLE - 1, WHOLE + 1],
)
def test_a_file_of_another_length(store: FilesystemStore, length: int) -> None:
    """A file cut anywhere, or too long, is a corrupt block, says its length, and is as good as not there."""
    put(store, "a")
    os.truncate(path_of(store, "a"), length)
    with pytest.raises(BlockCorruptError, match=f"{length} bytes, not {WHOLE}"):
        got(store, "a")
    assert store.holds(keys("a")) == [False]
    put(store, "a")
    assert got(store, "a")


@settings(deadline=None)
@given(bit=st.integers(0, WHOLE * 8 - 1))
def test_a_flipped_bit(tmp_path_factory: pytest.TempPathFactory, bit: int) -> None:
    """One bit that is not as it was written, in the header or behind it, is a corrupt block."""
    store = opened(tmp_path_factory.getbasetemp() / "flipped")
    store.put(k("a"), content(k("a")))
    path = path_of(store, "a")
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with pytest.raises(BlockCorruptError):
        got(store, "a")
    path.write_bytes(whole)
    assert got(store, "a")


def test_another_block_under_this_name(store: FilesystemStore) -> None:
    """A whole block of another key is not this block."""
    put(store, "a", "b")
    shutil.copy(path_of(store, "b"), path_of(store, "a"))
    with pytest.raises(BlockCorruptError, match="another block"):
        got(store, "a")


def test_a_block_that_vanished(store: FilesystemStore) -> None:
    """A deleted file is a missing block, whoever deleted it, and deleting it again is no error."""
    put(store, "a")
    path_of(store, "a").unlink()
    with pytest.raises(BlockMissingError):
        got(store, "a")
    store.delete(k("a"))
    store.delete(k("never"))
    put(store, "a")
    store.delete(k("a"))
    assert store.holds(keys("a")) == [False]


# Disks that fail


def failing(name: str, number: int, *, after: int) -> Callable[..., object]:
    """``os.<name>``, which fails with ``number`` from the call that follows ``after`` others."""
    really, calls = getattr(os, name), iter(range(1 << 30))

    def call(*args: object) -> object:
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        return really(*args)

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS], ids=os.strerror)
@pytest.mark.parametrize(
    ("call", "after"), [("writev", 0), ("writev", 1), ("replace", 0), ("fsync", 0), ("fsync", 1)]
)
def test_a_put_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: int, number: int
) -> None:
    """Wherever a put fails, it says with what; no block, no half of one is there; the next one works."""
    store = opened(tmp_path, direct=False, fsync=True)
    path_of(store, "a").parent.mkdir()
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        if call == "writev" and after:
            writev = os.writev
            patch.setattr(os, "writev", lambda fd, parts: writev(fd, [parts[0][:1000]]))
        patch.setattr(os, call, failing(call, number, after=after))
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            store.put(k("a"), content(k("a")))
    assert raised.value.errno == number
    assert files(tmp_path) == before
    put(store, "a")
    assert got(store, "a")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory on ``folder``; skips where nobody may mount."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "kvbus-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tmp_path: Path) -> None:
    """On a disk that is full a put says ENOSPC and leaves nothing; what is there is read; room helps."""
    with mounted(tmp_path / "small", "size=256k") as disk:
        store = opened(disk)
        with pytest.raises(OSError, match="No space") as raised:
            put(store, *map(str, range(100)))
        assert raised.value.errno == errno.ENOSPC
        stored = len([*store.inventory()])
        assert 10 < stored == len(files(disk)) - 1
        assert got(opened(disk), "0")
        store.delete(k("0"))
        put(store, "new")
        assert got(store, "new")


def test_a_read_only_disk(tmp_path: Path) -> None:
    """A disk that was made read-only can be read; a put says EROFS; a tier does not open on it."""
    with mounted(tmp_path / "disk", "size=1m") as disk:
        store = opened(disk)
        put(store, "a")
        old = path_of(store, "a")
        os.utime(old, (0, 0))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert got(store, "a")
        with pytest.raises(OSError, match="Read-only") as raised:
            store.put(k("b"), content(k("b")))
        assert raised.value.errno == errno.EROFS
        for direct in (True, False):
            with pytest.raises(TierError, match="Read-only"):
                opened(disk, direct=direct)


@pytest.mark.parametrize("what", ["root", "mount"])
def test_a_root_that_is_away(tmp_path: Path, what: str) -> None:
    """While the root is away, as that of a disk that is unmounted, nobody says that a block is gone, nothing
    is made in the root's place, and when it is back everything is there.
    """
    root = tmp_path / "root"
    store, away = opened(root), tmp_path / "away"
    put(store, "a")
    root.rename(away)
    if what == "mount":
        root.mkdir()
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: got(store, "a"),
        "put": lambda: put(store, "a"),
        "delete": lambda: store.delete(k("a")),
        "holds": lambda: store.holds(keys("a b")),
    }
    for call in calls.values():
        with pytest.raises(OSError, match="folder is away") as raised:
            call()
        assert raised.value.errno == errno.ENXIO
        assert not isinstance(raised.value, BlockUnsureError)
    if what == "mount":
        assert files(root) == set()
        root.rmdir()
    assert not root.exists()
    away.rename(root)
    assert got(store, "a")
    assert store.holds(keys("a b")) == [True, False]


def test_one_question_that_fails(store: FilesystemStore) -> None:
    """Where one block cannot be asked about, the others can; only if all fail is there an error."""
    put(store, "a")
    long = k("x" * 200)
    path_of(store, "x" * 200).parent.mkdir()
    assert store.holds([k("a"), long, k("b")]) == [True, None, False]
    assert store.holds([]) == []
    with pytest.raises(OSError, match="name too long"):
        store.holds([long])


def test_a_put_that_cannot_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that failed, and whose file cannot be taken away again, may have left a block, and says so."""
    store = opened(tmp_path, fsync=True)
    path_of(store, "a").parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing("fsync", errno.EIO, after=1))
        patch.setattr(os, "unlink", failing("unlink", errno.EIO, after=0))
        with pytest.raises(BlockUnsureError) as raised:
            store.put(k("a"), content(k("a")))
    assert raised.value.errno == errno.EIO
    assert store.holds(keys("a")) == [True]
    store.delete(k("a"))
    assert store.holds(keys("a")) == [False]


# Roots


@pytest.mark.parametrize("root", ["deep/er/still", "ünïcode 空间 🗄", "with space"])
def test_roots_that_are_made(tmp_path: Path, root: str) -> None:
    """A root that is not there is made, whatever its name."""
    store = opened(tmp_path / root)
    put(store, "a")
    assert got(opened(tmp_path / root), "a")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Inside, this process is nobody in particular, even if it is root outside."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("kind", ["file", "below a file", "too long", "nul", "not allowed"])
def test_roots_that_cannot_be(tmp_path: Path, kind: str) -> None:
    """A root that cannot be made is refused at once, by name and with the system's reason."""
    (tmp_path / "file").touch()
    (tmp_path / "shut").mkdir(mode=0o500)
    bad = {
        "file": (tmp_path / "file", "Not a directory"),
        "below a file": (tmp_path / "file" / "root", "Not a directory"),
        "too long": (tmp_path / ("n" * 300), "name too long"),
        "nul": (Path(f"{tmp_path}/a\0b"), "null byte"),
        "not allowed": (tmp_path / "shut" / "root", "Permission denied"),
    }
    root, reason = bad[kind]
    caller = unprivileged() if kind == "not allowed" else nullcontext()
    with pytest.raises(TierError, match=f"{reason}.*Give a folder"), caller:
        opened(root)
    assert not (tmp_path / "file").is_dir()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"root": None}, "path None"),
        ({"root": ""}, "path ''"),
        ({"root": b"root"}, "path b'root'"),
        ({"fsync": "false"}, "fsync 'false'"),
        ({"direct": 1}, "direct 1"),
        ({"layout": "model"}, "layout 'model'"),
    ],
    ids=ascii,
)
def test_values_that_cannot_be(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    """What is no name of a folder, no yes or no, or no layout is a ValueError, and nothing is made."""
    with pytest.raises(TierValueError, match=reason):
        FilesystemStore(**{"root": tmp_path, "block_bytes": PAYLOAD, **options})
    assert [*tmp_path.iterdir()] == []


def test_a_name_too_long_for_the_disk(store: FilesystemStore) -> None:
    """A hash too long for a file name fails its own put, and says so."""
    with pytest.raises(OSError, match="name too long") as raised:
        store.put(k("x" * 200), content(k("a")))
    assert raised.value.errno == errno.ENAMETOOLONG
    assert files(Path(store.folder.path)) == {"config.json"}


def test_kinds_are_kept_apart(tmp_path: Path) -> None:
    """Blocks of another size or layout under one root are not seen, and each folder says what it is for."""
    stores = [FilesystemStore(tmp_path, block_bytes=PAYLOAD, layout={"rank": rank}) for rank in (0, 1)]
    put(stores[0], "a")
    assert stores[1].holds(keys("a")) == [False]
    assert [*stores[1].inventory()] == []
    configs = [Path(store.folder.path, "config.json").read_bytes() for store in stores]
    assert configs == [store.kind.description for store in stores]


@pytest.mark.parametrize("text", ["{}", "7", '{"format": 1}'])
def test_a_folder_of_somebody_else(store: FilesystemStore, tmp_path: Path, text: str) -> None:
    """A folder whose config.json says something else is left alone."""
    config = Path(store.folder.path, "config.json")
    config.write_text(text)
    with pytest.raises(TierError, match=r"config\.json describes other blocks"):
        opened(tmp_path / "root")
    assert config.read_text() == text


@pytest.mark.parametrize("torn", ["empty", "cut", "newline", "zeros", "half zeros"])
def test_a_torn_description(store: FilesystemStore, tmp_path: Path, torn: str) -> None:
    """A config.json that a power cut left empty, short or without its bytes is written anew."""
    put(store, "a")
    config, whole = Path(store.folder.path, "config.json"), store.kind.description
    half = len(whole) // 2
    config.write_bytes(
        {
            "empty": b"",
            "cut": whole[:half],
            "newline": whole[:-1],
            "zeros": bytes(len(whole)),
            "half zeros": whole[:half] + bytes(half),
        }[torn]
    )
    assert got(opened(tmp_path / "root"), "a")
    assert config.read_bytes() == whole
    assert files(tmp_path) == {"config.json", path_of(store, "a").name}


def test_the_description_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder's description survives a power cut, whether its blocks do or not."""
    synced, really = list[str](), os.fsync

    def watched(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        really(file)

    monkeypatch.setattr(os, "fsync", watched)
    store = opened(tmp_path, fsync=False)
    unfinished, folder = synced
    assert unfinished.endswith(".unfinished")
    assert folder == store.folder.path


# What is there already


def test_inventory_goes_by_last_use(store: FilesystemStore, tmp_path: Path) -> None:
    """A new process finds the blocks in the order of their last use; loading one is a use."""
    put(store, "a", "b", "c")
    for age, name in enumerate("cab", start=100):
        os.utime(path_of(store, name), (age, age))
    another = opened(tmp_path / "root")
    assert [key for key, _ in another.inventory()] == keys("c a b")
    assert got(another, "c")
    assert [*opened(tmp_path / "root").inventory()] == [(key, PAYLOAD) for key in keys("a b c")]


def test_inventory_tidies_up(store: FilesystemStore) -> None:
    """Listing deletes what a writer left long ago, and blocks that were cut; other files are left alone."""
    put(store, "a", "b")
    os.truncate(path_of(store, "b"), 100)
    folder, top = path_of(store, "a").parent, Path(store.folder.path)
    left = {
        "young": folder / ".1-0.unfinished",
        "old": folder / ".2-0.unfinished",
        "first": top / ".3-0.unfinished",
    }
    for path in left.values():
        path.touch()
    os.utime(left["old"], (0, 0))
    os.utime(left["first"], (0, 0))
    (folder / "notes.bin").touch()
    (top / "6c" / "deeper").mkdir(parents=True)
    (folder / path_of(store, "c").name).mkdir()
    assert [*store.inventory()] == [(k("a"), PAYLOAD)]
    assert files(top) == {"config.json", path_of(store, "a").name, "notes.bin", left["young"].name}


def test_inventory_goes_on(store: FilesystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be deleted and a folder that cannot be read are passed over, and counted by reason;
    folders of other names are not looked into.
    """
    put(store, "a", "b", "c")
    os.truncate(path_of(store, "b"), 100)
    foreign = Path(store.folder.path, "lost+found")
    foreign.mkdir()
    shut = {str(foreign), str(path_of(store, "c").parent)}
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path in shut:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "unlink", failing("unlink", errno.EPERM, after=0))
    monkeypatch.setattr(os, "scandir", refusing)
    assert [*store.inventory()] == [(k("a"), PAYLOAD)]
    assert store.folder.skipped == {"EPERM": 1, "EACCES": 1}


def test_a_clock_that_was_set_back(store: FilesystemStore, tmp_path: Path) -> None:
    """A block whose last use is said to be in the future is used now, when it is loaded."""
    put(store, "a", "b")
    for name in "ab":
        os.utime(path_of(store, name), (1 << 33, 1 << 33))
    assert got(opened(tmp_path / "root"), "b")
    assert [key for key, _ in store.inventory()] == keys("b a")


# Several processes

HAMMER = """
import random, sys, time
from tests.tiers.test_filesystem import content, memory, opened, PAYLOAD, Path, k
from tiers.storage.block_store import BlockMissingError
root, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
store, chance, into, done = opened(root), random.Random(seed), memory(PAYLOAD), [0] * 5
names = [k(str(number)) for number in range(12)]
held = {key: content(key) for key in names}
print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    key, what = chance.choice(names), chance.randrange(5)
    if what < 2:
        store.put(key, held[key])
    elif what < 4:
        try:
            store.get(key, into)
            assert into == held[key], f"wrong bytes for {key!r}"
        except BlockMissingError:
            what = 4
    else:
        store.delete(key)
    done[what] += 1
assert min(done[:4]) > 0, done
"""


def hammering(root: Path, seed: int, *, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HAMMER, str(root), str(seed), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_on_one_root(tmp_path: Path) -> None:
    """Two processes that put, get and delete the same blocks never see other bytes, nor half a block."""
    processes = [hammering(tmp_path, seed, seconds=2) for seed in (1, 2)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    store = opened(tmp_path)
    assert all(got(store, key[:-4].decode()) for key, _ in store.inventory())
    assert not any("unfinished" in name for name in files(tmp_path))


def test_a_killed_writer(tmp_path: Path) -> None:
    """Killed in the middle of its work, a process leaves whole blocks, and at most one file to tidy up."""
    for seed in range(5):
        with hammering(tmp_path, seed, seconds=60) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.kill()
    store = opened(tmp_path)
    assert all(got(store, key[:-4].decode()) for key, _ in store.inventory())
    assert sum("unfinished" in name for name in files(tmp_path)) <= 5
