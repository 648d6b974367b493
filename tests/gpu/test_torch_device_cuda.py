"""A run's memory on CUDA: the same blocks, made and compared there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch

from tiers import CPULoadStoreSpec, OffloadKey, make_offload_key
from tiers.serving.torch_device import TorchDevice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

KEYS: list[OffloadKey] = [make_offload_key(hashlib.sha256(bytes([n])).digest(), 0) for n in range(64)]


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    one = TorchDevice(128, 96, block_bytes=64 << 10, device="cuda")
    yield one
    one.close()


def test_blocks_survive_the_way_down_and_up(device: TorchDevice) -> None:
    """GPU → pinned host memory → other GPU slots: each block is that of its key, a spoilt one is named."""
    assert device.name == "cuda"
    device.compute(range(64), KEYS)
    assert device.store(range(64), CPULoadStoreSpec(range(95, 31, -1)))
    assert device.load(CPULoadStoreSpec(range(95, 31, -1)), range(64, 128))
    assert device.mismatches(range(64, 128), KEYS) == []
    device.cpu_rows.cast("B")[95 * (64 << 10) + 77] ^= 1
    device.load(CPULoadStoreSpec([95]), [64])
    assert device.mismatches([64, 65], KEYS[:2]) == [0]


def test_content_is_that_of_a_cpu(device: TorchDevice) -> None:
    """What a run on CUDA stored, a run on the CPU takes for right: content depends on the key alone."""
    device.compute([0], KEYS[:1])
    device.store([0], CPULoadStoreSpec([0]))
    host = TorchDevice(1, 1, block_bytes=64 << 10, device="cpu")
    host.cpu_rows.cast("B")[:] = device.cpu_rows.cast("B")[: 64 << 10]
    host.load(CPULoadStoreSpec([0]), [0])
    assert host.mismatches([0], KEYS[:1]) == []
    host.close()
