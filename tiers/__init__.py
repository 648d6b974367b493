"""Tiers that keep KV-cache blocks outside the GPU and own their events: a table of contents.

Importing this imports no torch and no boto3. What moves bytes between GPU and CPU is ``tiers.transfer``,
which needs torch; making a tier of ``tiers.objectstore`` needs boto3.
"""

from tiers.arc import ARCCachePolicy
from tiers.cpu import CPUOffloadingManager
from tiers.errors import (
    TierContractError,
    TierError,
    TierMemoryError,
    TierStalledError,
    TierValueError,
    UnknownRequestError,
)
from tiers.factory import SecondaryTierFactory
from tiers.filesystem.tier import FilesystemStore, FilesystemTier
from tiers.gpu.block_hash import hash_block, hash_blocks
from tiers.gpu.pool import GPUBlockPool
from tiers.jobs import JobResult, TransferJob, TransferResult
from tiers.keys import OffloadKey, get_offload_block_hash, get_offload_group_idx, make_offload_key
from tiers.lru import LRUCachePolicy
from tiers.manager import LookupResult, OffloadingManager
from tiers.medium import Locality, Medium, TierFilter, TierMatcher
from tiers.memory import MemoryTier
from tiers.objectstore.tier import ObjectStoreTier
from tiers.offloading_event import EventBuffer, OffloadingEvent
from tiers.policy import BlockStatus, CachePolicy, CachePolicyFactory
from tiers.primary import CPUPrimaryTierOffloadingManager
from tiers.request import OffloadPolicy, ReqContext, RequestOffloadingContext, ScheduleEndContext
from tiers.secondary import ParentManager, SecondaryTierManager
from tiers.serving.synthetic import ChatTraffic, synthetic
from tiers.serving.trace import Request, read_trace
from tiers.slots import Slots
from tiers.specs import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    PrepareStoreOutput,
)
from tiers.storage.backpressure import Backpressure
from tiers.storage.block_store import BlockCorruptError, BlockMissingError, BlockStore, BlockUnsureError
from tiers.storage.tier import StorageTier
from tiers.tiering.manager import TieringOffloadingManager
from tiers.voice.announcer import Announcer
from tiers.voice.attach import Attachment, attach
from tiers.voice.description import BlockDescription, Descriptions
from tiers.voice.voices import Address, Drain, Voice

__all__ = [
    "ARCCachePolicy",
    "Address",
    "Announcer",
    "Attachment",
    "Backpressure",
    "BlockCorruptError",
    "BlockDescription",
    "BlockIDsLoadStoreSpec",
    "BlockMissingError",
    "BlockStatus",
    "BlockStore",
    "BlockUnsureError",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUPrimaryTierOffloadingManager",
    "CachePolicy",
    "CachePolicyFactory",
    "ChatTraffic",
    "Descriptions",
    "Drain",
    "EventBuffer",
    "FilesystemStore",
    "FilesystemTier",
    "GPUBlockPool",
    "GPULoadStoreSpec",
    "JobResult",
    "LRUCachePolicy",
    "LoadStoreSpec",
    "Locality",
    "LookupResult",
    "Medium",
    "MemoryTier",
    "ObjectStoreTier",
    "OffloadKey",
    "OffloadPolicy",
    "OffloadingEvent",
    "OffloadingManager",
    "ParentManager",
    "PrepareStoreOutput",
    "ReqContext",
    "Request",
    "RequestOffloadingContext",
    "ScheduleEndContext",
    "SecondaryTierFactory",
    "SecondaryTierManager",
    "Slots",
    "StorageTier",
    "TierContractError",
    "TierError",
    "TierFilter",
    "TierMatcher",
    "TierMemoryError",
    "TierStalledError",
    "TierValueError",
    "TieringOffloadingManager",
    "TransferJob",
    "TransferResult",
    "UnknownRequestError",
    "Voice",
    "attach",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "hash_block",
    "hash_blocks",
    "make_offload_key",
    "read_trace",
    "synthetic",
]
