"""Blocks in torch tensors: made, copied both ways, compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch

from tiers import CPULoadStoreSpec, OffloadKey, make_offload_key
from tiers.errors import TierMemoryError, TierValueError
from tiers.serving.torch_device import TorchDevice, allocated, chosen

KEYS: list[OffloadKey] = [make_offload_key(hashlib.sha256(bytes([n])).digest(), 0) for n in range(4)]


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    one = TorchDevice(8, 6, block_bytes=5_000, device="cpu")
    yield one
    one.close()


def test_a_block_survives_the_way_down_and_up(device: TorchDevice) -> None:
    """GPU → CPU → GPU, other slots each time: the content is that of the key, and nothing else moved."""
    device.compute([7, 0, 3, 5], KEYS)
    assert device.store([7, 0, 3, 5], CPULoadStoreSpec([5, 2, 0, 1]))
    assert device.load(CPULoadStoreSpec([0, 5]), [1, 2])
    assert device.mismatches([1, 2], [KEYS[2], KEYS[0]]) == []
    assert device.mismatches([1, 2, 4], KEYS[:3]) == [0, 1, 2]
    assert device.mismatches([7, 0, 3, 5], KEYS) == []


def test_a_byte_gone_astray_in_the_cpu_tier_is_seen(device: TorchDevice) -> None:
    """Another tier's memory is not trusted: what comes up is compared with what its key says."""
    device.compute([0, 1], KEYS[:2])
    device.store([0, 1], CPULoadStoreSpec([0, 1]))
    row_bytes = device.cpu_rows.nbytes // 6
    device.cpu_rows.cast("B")[row_bytes + 4_999] ^= 0x80
    device.load(CPULoadStoreSpec([0, 1]), [2, 3])
    assert device.mismatches([2, 3], KEYS[:2]) == [1]


def test_copies_are_counted_by_direction(device: TorchDevice) -> None:
    """Bytes are those of blocks, without padding; each copy has a time."""
    device.compute([0, 1], KEYS[:2])
    device.store([0, 1], CPULoadStoreSpec([0, 1]))
    device.load(CPULoadStoreSpec([1]), [2])
    assert (device.times["store"].bytes, device.times["load"].bytes) == (10_000, 5_000)
    assert min(device.times["store"].seconds, device.times["load"].seconds) > 0
    assert len(device.times["load"].recent) == 1


def test_devices() -> None:
    """auto is CUDA where there is one; CUDA where there is none, or a word that means nothing, is refused."""
    assert chosen("cpu").type == "cpu"
    assert chosen("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(TierValueError, match="no device 'tpu'"):
        chosen("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(TierValueError, match="no CUDA device"):
            chosen("cuda")


def test_more_memory_than_there_is() -> None:
    """Blocks that have no room anywhere are an error that says so, in our words."""
    with pytest.raises(TierMemoryError, match="no memory for"):
        allocated(1 << 40, 1 << 20, torch.device("cpu"))


def test_closing_twice() -> None:
    """Worker and memory are let go of once, however often it is asked."""
    one = TorchDevice(1, 1, block_bytes=64, device="cpu")
    one.close()
    one.close()
