"""Who has to leave when room is needed: the protocol of cache policies, and how one is found by name.

A policy keeps order and nothing else. It does not count references (the manager does, and says when a
block becomes evictable), does not know slots, and emits nothing. ``evict`` costs as much as it gives,
however many blocks are pinned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import ClassVar

from msgspec import Struct

from tiers.keys import OffloadKey
from tiers.registry import Registry
from tiers.request import ReqContext

WRITING = -1
"""``ref_cnt`` of a block whose bytes have not arrived."""


class BlockStatus(Struct, eq=False, gc=False):
    """One block of the primary tier. Not seen by the garbage collector: there may be millions.

    ``ref_cnt``: -1 while it is written, else the number of readers. ``place``: for the policy's own use.
    """

    block_id: int
    ref_cnt: int = WRITING
    place: int = 0


Victims = list[tuple[OffloadKey, BlockStatus]]


class CachePolicy(ABC):
    """An order over at most ``cache_capacity`` blocks.

    The manager sets ``ref_cnt`` and then tells: a block may be evicted from ``mark_evictable`` (0 readers)
    until ``mark_non_evictable``. One inserted with ``ref_cnt`` 0 is evictable at once.
    """

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity

    @abstractmethod
    def get(self, key: OffloadKey) -> BlockStatus | None: ...

    @abstractmethod
    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        """Take in a block that is not here."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None:
        """Forget a block, as if it had never been here. ``KeyError`` if it is not."""

    @abstractmethod
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Count a use, in reverse order: the first key becomes the most recent, the last leaves first."""

    @abstractmethod
    def evict(self, n: int, protected: AbstractSet[OffloadKey]) -> Victims | None:
        """Choose and remove ``n`` evictable blocks outside ``protected``, in order of eviction.

        None if there are not so many: then nothing has changed.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, history too."""

    def mark_evictable(self, key: OffloadKey) -> None:  # noqa: B027
        """The block has no reader (any more)."""

    def mark_non_evictable(self, key: OffloadKey) -> None:  # noqa: B027
        """The block got its first reader."""

    # Ours: the same for many blocks at once, which is how they come. A call per block is most of the cost.

    def insert_all(self, blocks: Iterable[tuple[OffloadKey, BlockStatus]]) -> None:
        for key, block in blocks:
            self.insert(key, block)

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self.mark_evictable(key)

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self.mark_non_evictable(key)

    def check_integrity(self) -> None:  # noqa: B027
        """Raise ``AssertionError`` if any promise of this class does not hold now."""


class CachePolicyFactory:
    """Policies by name. Others are named by ``register_cache_policy``, or by where they can be imported."""

    # mypy wants a concrete class for type[T]; this one is only compared with.
    _registry: ClassVar = Registry[CachePolicy]("cache policy", CachePolicy)  # type: ignore[type-abstract]

    @classmethod
    def register_cache_policy(cls, name: str, module_path: str, class_name: str) -> None:
        """Give a class a name; it is imported when it is asked for. A name can be given once."""
        cls._registry.register(name, module_path, class_name)

    @classmethod
    def get_cache_policy_cls(cls, name: str, module_path: str | None = None) -> type[CachePolicy]:
        """The class called ``name``: in ``module_path``, else registered, else ``name`` is ``module:Class``.

        Raises ``TierValueError`` (a ``ValueError``) if there is none, if its module cannot be imported, or if
        it is no ``CachePolicy``.
        """
        return cls._registry.find(name, module_path)


CachePolicyFactory.register_cache_policy("lru", "tiers.lru", "LRUCachePolicy")
CachePolicyFactory.register_cache_policy("arc", "tiers.arc", "ARCCachePolicy")
