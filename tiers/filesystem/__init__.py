"""A folder as a tier: one file a block."""

from tiers.filesystem.tier import FilesystemStore, FilesystemTier

__all__ = ["FilesystemStore", "FilesystemTier"]
