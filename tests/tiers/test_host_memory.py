"""The CPU tier's memory."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tiers import (
    CPUPrimaryTierOffloadingManager,
    TierContractError,
    TierError,
    TierMemoryError,
    TierValueError,
)
from tiers.row_layout import RowLayout
from tiers.transfer.host_memory import HostMemory

LAYOUT = RowLayout((1000, 24), blocks_per_chunk=5)  # 5120 bytes: two pages a row


def test_rows_are_chunks_side_by_side() -> None:
    """A row holds every tensor's chunk, one behind the other, and is padded to 4096 bytes."""
    assert [LAYOUT.chunk_offset(idx) for idx in range(2)] == [0, 5000]
    assert LAYOUT.row_bytes == 8192
    assert RowLayout((4096,)).row_bytes == 4096


@pytest.mark.parametrize(("pages", "chunk"), [((), 1), ((0,), 1), ((8,), 0)])
def test_layouts_that_cannot_be(pages: tuple[int, ...], chunk: int) -> None:
    """No tensors, empty pages and empty chunks are refused."""
    with pytest.raises(TierValueError):
        RowLayout(pages, chunk)


def test_bytes_and_tensor_are_one_memory() -> None:
    """What is written through the view is read through the tensor, and both have a row a slot."""
    memory = HostMemory(3, LAYOUT)
    assert memory.view.shape == tuple(memory.tensor.shape) == (3, 8192)
    assert not memory.tensor.any()
    memory.view[2, 8191] = 7
    assert (int(memory.tensor[2, 8191]), int(memory.tensor.count_nonzero())) == (7, 1)
    memory.tensor[1, 0] = -1
    assert memory.view[1, 0] == 255
    memory.check_integrity()
    memory.close()


def test_every_slot_can_be_read_with_o_direct() -> None:
    """Each row begins at an address divisible by 4096."""
    memory = HostMemory(3, RowLayout((100,)))
    assert [row.data_ptr() % 4096 for row in memory.tensor] == [0, 0, 0]
    memory.close()


def test_it_is_what_the_tiers_behind_the_cpu_see() -> None:
    """The composing manager's primary tier takes the view as it is."""
    memory = HostMemory(3, LAYOUT)
    primary = CPUPrimaryTierOffloadingManager(3, memory.view)
    assert primary.get_kv_memoryview().strides == (LAYOUT.row_bytes, 1)
    memory.close()


def test_closing_frees_with_the_last_holder(tmp_path: Path) -> None:
    """Views and tensors handed out stay good after ``close``; the memory goes with the last of them."""
    path = tmp_path / "slots"
    memory = HostMemory(2, LAYOUT, path=path)
    row = memory.tensor[1]
    memory.close()
    memory.close()
    memory.check_integrity()
    row.fill_(5)
    assert str(path) in mapped()
    del row
    assert str(path) not in mapped()


def mapped() -> str:
    return Path("/proc/self/maps").read_text()


def test_closed_memory_gives_nothing_out() -> None:
    """After ``close`` there is no view and no tensor to be had."""
    memory = HostMemory(1, LAYOUT)
    memory.close()
    with pytest.raises(TierContractError):
        _ = memory.view
    with pytest.raises(TierContractError):
        _ = memory.tensor


def test_no_blocks() -> None:
    """Memory without slots is refused."""
    with pytest.raises(TierValueError):
        HostMemory(0, LAYOUT)


def test_more_than_any_machine_has() -> None:
    """Memory that cannot be had is an error that says how much it was."""
    for num_blocks in (2**48, 2**60):
        with pytest.raises(MemoryError, match=f"no {num_blocks * 4096} bytes") as caught:
            HostMemory(num_blocks, RowLayout((4096,)))
        assert isinstance(caught.value, TierError)


@pytest.mark.parametrize(
    "place",
    ["", "absent/slots", "file/slots", "nul\0", "n" * 300, "loop"],
    ids=["a folder", "no folder", "a file as folder", "no path", "too long", "a link to itself"],
)
def test_a_path_that_cannot_be_shared(tmp_path: Path, place: str) -> None:
    """Where no file can be made or joined, that is said with its cause, as memory that cannot be had."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(TierMemoryError, match=r"for 1 slots: .*give a path") as caught:
        HostMemory(1, LAYOUT, path=tmp_path / place)
    assert caught.value.__cause__ is not None


def test_a_file_without_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another user is memory that cannot be had."""

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", denied)
    with pytest.raises(TierMemoryError, match="Permission denied"):
        HostMemory(1, LAYOUT, path=tmp_path / "slots")


def test_a_full_file_system_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room for a shared file is taken when it is made, and a file that got none is removed."""

    def no_room(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    with pytest.raises(MemoryError, match="No space left"):
        HostMemory(1, LAYOUT, path=tmp_path / "slots")
    assert not (tmp_path / "slots").exists()


def test_a_shared_file_is_one_memory(tmp_path: Path) -> None:
    """Who gives the same path maps the same slots; only who made the file removes its name."""
    path = tmp_path / "slots"
    made = HostMemory(2, LAYOUT, path=path)
    joined = HostMemory(2, LAYOUT, path=path)
    joined.tensor[1].fill_(7)
    assert torch.equal(made.tensor, torch.tensor([[0], [7]], dtype=torch.int8).expand(2, 8192))
    joined.close()
    assert path.exists()
    made.close()
    assert not path.exists()


def test_who_joins_waits_for_the_size(tmp_path: Path) -> None:
    """A file that is there but has no size yet is being made: joining waits for it."""
    path = tmp_path / "slots"
    path.touch()
    with ThreadPoolExecutor(1) as other:
        joining = other.submit(HostMemory, 2, LAYOUT, path=path)
        with pytest.raises(TimeoutError):
            joining.result(0.05)
        os.truncate(path, 2 * LAYOUT.row_bytes)
        memory = joining.result(30)
    assert memory.view.shape == (2, LAYOUT.row_bytes)
    memory.close()


def test_joining_a_file_of_another_size(tmp_path: Path) -> None:
    """A file that does not get the expected size in time is an error that names both."""
    path = tmp_path / "slots"
    made = HostMemory(2, LAYOUT, path=path)
    with pytest.raises(MemoryError, match=r"has 16384 bytes after 0\.02 s"):
        HostMemory(3, LAYOUT, path=path, join_seconds=0.02)
    made.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA it would be pinned")
def test_pinning_without_cuda_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Memory that cannot be pinned is unpinned memory, and a warning says so."""
    with caplog.at_level(logging.WARNING, logger="tiers.transfer.host_memory"):
        memory = HostMemory(1, LAYOUT, pin=True)
    assert not memory.pinned
    assert "stays unpinned" in caplog.text
    memory.close()


def test_a_check_that_can_fail() -> None:
    """A region whose slots are not where they should be does not pass the check."""
    memory = HostMemory(1, LAYOUT)
    memory._tensor = torch.zeros(8192 + 1, dtype=torch.int8)[1:].view(1, 8192)
    with pytest.raises(AssertionError):
        memory.check_integrity()
