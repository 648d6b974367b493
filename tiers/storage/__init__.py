"""Tiers on a medium: bounded, verified, never waited for, whatever the medium is."""

from tiers.storage.block_store import BlockStore
from tiers.storage.tier import StorageTier

__all__ = ["BlockStore", "StorageTier"]
