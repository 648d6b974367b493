"""The CPU tier as the tiers behind it see it: the same books under their words, and the memory itself.

Between the CPU and the GPU one loads and stores; between the CPU and the tiers behind it one reads and
writes. The memory belongs to whoever allocated it and is only handed on.
"""

from __future__ import annotations

from collections.abc import Collection

from tiers.cpu import CPUOffloadingManager
from tiers.errors import TierValueError
from tiers.keys import OffloadKey
from tiers.request import ReqContext
from tiers.specs import LoadStoreSpec, PrepareStoreOutput


class CPUPrimaryTierOffloadingManager(CPUOffloadingManager):
    """``mmap_region``: the memory, shape (num_blocks, bytes a slot); None keeps books alone.

    Raises ``TierValueError`` if it has not that many slots.
    """

    def __init__(
        self,
        num_blocks: int,
        mmap_region: memoryview | None = None,
        cache_policy: str = "lru",
        enable_events: bool = False,
        *,
        cache_policy_module_path: str | None = None,
    ) -> None:
        super().__init__(
            num_blocks, cache_policy, enable_events, cache_policy_module_path=cache_policy_module_path
        )
        shape = None if mmap_region is None else mmap_region.shape
        if shape is not None and (len(shape) != 2 or shape[0] != num_blocks):
            raise TierValueError(
                f"memory of shape {shape} for {num_blocks} blocks",
                next_step="Give a memoryview of shape (num_blocks, bytes a slot).",
            )
        self._region = memoryview(b"") if mmap_region is None else mmap_region

    def get_kv_memoryview(self) -> memoryview:
        """The memory, not copied; empty if there is none. Slot b begins at byte ``b * strides[0]``."""
        return self._region

    def prepare_read(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self.prepare_load(keys, req_context)

    def complete_read(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.complete_load(keys, req_context)

    def prepare_write(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        return self.prepare_store(keys, req_context)

    def complete_write(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self.complete_store(keys, req_context, success)
