"""The composing manager: a primary tier, and those behind it, under the protocol of one."""

from tiers.tiering.manager import TieringOffloadingManager

__all__ = ["TieringOffloadingManager"]
