"""Tiers that keep KV-cache blocks outside the GPU and own their events: a table of contents."""

from tiers.arc import ARCCachePolicy
from tiers.cpu import CPUOffloadingManager
from tiers.errors import TierContractError, TierError, TierValueError, UnknownRequestError
from tiers.jobs import JobResult, TransferJob, TransferResult
from tiers.keys import OffloadKey, get_offload_block_hash, get_offload_group_idx, make_offload_key
from tiers.lru import LRUCachePolicy
from tiers.manager import LookupResult, OffloadingManager
from tiers.medium import Locality, Medium, TierFilter, TierMatcher
from tiers.memory import MemoryTier
from tiers.offloading_event import EventBuffer, OffloadingEvent
from tiers.policy import BlockStatus, CachePolicy, CachePolicyFactory
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.request import OffloadPolicy, ReqContext, RequestOffloadingContext, ScheduleEndContext
from tiers.secondary import ParentManager, SecondaryTierManager
from tiers.slots import Slots
from tiers.specs import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    PrepareStoreOutput,
)
from tiers.tiering import TieringOffloadingManager

__all__ = [
    "ARCCachePolicy",
    "BlockIDsLoadStoreSpec",
    "BlockStatus",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUPrimaryTierOffloadingManager",
    "CachePolicy",
    "CachePolicyFactory",
    "EventBuffer",
    "GPULoadStoreSpec",
    "JobResult",
    "LRUCachePolicy",
    "LoadStoreSpec",
    "Locality",
    "LookupResult",
    "Medium",
    "MemoryTier",
    "OffloadKey",
    "OffloadPolicy",
    "OffloadingEvent",
    "OffloadingManager",
    "ParentManager",
    "PrepareStoreOutput",
    "ReqContext",
    "RequestOffloadingContext",
    "ScheduleEndContext",
    "SecondaryTierManager",
    "Slots",
    "TierContractError",
    "TierError",
    "TierFilter",
    "TierMatcher",
    "TierValueError",
    "TieringOffloadingManager",
    "TransferJob",
    "TransferResult",
    "UnknownRequestError",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "make_offload_key",
]
