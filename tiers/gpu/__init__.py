"""The GPU's paged blocks: their books, what they are called, and what the tier says of them."""

from tiers.gpu.pool import GPUBlockPool

__all__ = ["GPUBlockPool"]
